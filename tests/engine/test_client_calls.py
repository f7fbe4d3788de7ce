"""A living client over a worker without a model: everything that one can ask of it."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from dsv4lab.engine.client import EngineClient
from dsv4lab.engine.load import LoadShape
from dsv4lab.engine.request import FinishReason, SamplingParams
from dsv4lab.errors import ConfigError, EngineError, PlanError, PoolError, RequestError, UsageError
from dsv4lab.overlap.plan import OverlapPlan, Rule
from dsv4lab.timeline.records import StepRecord
from dsv4lab.timeline.timeline import Timeline
from tests.engine.fake_runner import RAISE

WAIT_S = 60.0
HOT = SamplingParams(temperature=1.0, top_p=0.9, seed=3)


def test_it_tells_what_runs(client: EngineClient) -> None:
    assert client.alive
    assert client.model_config.name == "tiny"
    assert client.manifest.preset == "tiny"
    assert (client.plan.name, client.hw_queues, client.side_streams) == ("off", 4, None)
    status = client.status()
    assert (status["alive"], status["error"], status["in_flight"], status["running"]) == (True, None, 0, 0)
    assert f"pid {client.pid}" in repr(client)
    assert client.ops()[0]["queues"] == "4"


@pytest.mark.parametrize("sampling", [SamplingParams(), HOT], ids=["greedy", "sampled"])
def test_batched_equals_alone(client: EngineClient, sampling: SamplingParams) -> None:
    prompts = [list(range(20, 30 + 7 * i)) for i in range(6)]
    together = client.generate(prompts, max_new_tokens=10, sampling=sampling)
    alone = [client.generate(p, max_new_tokens=10, sampling=sampling).tokens[0] for p in prompts]
    assert together.tokens == alone
    assert {len(row) for row in alone} == {10}


def test_requests_without_a_seed_differ_and_one_seed_each_is_kept(client: EngineClient) -> None:
    hot = SamplingParams(temperature=1.0)
    first, second = client.generate([[30, 31]] * 2, sampling=hot).tokens
    assert first != second
    seeded = [replace(hot, seed=s) for s in (1, 2, 1)]
    a, b, c = client.generate([[30, 31]] * 3, sampling=seeded).tokens
    assert a == c != b


def test_results_have_latencies(client: EngineClient) -> None:
    result = client.generate([[30, 31], [40]], max_new_tokens=5)
    assert [r.tokens for r in result.requests] == [5, 5]
    assert all(r.ttft_ms is not None and r.tpot_ms is not None and r.ttft_ms > 0 for r in result.requests)
    assert result.ttft_ms is not None
    assert result.ttft_ms == np.median([r.ttft_ms for r in result.requests])
    assert result.tokens_per_s == pytest.approx(10 / result.wall_s)
    single = client.generate([30], max_new_tokens=1)
    assert (single.tpot_ms, single.requests[0].tpot_ms) == (None, None)


def test_tokens_stream_as_they_come(client: EngineClient) -> None:
    seen: list[tuple[int, int]] = []
    result = client.generate([[30], [31]], max_new_tokens=6, on_token=lambda i, token: seen.append((i, token)))
    assert [token for i, token in seen if i == 1] == result.tokens[1]
    handle = client.submit([30], max_new_tokens=6)
    assert list(handle) == result.tokens[0]
    assert list(handle) == handle.result() == handle.tokens
    assert (handle.done, handle.finish_reason, handle.stats.tokens) == (True, FinishReason.LENGTH, 6)


def test_a_stop_token_ends_a_request(client: EngineClient) -> None:
    row = client.generate([30], max_new_tokens=6).tokens[0]
    result = client.generate([30], max_new_tokens=6, sampling=SamplingParams(stop_token_ids=(row[2],)))
    assert result.tokens[0] == row[:3]
    assert result.requests[0].finish_reason is FinishReason.STOP


def test_an_abort_keeps_the_tokens_so_far(client: EngineClient) -> None:
    handle = client.submit([33], max_new_tokens=15_000)
    tokens = iter(handle)
    first = [next(tokens) for _ in range(3)]
    handle.abort()
    assert handle.result(WAIT_S)[:3] == first
    assert handle.finish_reason is FinishReason.ABORT
    assert len(handle.tokens) < 15_000
    handle.abort()
    assert client.status()["free_slots"] == 8


def test_requests_that_cannot_run_are_refused_at_once(client: EngineClient) -> None:
    with pytest.raises(RequestError, match=r"prompt\[1\] is 100000: token ids are integers from 0 to"):
        client.generate([5, 100_000])
    with pytest.raises(RequestError, match="prompt is empty"):
        client.generate([])
    with pytest.raises(RequestError, match="together at most 16384"):
        client.generate([5] * 20_000)
    with pytest.raises(RequestError, match="prompt 0 is 5: it takes a text or a sequence of token ids"):
        client.generate([5, "hello"])
    with pytest.raises(UsageError, match="sampling has 1 entries for 2 prompts"):
        client.generate([[5], [6]], sampling=[SamplingParams()])
    with pytest.raises(UsageError, match="max_new_tokens"):
        client.submit([5], max_new_tokens=1.5)  # type: ignore[arg-type]
    assert client.status()["in_flight"] == 0


def test_a_failed_request_raises_and_the_engine_goes_on(client: EngineClient) -> None:
    with pytest.raises(EngineError, match="RuntimeError: planted failure"):
        client.generate([[30, 31], [RAISE, 5]], max_new_tokens=2000)
    assert len(client.generate([30], max_new_tokens=4).tokens[0]) == 4
    assert client.status()["in_flight"] == 0


def test_an_interrupt_aborts_what_it_leaves(client: EngineClient) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        for _ in range(20):  # wherever the interrupt finds it
            with pytest.raises(KeyboardInterrupt):
                client.generate([[34], [35]], max_new_tokens=15_000, on_token=_interrupt_once())
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)
    client.submit([36], max_new_tokens=1).result(WAIT_S)
    status = client.status()
    assert (status["running"], status["in_flight"]) == (0, 0)


def _interrupt_once() -> Callable[[int, int], None]:
    done: list[int] = []

    def callback(_place: int, _token: int) -> None:
        if not done:
            done.append(1)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    return callback


def test_exceptions_in_callbacks_are_reported_and_harm_nothing(
    client: EngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_place: int, _token: int) -> None:
        raise ValueError("planted in a callback")

    with caplog.at_level(logging.ERROR):
        result = client.generate([30], max_new_tokens=3, on_token=broken)
    assert len(result.tokens[0]) == 3
    assert "planted in a callback" in str(client.callback_errors[-1])
    assert caplog.text.count("ValueError: planted in a callback") == 3


def test_callbacks_may_call_the_client(client: EngineClient) -> None:
    seen: list[Any] = []
    client.generate([30], max_new_tokens=1, on_token=lambda *_: seen.append(client.status()["alive"]))
    assert seen == [True]


def test_many_threads_at_once(client: EngineClient) -> None:
    expected = {n: client.generate([n], max_new_tokens=12).tokens for n in range(20, 30)}
    got: dict[int, list[list[int]]] = {}

    def run(number: int) -> None:
        got[number] = client.generate([number], max_new_tokens=12).tokens

    threads = [threading.Thread(target=run, args=(n,)) for n in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert got == expected


def test_plan_side_streams_and_policy_change_live(client: EngineClient) -> None:
    pid = client.pid
    client.set_plan("hip")
    assert (client.plan.name, client.program().plan) == ("hip", "hip")
    client.set_side_streams(1)
    assert (client.side_streams, client.program().plan) == (1, "hip/1")
    mine = OverlapPlan("mine", (Rule("work", "side0"),))
    client.set_plan(mine)
    assert (client.plan, client.program("prefill", 64).plan) == (mine, "mine")
    client.set_queue_policy("refcount")
    assert client.status()["queue_policy"] == "refcount"
    with pytest.raises(PlanError, match="unknown overlap plan 'hop'"):
        client.set_plan("hop")
    with pytest.raises(PlanError, match="no op matches 'nonsense'"):
        client.set_plan(OverlapPlan("bad", (Rule("nonsense", "side0"),)))
    with pytest.raises(ConfigError, match="queue_policy"):
        client.set_queue_policy("alphabetical")
    assert (client.plan, client.config.queue_policy) == (mine, "refcount")
    client.set_side_streams(None)
    client.set_queue_policy("round_robin")
    client.set_plan("off")
    assert client.pid == pid


def test_a_profile_of_requests_in_flight(client: EngineClient) -> None:
    handle = client.submit([37], max_new_tokens=15_000)
    next(iter(handle))
    profile = client.profile(steps=7)
    handle.abort()
    handle.result(WAIT_S)
    assert [s.mode for s in profile.steps] == ["decode"] * 7
    assert len(set(profile.timeline.step.tolist())) == 7
    assert profile.timeline.main_stream == "main"
    assert profile.program.streams[0] == "main"
    assert profile.timeline.stream_busy().main_busy_ns > 0


def test_a_profile_of_a_load_of_its_own(client: EngineClient) -> None:
    profile = client.profile(steps=5, concurrency=3, prompt_tokens=50)
    assert [(s.mode, s.requests) for s in profile.steps] == [("decode", 3)] * 5
    assert len(client.profile(steps=4, prompt_tokens=20).steps) == 4
    assert client.status()["in_flight"] == 0
    with pytest.raises(UsageError, match="steps is 0"):
        client.profile(steps=0)
    with pytest.raises(UsageError, match="max_running_requests=9"):
        client.profile(concurrency=9)


def test_a_load_is_the_same_at_every_concurrency(client: EngineClient) -> None:
    four = client.load(4, 30, 6, 1)
    two = client.load(2, 30, 6, 1, profile=True)
    assert four.tokens[:2] == two.tokens
    assert four.timeline is None
    assert two.timeline is not None
    assert max(two.timeline.step) - min(two.timeline.step) == 5
    with pytest.raises(UsageError, match="max_total_tokens"):
        client.load(8, 3000, 100)


def test_a_continuous_load_shows_its_steps_until_it_is_stopped(client: EngineClient) -> None:
    updates: list[tuple[tuple[StepRecord, ...], Timeline]] = []
    enough = threading.Event()

    def watch(records: tuple[StepRecord, ...], timeline: Timeline) -> None:
        updates.append((records, timeline))
        if len(updates) >= 3:
            enough.set()

    stop_watching = client.on_step(watch)
    client.start_load(2, prompt_tokens=20, max_new_tokens=40)
    assert enough.wait(WAIT_S)
    assert len(client.pool_snapshot().requests) <= 2
    client.start_load(3, prompt_tokens=20, max_new_tokens=40)
    assert client.load_running == LoadShape(3, 20, 40, 0)
    client.stop_load()
    assert client.load_running is None
    stop_watching()
    stop_watching()
    assert client.status()["in_flight"] == 0
    steps = [record.step for records, _ in updates for record in records]
    assert steps == sorted(set(steps))
    assert all(len(timeline) > 0 for _, timeline in updates)
    client.stop_load()


def test_changes_are_told_whoever_makes_them(client: EngineClient) -> None:
    told: SimpleQueue[None] = SimpleQueue()
    stop = client.on_change(lambda: told.put(None))
    for change in (
        lambda: client.set_plan("off"),
        lambda: client.set_side_streams(1),
        lambda: client.set_queue_policy("refcount"),
        lambda: client.start_load(1, prompt_tokens=5, max_new_tokens=5),
        client.stop_load,
    ):
        change()
        told.get(timeout=WAIT_S)
    stop()
    stop()


def test_a_program_of_a_plan_that_is_not_in_force(client: EngineClient) -> None:
    mine = OverlapPlan("other", (Rule("work", "side0"),))
    assert client.program("decode", 2, mine).plan == "other"
    assert client.program("decode", 2).plan == client.plan.name != "other"
    with pytest.raises(PlanError, match="unknown overlap plan"):
        client.program(plan="no-such")


def test_the_pool_is_shown_with_its_owners(client: EngineClient) -> None:
    handle = client.submit(list(range(20, 320)), max_new_tokens=15_000)
    next(iter(handle))
    (owner,) = client.pool_snapshot().requests
    assert owner.request_id == handle.request_id
    assert owner.tokens >= 300
    reads = client.query_reads(handle.request_id, 299, 2)
    assert (reads.ratio, len(reads.window_rows), len(reads.compressed_rows)) == (128, 128, 2)
    handle.abort()
    handle.result(WAIT_S)
    with pytest.raises(RequestError, match="not running"):
        client.query_reads(handle.request_id, 0, 0)
    with pytest.raises(UsageError, match="position is 'x'"):
        client.query_reads(1, "x", 0)  # type: ignore[arg-type]


def test_programs_are_bounded_by_what_can_run(client: EngineClient) -> None:
    with pytest.raises(UsageError, match="takes 1 to 8"):
        client.program("decode", 9)
    with pytest.raises(UsageError, match="takes 1 to 64"):
        client.program("prefill", 65)
    with pytest.raises(UsageError, match="takes prefill or decode"):
        client.program("verify")  # type: ignore[arg-type]


def test_a_bad_question_about_a_running_request_is_its_own_error(client: EngineClient) -> None:
    handle = client.submit([38], max_new_tokens=15_000)
    next(iter(handle))
    with pytest.raises(PoolError, match="layer 99"):
        client.query_reads(handle.request_id, 0, 99)
    handle.abort()
    handle.result(WAIT_S)
