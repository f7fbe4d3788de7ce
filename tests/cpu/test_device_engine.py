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
from dsv4lab.overlap.plan import resolve_plan
from tests.cpu.fake_device import FakeDevice

GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.8, top_k=20, seed=5)
PENALISED = SamplingParams(repetition_penalty=1.2)
EVERYTHING = SamplingParams(
    temperature=0.9, top_k=40, top_p=0.9, min_p=0.02, seed=8, repetition_penalty=1.3, presence_penalty=0.4,
    frequency_penalty=0.2, min_new_tokens=6, stop_token_ids=tuple(range(0, 512, 2)), logprobs=2,
)  # fmt: skip


def prompt(seed: int, n: int) -> tuple[int, ...]:
    return tuple(torch.randint(2, 512, (n,), generator=torch.Generator().manual_seed(seed)).tolist())


REQUESTS = [RequestSpec(1, prompt(1, 140), 12, GREEDY), RequestSpec(2, prompt(2, 9), 5, GREEDY)]
LATER = [RequestSpec(3, prompt(3, 30), 6, GREEDY)]


def tokens_of(sent: list[m.Message]) -> dict[int, list[int]]:
    """What each request got, in order."""
    tokens: dict[int, list[int]] = {}
    for progress in (s for s in sent if isinstance(s, m.Progress)):
        for request, token in progress.tokens:
            tokens.setdefault(request, []).append(token)
    return tokens


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
    return tokens_of(sent), runner, sent


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
    drafts = service_status["drafts"]
    assert drafts["eagerly"] == 0
    assert (drafts["captures"] > 1) == (drafts["replays"] > drafts["captures"]) == (speculative != "off")
    assert runner.gpu.graphs.replays > runner.gpu.graphs.captures > 1
    # Of 20 decode steps most follow one of the same requests; drafts change what comes next.
    assert (runner.ahead.hits > 5) == (speculative == "off")
    (recorded,) = [s for s in sent if isinstance(s, m.Recorded)]
    timeline = unpack_timeline(recorded.timeline)
    assert set(timeline.names) == {"forward"}
    assert len(timeline) == len(recorded.steps)
    assert {step.mode for step in recorded.steps} == {"prefill", "decode"}
    assert all(step.hidden_ns == 0 for step in recorded.steps)


@pytest.mark.parametrize("speculative", ["off", "mtp"])
def test_every_way_to_sample_gives_the_tokens_of_the_cpu_device(
    speculative: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Penalties, min-p and the rest of them, request by request in one batch of graphs."""
    config = EngineConfig(
        "tiny", streams="serial", max_running_requests=3, max_total_tokens=2048, speculative=speculative,
        verification="coupled",
    )  # fmt: skip
    ways = (EVERYTHING, PENALISED, SamplingParams(temperature=1.1, min_p=0.05, seed=3))

    def played(config: EngineConfig) -> tuple[dict[int, list[int]], Runner]:
        runner, model = make_runner(config, lambda _: None)
        assert isinstance(runner, Runner)
        sent: list[m.Message] = []
        service = Service(config, model, runner, sent.append)
        service.handle(m.Submit([RequestSpec(i, prompt(i, 9), 20, way, seed=i) for i, way in enumerate(ways, 1)]))
        while not service.idle:
            service.step()
        return tokens_of(sent), runner

    expected, _ = played(config)
    device = FakeDevice()
    monkeypatch.setattr("dsv4lab.engine.runner.device_api", lambda place: device)
    found, runner = played(config)
    assert found == expected
    assert 6 <= len(found[1]) < 20, "it stopped at one of many tokens, not before it was allowed to"
    assert len(found[2]) == len(found[3]) == 20
    assert runner.gpu is not None
    assert runner.gpu.graphs.replays > 10


def disturbed(config: EngineConfig) -> tuple[dict[int, list[int]], Runner]:
    """Plans change, a request goes in the middle, others choose on the host; three requests pass the bucket of 2."""
    runner, model = make_runner(config, lambda _: None)
    assert isinstance(runner, Runner)
    sent: list[m.Message] = []
    service = Service(config, model, runner, sent.append)
    service.handle(m.Submit([RequestSpec(1, prompt(1, 140), 30, GREEDY), RequestSpec(2, prompt(2, 9), 30, GREEDY)]))
    plans = ("off", "moe", "hip", "cuda+moe", "off", "moe")
    for number, plan in enumerate(plans):
        service.handle(m.SetPlan(number, resolve_plan(plan).to_json()))
        for _ in range(3):
            service.step()
        if number == 1:
            service.handle(m.Submit([RequestSpec(3, prompt(3, 30), 12, SAMPLED)]))
        if number == 3:
            service.handle(m.Abort(2))
            service.handle(m.Submit([RequestSpec(4, prompt(4, 20), 12, PENALISED)]))
    while not service.idle:
        service.step()
    return tokens_of(sent), runner


@pytest.mark.parametrize("speculative", ["mtp", "dspark"])
def test_plans_that_change_and_a_request_that_goes_leave_the_tokens_of_the_cpu_device(
    speculative: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(
        "tiny", streams="serial", max_running_requests=3, max_total_tokens=3072, speculative=speculative
    )
    expected, _ = disturbed(config)
    device = FakeDevice()
    monkeypatch.setattr("dsv4lab.engine.runner.device_api", lambda place: device)
    found, runner = disturbed(EngineConfig(**{**config.to_json(), "graph_max_bs": 2}))
    assert found == expected
    assert {request: len(tokens) for request, tokens in found.items() if request != 2} == {1: 30, 3: 12, 4: 12}
    assert 0 < len(found[2]) < 30, "it was aborted in the middle"
    status = runner.device_status()
    assert status is not None
    assert status["drafts"]["captures"] > 4
    assert status["drafts"]["eagerly"] > 0, "the batch of three"
    assert status["captures"] > status["drafts"]["captures"]
