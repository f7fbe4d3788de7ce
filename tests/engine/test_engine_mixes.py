"""The whole engine without a model, under random mixes: arrivals, aborts, small pools, shared prefixes, mixed batches.

What the fake model says follows from all tokens of a request, read from its pages, so a request's tokens are known
without an engine: they must be those, whatever happened around it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4lab.config.presets import PRESETS
from dsv4lab.engine import messages as m
from dsv4lab.engine.request import FinishReason, RequestSpec, SamplingParams
from dsv4lab.engine.sampler import sample
from dsv4lab.errors import ConfigError
from tests.engine.conftest import OpenFake
from tests.engine.fake_runner import _logits
from tests.engine.test_engine_loop import Bench, prompt, spec

HOT = SamplingParams(temperature=1.0, top_k=50, seed=3)
COMMON = prompt(99, 520)


@lru_cache(maxsize=256)
def expected(tokens: tuple[int, ...], new: int, params: SamplingParams) -> list[int]:
    history = list(tokens)
    for index in range(new):
        row = _logits(history, PRESETS["tiny"].vocab_size)
        history.append(sample(row, params, params.seed or 0, index))
    return history[len(tokens) :]


def text(number: int, shared: int, own: int) -> tuple[int, ...]:
    return COMMON[:shared] + prompt(number % 3, own)


arrivals = st.lists(
    st.tuples(
        st.integers(0, 60),  # forwards before it comes
        st.sampled_from([0, 255, 256, 300, 512]),
        st.integers(1, 60),
        st.sampled_from([1, 5, 40, 120]),
        st.sampled_from([SamplingParams(), HOT]),
        st.sampled_from([None, None, None, 3]),  # aborted so many forwards later
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=40)
@given(
    arrivals,
    st.sampled_from([1024, 1280, 4096]),
    st.sampled_from([16, 100, 300, 512]),
    st.booleans(),
    st.sampled_from([None, 2, 4]),
    st.sampled_from(["on_demand", "on_demand", "full"]),
)
def test_every_request_gets_the_tokens_it_gets_alone(
    load: list[tuple[int, int, int, int, SamplingParams, int | None]],
    pool: int,
    chunk: int,
    mixed: bool,
    cache: int | None,
    reservation: str,
) -> None:
    fields = {"enable_prefix_cache": True, "prefix_cache_pages": cache} if cache else {}
    bench = Bench(
        max_total_tokens=pool,
        chunked_prefill_size=chunk,
        enable_mixed_chunk=mixed,
        page_reservation=reservation,
        **fields,
    )
    requests = {n: spec(n, text(n, a, b), new, params) for n, (_, a, b, new, params, _) in enumerate(load)}
    due = sorted((at, "submit", n) for n, (at, *_) in enumerate(load))
    due = sorted(due + [(at + gone, "abort", n) for n, (at, *_, gone) in enumerate(load) if gone is not None])
    play(bench, requests, due)
    for n, request in requests.items():
        reason, tokens = bench.end(n).reason, bench.tokens(n)
        truth = expected(request.prompt, request.max_new_tokens, request.sampling)
        assert reason is FinishReason.LENGTH or (load[n][5] is not None and reason is FinishReason.ABORT)
        assert tokens == truth if reason is FinishReason.LENGTH else tokens == truth[: len(tokens)]
    status = bench.ask(m.GetStatus).value
    kept = status["prefix_cache"]["pages"] if cache else 0
    assert (status["free_slots"], status["free_pages"] + kept) == (4, pool // 256)


def play(bench: Bench, requests: dict[int, RequestSpec], due: list[tuple[int, str, int]]) -> None:
    """Commands at their forwards; every owner is checked after each."""
    at, scheduler = 0, bench.service._scheduler
    while due or not bench.service.idle:
        while due and due[0][0] <= at:
            _, what, number = due.pop(0)
            bench.service.handle(m.Submit([requests[number]]) if what == "submit" else m.Abort(number))
        bench.service.step()
        scheduler.check()
        at += 1


def test_stopped_requests_go_on_with_the_same_tokens() -> None:
    """Three requests on pages for two: sampled ones draw what they would have drawn."""
    bench = Bench(max_total_tokens=768, chunked_prefill_size=300)
    requests = [spec(n, prompt(n, 200), 200, HOT if n % 2 else None) for n in range(3)]
    bench.submit(*requests)
    bench.run()
    for request in requests:
        assert bench.tokens(request.request_id) == expected(request.prompt, 200, request.sampling)
    assert bench.ask(m.GetStatus).value["preemptions"] >= 1


def test_a_stopped_request_goes_on_from_its_snapshot() -> None:
    """With the prefix cache, what it has to prefill again is less than a page: here nothing at all."""
    bench = Bench(max_total_tokens=1280, chunked_prefill_size=512, enable_prefix_cache=True)
    first, second = spec(1, prompt(1, 300), 300), spec(2, prompt(2, 300), 250)
    bench.submit(first, second)
    bench.run()
    status = bench.ask(m.GetStatus).value
    assert status["preemptions"] == 1
    assert (status["prefix_cache"]["hits"], status["prefix_cache"]["tokens_saved"]) == (1, 512)
    assert [tokens for mode, tokens, _ in bench.runner.forwards if mode == "prefill"] == [512, 88]
    assert bench.tokens(2) == expected(second.prompt, 250, second.sampling)
    assert bench.tokens(1) == expected(first.prompt, 300, first.sampling)


def test_the_status_tells_hits_and_what_they_saved() -> None:
    bench = Bench(enable_prefix_cache=True, chunked_prefill_size=512)
    for number, own in ((1, 10), (2, 20), (3, 30)):
        bench.submit(spec(number, text(number, 512, own), 3))
        bench.run()
    cache = bench.ask(m.GetStatus).value["prefix_cache"]
    assert (cache["queries"], cache["hits"], cache["tokens_saved"]) == (3, 2, 1024)
    assert (cache["pages"], cache["snapshots"], cache["snapshot_bytes"]) == (2, 2, 8 * (256 + 512))
    assert [tokens for mode, tokens, _ in bench.runner.forwards if mode == "prefill"] == [256, 256, 10, 20, 30]


def test_without_the_cache_nothing_is_kept() -> None:
    bench = Bench()
    bench.submit(spec(1, text(1, 512, 3), 3))
    status = bench.run().ask(m.GetStatus).value
    assert "prefix_cache" not in status
    assert status["free_pages"] == 16


def test_a_cache_too_small_for_one_snapshot_is_refused() -> None:
    with pytest.raises(ConfigError, match="prefix_cache_bytes = 1000: one snapshot of this engine takes"):
        Bench(enable_prefix_cache=True, prefix_cache_bytes=1000)


def test_mixed_steps_are_told_as_such() -> None:
    bench = Bench(enable_mixed_chunk=True, chunked_prefill_size=32)
    bench.submit(spec(1, prompt(1, 10), 20))
    bench.service.step()
    bench.submit(spec(2, prompt(2, 50), 5))
    bench.service.handle(m.Record(5, 3))
    bench.run()
    (recorded,) = bench.of(m.Recorded)
    assert [(s.mode, s.tokens, s.requests) for s in recorded.steps] == [
        ("mixed", 32, 2),
        ("mixed", 20, 2),
        ("decode", 2, 2),
    ]
    assert np.array(bench.tokens(1)).tolist() == expected(prompt(1, 10), 20, SamplingParams())


def test_a_client_sees_hits_and_shared_pages(fake: OpenFake) -> None:
    client = fake(enable_prefix_cache=True, enable_mixed_chunk=True, chunked_prefill_size=512, max_total_tokens=4096)
    first = client.generate(list(text(1, 512, 10)), max_new_tokens=4)
    second = client.generate(list(text(2, 512, 20)), max_new_tokens=4)
    assert first.tokens == [expected(text(1, 512, 10), 4, SamplingParams())]
    assert second.tokens == [expected(text(2, 512, 20), 4, SamplingParams())]
    status = client.status()
    assert (status["prefix_cache"]["hits"], status["prefix_cache"]["tokens_saved"]) == (1, 512)
    assert status["preemptions"] == 0
    snapshot = client.pool_snapshot()
    assert snapshot.cached_pages == (1, 2)
    assert not set(snapshot.cached_pages) & set(snapshot.free_pages)
    assert len(snapshot.free_pages) == 14


def test_a_worker_that_cannot_hold_a_snapshot_says_so(fake: OpenFake) -> None:
    with pytest.raises(ConfigError, match="prefix_cache_bytes = 1000: one snapshot of this engine takes"):
        fake(enable_prefix_cache=True, prefix_cache_bytes=1000)
