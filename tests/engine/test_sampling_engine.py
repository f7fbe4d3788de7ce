"""Sampling through the engine loop: rows of one batch with parameters of their own, replays, log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import PRESETS
from dsv4lab.engine import messages as m
from dsv4lab.engine.logprobs import TokenLogprobs
from dsv4lab.engine.request import FinishReason, RequestSpec, SamplingParams
from dsv4lab.engine.service import Service
from tests.engine.fake_runner import FakeRunner

HOT = SamplingParams(temperature=1.0, top_k=50, top_p=0.95, seed=1)
MIXED = [
    SamplingParams(),
    HOT,
    SamplingParams(repetition_penalty=1.8, presence_penalty=1.0),
    replace(HOT, seed=7, frequency_penalty=1.5, min_p=0.01, logprobs=3),
    SamplingParams(temperature=0.5, seed=3, logprobs=0),
    SamplingParams(stop_token_ids=tuple(range(256)), min_new_tokens=6),
]


def specs() -> list[RequestSpec]:
    prompts = [tuple(np.random.default_rng(i).integers(20, 400, 10 + 61 * i).tolist()) for i in range(len(MIXED))]
    return [RequestSpec(i, p, 9, s, s.seed or 0) for i, (p, s) in enumerate(zip(prompts, MIXED, strict=True))]


def run(*requests: RequestSpec, **fields: Any) -> tuple[dict[int, list[int]], dict[int, list[TokenLogprobs]], Any]:
    sent: list[m.Message] = []
    small = {"max_running_requests": 4, "max_total_tokens": 4096, "chunked_prefill_size": 64}
    config = EngineConfig("tiny", **{**small, **fields})
    service = Service(config, PRESETS["tiny"], FakeRunner(PRESETS["tiny"], config), sent.append)
    service.handle(m.Submit(list(requests)))
    while not service.idle:
        service.step()
    tokens: dict[int, list[int]] = {r.request_id: [] for r in requests}
    logprobs: dict[int, list[TokenLogprobs]] = {r.request_id: [] for r in requests}
    reasons = {}
    for progress in (p for p in sent if isinstance(p, m.Progress)):
        progress = m.decode_from_worker(m.encode(progress))
        assert isinstance(progress, m.Progress)
        for place, (number, token) in enumerate(progress.tokens):
            tokens[number].append(token)
            logprobs[number] += [found for at, found in progress.logprobs if at == place]
        reasons |= {end.request_id: end.reason for end in progress.finished}
    return tokens, logprobs, reasons


def test_rows_with_different_parameters_do_not_meet() -> None:
    together, logprobs, reasons = run(*specs())
    for request in specs():
        tokens, own, _ = run(request, chunked_prefill_size=1000)
        assert tokens[request.request_id] == together[request.request_id]
        assert own[request.request_id] == logprobs[request.request_id]
    assert reasons[5] is FinishReason.STOP
    assert 6 < len(together[5]) <= 9
    assert all(token >= 256 for token in together[5][:6])


@pytest.mark.parametrize("number", range(len(MIXED)))
def test_a_replayed_request_goes_on_as_it_would_have(number: int) -> None:
    request = specs()[number]
    whole, logprobs, _ = run(request)
    for cut in (1, 4):
        tokens, own, _ = run(replace(request, generated=tuple(whole[number][:cut])))
        assert whole[number][:cut] + tokens[number] == whole[number]
        assert own[number] == logprobs[number][cut:]


def test_penalties_change_tokens_and_raw_logprobs_stay() -> None:
    request = specs()[2]
    plain, _, _ = run(replace(request, sampling=SamplingParams(), max_new_tokens=60))
    assert run(replace(request, max_new_tokens=60))[0] != plain
    asked = replace(request, sampling=replace(request.sampling, logprobs=64))
    _, logprobs, _ = run(asked)
    assert run(asked)[0] == run(request)[0]
    first = logprobs[2][0]
    _, raw, _ = run(replace(request, sampling=SamplingParams(logprobs=64)))
    assert first.top == raw[2][0].top
    assert first.top[0][1] > first.top[1][1] > first.top[-1][1]


def test_logprobs_come_with_their_tokens_and_only_where_asked_for() -> None:
    tokens, logprobs, _ = run(*specs())
    for number, params in enumerate(MIXED):
        if params.logprobs is None:
            assert logprobs[number] == []
            continue
        assert [found.token for found in logprobs[number]] == tokens[number]
        assert {len(found.top) for found in logprobs[number]} == {params.logprobs}
        assert all(found.logprob < 0 for found in logprobs[number])


def test_preempted_requests_keep_history_noise_and_logprobs() -> None:
    """Three requests on pages for two, so one is stopped and computed again; each gets what it gets alone."""
    prompts = [tuple(np.random.default_rng(i).integers(20, 400, 200).tolist()) for i in range(3)]
    requests = [RequestSpec(i, prompt, 200, replace(MIXED[3], seed=i), i) for i, prompt in enumerate(prompts)]
    together, logprobs, _ = run(*requests, max_total_tokens=768, chunked_prefill_size=300)
    for request in requests:
        tokens, own, _ = run(request, max_total_tokens=4096)
        assert together[request.request_id] == tokens[request.request_id]
        assert logprobs[request.request_id] == own[request.request_id]
