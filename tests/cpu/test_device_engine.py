"""The engine's loop over a recorded device: requests that come and go, drafters, recordings."""

from __future__ import annotations

import pytest
import torch

from dsv4lab.config.engine import EngineConfig
from dsv4lab.engine import messages as m
from dsv4lab.engine.factory import make_runner
from dsv4lab.engine.payloads import unpack_timeline
from dsv4lab.engine.request import RequestSpec
from dsv4lab.engine.runner import Runner
from dsv4lab.engine.sampling_params import SamplingParams
from dsv4lab.engine.service import Service
from tests.cpu.fake_device import FakeDevice

GREEDY = SamplingParams()


def prompt(seed: int, n: int) -> tuple[int, ...]:
    return tuple(torch.randint(2, 512, (n,), generator=torch.Generator().manual_seed(seed)).tolist())


REQUESTS = [RequestSpec(1, prompt(1, 140), 12, GREEDY), RequestSpec(2, prompt(2, 9), 5, GREEDY)]
LATER = [RequestSpec(3, prompt(3, 30), 6, GREEDY)]


def serve(config: EngineConfig) -> tuple[dict[int, list[int]], Runner, list[m.Message]]:
    """The new tokens of all requests; the last one comes while the others decode."""
    runner, model = make_runner(config, lambda _: None)
    assert isinstance(runner, Runner)
    sent: list[m.Message] = []
    service = Service(config, model, runner, sent.append)
    service.handle(m.Submit(REQUESTS))
    service.handle(m.Record(7, steps=64, until_idle=True))
    for _ in range(4):
        service.step()
    service.handle(m.Submit(LATER))
    while not service.idle:
        service.step()
    tokens: dict[int, list[int]] = {}
    for progress in (s for s in sent if isinstance(s, m.Progress)):
        for request, token in progress.tokens:
            tokens.setdefault(request, []).append(token)
    return tokens, runner, sent


@pytest.mark.parametrize("speculative", ["off", "mtp", "dspark"])
def test_tokens_are_those_of_the_cpu_device(speculative: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(
        "tiny", streams="serial", max_running_requests=3, max_total_tokens=2048, speculative=speculative
    )
    expected, runner, _ = serve(config)
    assert runner.gpu is None
    device = FakeDevice()
    monkeypatch.setattr("dsv4lab.engine.runner.device_api", lambda place: device)
    found, runner, sent = serve(EngineConfig(**{**config.to_json(), "plan": "cuda+moe"}))
    assert found == expected
    assert {request: len(tokens) for request, tokens in found.items()} == {1: 12, 2: 5, 3: 6}
    assert runner.gpu is not None
    service_status = runner.device_status()
    assert service_status is not None
    assert (service_status["eagerly"], service_status["auto"]) == (0, [])
    assert runner.gpu.graphs.replays > runner.gpu.graphs.captures > 1
    (recorded,) = [s for s in sent if isinstance(s, m.Recorded)]
    timeline = unpack_timeline(recorded.timeline)
    assert set(timeline.names) == {"forward"}
    assert len(timeline) == len(recorded.steps)
    assert {step.mode for step in recorded.steps} == {"prefill", "decode"}
    assert all(step.hidden_ns == 0 for step in recorded.steps)
