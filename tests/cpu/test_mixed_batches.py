"""The whole engine with the tiny model: tokens and logits do not depend on what a request shares its forwards with.

Every request is compared with itself alone in an engine without mixed forwards, cache or want of pages: same tokens,
fp32 logits within 1e-5 (of their size, above 1). Pools are poisoned: a read of a row that nobody owns gives NaN, which
ends the request.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.model import ModelConfig
from dsv4lab.config.presets import PRESETS
from dsv4lab.engine import factory
from dsv4lab.engine import messages as m
from dsv4lab.engine.loop import EngineLoop
from dsv4lab.engine.protocol import ForwardResult, ModelRunner
from dsv4lab.engine.request import FinishReason, RequestSpec, SamplingParams
from dsv4lab.engine.scheduler import Scheduler
from dsv4lab.engine.scheduling import make_scheduler
from dsv4lab.engine.service import limits_of
from dsv4lab.engine.step import Step

SELECTING = PRESETS["tiny"]
MODEL = replace(SELECTING, index_topk=256)  # takes every entry: a near tie in a selection is a jump of the logits
GREEDY, HOT = SamplingParams(), SamplingParams(temperature=0.8, top_k=40, seed=5)
TOLERANCE = 1e-5
RUNNERS: dict[tuple[int, str, int, int], ModelRunner] = {}


def runner_of(config: EngineConfig, model: ModelConfig) -> ModelRunner:
    """Runners are reused: every slot and page of theirs is free, and poisoned, between two tests."""
    key = (config.max_total_tokens, config.speculative, config.draft_tokens or 0, model.index_topk)
    if key not in RUNNERS:
        with mock.patch.object(factory, "model_config", return_value=model):
            RUNNERS[key], _ = factory.make_runner(replace(config, chunked_prefill_size=512), lambda _: None)
    return RUNNERS[key]


class Recorded:
    """An engine in this process, and by request the logits that each of its tokens was chosen from."""

    def __init__(self, model: ModelConfig = MODEL, **fields: Any) -> None:
        base = {"streams": "serial", "max_running_requests": 4, "max_total_tokens": 2048, "debug_poison": True}
        config = EngineConfig("tiny", **{**base, **fields})
        self.runner = runner_of(config, model)
        limits = limits_of(config, model, self.runner)
        self.scheduler: Scheduler = make_scheduler(config, model, self.runner, limits.lookahead)
        self.loop = EngineLoop(self.runner, self.scheduler, limits, self.take, listeners=(self,), debug=True)
        self.tokens: dict[int, list[int]] = {}
        self.rows: dict[int, list[NDArray[np.float32]]] = {}
        self.ends: dict[int, m.Finished] = {}
        self.modes: list[str] = []

    def take(self, progress: m.Progress) -> None:
        for number, token in progress.tokens:
            self.tokens.setdefault(number, []).append(token)
        self.ends.update({end.request_id: end for end in progress.finished})

    def on_step(self, step: Step, result: ForwardResult, start_ns: int, dur_ns: int) -> None:
        self.modes.append(step.mode)
        rows, at = np.asarray(result.logits), 0
        for chunk in step.chunks:
            wide = chunk.width if chunk.decodes else 1
            number = chunk.spec.request_id
            if chunk.samples:
                got = len(self.tokens.get(number, ())) - chunk.generated
                self.rows.setdefault(number, []).extend(rows[at : at + max(got, 0)].copy())
            at += wide
        assert at == len(rows)

    def on_idle(self) -> None:
        self.idle_again = True

    def play(self, requests: list[RequestSpec], at: list[int], aborts: dict[int, int] | None = None) -> Recorded:
        """Submit each request before its forward ``at``, and abort those in ``aborts``."""
        forwards, waiting = 0, sorted(zip(at, requests, strict=True), key=lambda pair: (pair[0], pair[1].request_id))
        gone = dict(aborts or {})
        while waiting or not self.loop.idle:
            while waiting and waiting[0][0] <= forwards:
                self.loop.submit(waiting.pop(0)[1])
            for number in [n for n, when in gone.items() if when <= forwards]:
                del gone[number]
                self.loop.abort(number)
            self.loop.step()
            self.scheduler.check()
            forwards += 1
        allocator = self.scheduler.allocator
        assert allocator.free_slots == 4
        assert allocator.free_pages + allocator.idle_pages == self.runner.geometry.pages - 1
        if self.scheduler.cache is not None:  # leave the runner as it was
            self.scheduler.cache.evict(allocator.idle_pages)
            self.runner.pool.release(None, self.scheduler.cache.take_freed())
        return self


def text(seed: int, n: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(2, MODEL.vocab_size, n).tolist())


COMMON = text(100, 512)


def request(number: int, shared: int, own: int, new: int, params: SamplingParams = GREEDY) -> RequestSpec:
    return RequestSpec(number, (*COMMON[:shared], *text(number, own)), new, params, params.seed or 0)


@cache
def alone(
    spec: RequestSpec, speculative: str = "off", model: ModelConfig = MODEL
) -> tuple[list[int], list[NDArray[np.float32]]]:
    engine = Recorded(model, speculative=speculative).play([spec], [0])
    return engine.tokens[spec.request_id], engine.rows[spec.request_id]


def same_as_alone(engine: Recorded, spec: RequestSpec, speculative: str = "off") -> None:
    """All tokens if the request came to its end, else those it got."""
    number = spec.request_id
    end, tokens, rows = engine.ends[number], engine.tokens.get(number, []), engine.rows.get(number, [])
    true_tokens, true_rows = alone(spec, speculative)
    assert end.reason in (FinishReason.LENGTH, FinishReason.ABORT), end.text
    assert len(tokens) == len(true_tokens) or end.reason is FinishReason.ABORT
    assert tokens == true_tokens[: len(tokens)]
    assert len(rows) >= len(tokens)
    for row, true in zip(rows, true_rows, strict=False):
        assert (np.abs(row - true) <= TOLERANCE * np.maximum(1, np.abs(true))).all()


def test_a_mixed_forward_gives_everybody_the_logits_of_their_own_forward() -> None:
    """Prompts arrive while others decode, across chunk, 4-, 128- and page boundaries; most forwards are mixed."""
    load = [request(1, 0, 120, 40), request(2, 0, 250, 30), request(3, 0, 3, 60, HOT), request(4, 0, 500, 12)]
    engine = Recorded(enable_mixed_chunk=True, chunked_prefill_size=48).play(load, [0, 2, 5, 9])
    assert engine.modes.count("mixed") > 8
    for spec in load:
        same_as_alone(engine, spec)


@pytest.mark.parametrize("speculative", ["mtp", "dspark"])
def test_greedy_speculation_in_mixed_forwards_equals_plain_greedy(speculative: str) -> None:
    """Verify steps beside prefill chunks, entries selected: the tokens are those of an engine without a drafter."""
    load = [request(1, 0, 120, 40), request(2, 0, 250, 30), request(3, 0, 3, 40), request(4, 0, 300, 6)]
    engine = Recorded(SELECTING, enable_mixed_chunk=True, chunked_prefill_size=48, speculative=speculative)
    engine.play(load, [0, 2, 5, 9])
    assert engine.modes.count("mixed") > 8
    for spec in load:
        assert engine.tokens[spec.request_id] == alone(spec, model=SELECTING)[0]


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [1, 3, 5, 6])
def test_512_tokens_with_a_drafter_while_prompts_come_and_go(drafts: int) -> None:
    """Verify widths 2, 4, 6 and 7; drafts of random weights are mostly rejected, beside chunks of five prompts."""
    load = [request(1, 0, 120, 520), *(request(n, 0, 60 * n, 30) for n in range(2, 7))]
    engine = Recorded(
        SELECTING, enable_mixed_chunk=True, chunked_prefill_size=48, speculative="mtp", draft_tokens=drafts
    )
    engine.play(load, [0, 10, 60, 130, 220, 320])
    assert engine.modes.count("mixed") > 15
    for spec in load:
        assert engine.tokens[spec.request_id] == alone(spec, model=SELECTING)[0]


@pytest.mark.parametrize("speculative", ["off", "mtp"])
def test_a_stopped_request_gets_the_tokens_of_one_that_was_not(speculative: str) -> None:
    """Two long requests on pages for one and a half; the sampled one draws from the same noise in both its lives."""
    load = [request(1, 0, 250, 40), request(2, 0, 246, 30, HOT)]
    engine = Recorded(max_total_tokens=768, speculative=speculative).play(load, [0, 0])
    assert engine.scheduler.preemptions >= 1
    for spec in load:
        same_as_alone(engine, spec, speculative)


@pytest.mark.parametrize("speculative", ["off", "mtp", "dspark"])
def test_prefix_sharing_preemption_and_mixed_forwards_together(speculative: str) -> None:
    load = [
        request(1, 256, 60, 60, HOT),
        request(2, 512, 20, 15),
        request(3, 256, 200, 60),
        request(4, 512, 40, 5, HOT),
    ]
    engine = Recorded(
        max_total_tokens=1280,
        enable_mixed_chunk=True,
        enable_prefix_cache=True,
        chunked_prefill_size=100,
        speculative=speculative,
    ).play(load, [0, 14, 20, 60])
    cache = engine.scheduler.cache
    assert cache is not None
    assert cache.stats.hits >= 2
    for spec in load:
        same_as_alone(engine, spec, speculative)


arrivals = st.tuples(
    st.integers(0, 50),
    st.sampled_from([0, 256, 512]),
    st.sampled_from([1, 3, 60, 130]),
    st.sampled_from([1, 20, 60]),
    st.sampled_from([GREEDY, HOT]),
)
mixes = given(
    st.lists(arrivals, min_size=2, max_size=4),
    st.sampled_from([1024, 2048]),
    st.sampled_from([40, 200]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["off", "off", "mtp"]),
    st.dictionaries(st.integers(0, 3), st.integers(5, 60), max_size=1),
)


def everybody_gets_what_they_get_alone(
    load: list[tuple[int, int, int, int, SamplingParams]],
    pool: int,
    chunk: int,
    mixed: bool,
    prefix_cache: bool,
    speculative: str,
    aborts: dict[int, int],
) -> None:
    requests = [request(n, shared, own, new, params) for n, (_, shared, own, new, params) in enumerate(load)]
    engine = Recorded(
        max_total_tokens=pool,
        chunked_prefill_size=chunk,
        enable_mixed_chunk=mixed,
        enable_prefix_cache=prefix_cache,
        speculative=speculative,
    ).play(requests, [at for at, *_ in load], {n: at for n, at in aborts.items() if n < len(load)})
    for spec in requests:
        same_as_alone(engine, spec, speculative)


NO_SHRINKING = [Phase.explicit, Phase.generate]  # an example takes a second
test_any_mix_gives_everybody_what_they_get_alone = settings(max_examples=4, phases=NO_SHRINKING)(
    mixes(everybody_gets_what_they_get_alone)
)
test_many_mixes_give_everybody_what_they_get_alone = pytest.mark.slow(
    pytest.mark.timeout(3600)(settings(max_examples=60, phases=NO_SHRINKING)(mixes(everybody_gets_what_they_get_alone)))
)


def test_a_draft_block_may_reach_past_the_pages_of_its_request() -> None:
    """Two drafts of a block of six: pages are there for the drafts, and the block's end lies behind them."""
    spec = request(1, 0, 240, 30)
    engine = Recorded(speculative="dspark", draft_tokens=2).play([spec], [0])
    assert engine.ends[1].reason is FinishReason.LENGTH, engine.ends[1].text
    assert engine.tokens[1] == alone(spec)[0]
