"""The whole engine with the real model: ``lab.open("tiny")`` end to end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import dsv4lab as lab
from dsv4lab.engine.client import EngineClient
from dsv4lab.engine.request import FinishReason
from dsv4lab.errors import PlanError, WorkerDiedError
from dsv4lab.timeline.timeline import Timeline

WAIT_S = 120.0
PROMPTS = [np.random.default_rng(i).integers(2, 500, length).tolist() for i, length in enumerate((3, 130, 260, 7))]
HOT = lab.SamplingParams(temperature=1.0, top_k=40, top_p=0.95, seed=8)


@pytest.fixture(scope="module")
def client() -> Iterator[EngineClient]:
    with lab.open("tiny", plan="hip", hw_queues=4, chunked_prefill_size=128) as opened:
        yield opened


@pytest.fixture(scope="module")
def greedy(client: EngineClient) -> list[list[int]]:
    """What the four prompts give, greedily, together."""
    return client.generate(PROMPTS, max_new_tokens=12).tokens


def test_batched_equals_alone(client: EngineClient, greedy: list[list[int]]) -> None:
    assert [client.generate(p, max_new_tokens=12).tokens[0] for p in PROMPTS] == greedy
    together = client.generate(PROMPTS, max_new_tokens=12, sampling=HOT).tokens
    assert [client.generate(p, max_new_tokens=12, sampling=HOT).tokens[0] for p in PROMPTS] == together
    assert together != greedy


def test_every_plan_gives_the_same_tokens_without_a_restart(client: EngineClient, greedy: list[list[int]]) -> None:
    pid = client.pid
    mine = lab.OverlapPlan("mine", (lab.Rule("moe.shared", "side0"), lab.Rule("compressor.*", "side1", layers="csa")))
    for plan in ("off", "cuda", mine, "hip"):
        client.set_plan(plan)
        assert client.generate(PROMPTS, max_new_tokens=12).tokens == greedy
    for side_streams in (0, 1, None):
        client.set_side_streams(side_streams)
        assert client.generate(PROMPTS, max_new_tokens=12).tokens == greedy
    client.set_queue_policy("refcount")
    assert client.generate(PROMPTS, max_new_tokens=12).tokens == greedy
    client.set_queue_policy("round_robin")
    assert client.pid == pid


def test_an_unknown_op_is_refused_with_the_ops_there_are(client: EngineClient) -> None:
    with pytest.raises(PlanError, match=r"no op matches 'compresor.*'; the ops are .*compressor"):
        client.set_plan(lab.OverlapPlan("typo", (lab.Rule("compresor.*", "side0"),)))
    assert client.plan.name == "hip"


def test_tokens_stream_and_an_abort_stops_them(client: EngineClient, greedy: list[list[int]]) -> None:
    handle = client.submit(PROMPTS[1], max_new_tokens=2000)
    stream = iter(handle)
    assert [next(stream) for _ in range(12)] == greedy[1]
    (owner,) = client.pool_snapshot().requests
    assert (owner.request_id, owner.tokens >= 141) == (handle.request_id, True)
    reads = client.query_reads(handle.request_id, 130, 1)
    assert (reads.ratio, len(reads.window_rows)) == (4, client.model_config.sliding_window)
    chosen = client.query_reads(handle.request_id, None, 1)
    assert len(chosen.compressed_rows) == client.model_config.index_topk < (chosen.position + 1) // 4
    assert len(set(chosen.compressed_rows)) == len(chosen.compressed_rows)
    assert set(chosen.compressed_rows) <= set(client.query_reads(handle.request_id, chosen.position, 1).compressed_rows)
    handle.abort()
    assert handle.result(WAIT_S)[:12] == greedy[1]
    assert handle.finish_reason is FinishReason.ABORT
    assert client.pool_snapshot().requests == ()


def test_a_profile_shows_the_program_that_ran(client: EngineClient) -> None:
    profile = client.profile(steps=3, concurrency=2, prompt_tokens=140)
    assert [(s.mode, s.tokens, s.plan, s.hw_queues) for s in profile.steps] == [("decode", 2, "hip", 4)] * 3
    timeline = profile.timeline
    assert timeline.main_stream == "main"
    assert {"main", "side0", "side1"} <= set(timeline.streams)
    assert sorted(set(timeline.step.tolist())) == [s.step for s in profile.steps]
    assert set(timeline.layer.tolist()) == {-1, *range(client.model_config.num_hidden_layers)}
    assert timeline.meta["manifest"]["settings"]["plan"] == "hip"
    kernels = int(timeline.busy_mask.sum())
    assert kernels == 3 * len(profile.program.ops)
    for step in profile.steps:
        busy = timeline.select(timeline.step == step.step).stream_busy(main="main")
        assert {s.stream: s.busy_ns for s in busy.streams} == step.busy_ns
        assert busy.hidden_ns == step.hidden_ns
    assert client.program("decode", 2) == profile.program
    assert {op["name"] for op in client.ops()} >= {"embed", "moe.shared"}


def test_live_pictures_while_a_load_decodes(client: EngineClient) -> None:
    seen: list[Timeline] = []
    enough = threading.Event()
    stop = client.on_step(lambda _records, timeline: (seen.append(timeline), enough.set()))
    client.start_load(2, prompt_tokens=100, max_new_tokens=20)
    assert enough.wait(WAIT_S)
    client.stop_load()
    stop()
    assert len(seen[0]) > 0


def test_other_queue_counts_need_a_new_worker_and_give_the_same_tokens(
    client: EngineClient, greedy: list[list[int]]
) -> None:
    pid = client.pid
    handle = client.submit(PROMPTS[2], max_new_tokens=60)
    next(iter(handle))
    client.set_hw_queues(1)
    assert client.pid != pid
    assert handle.result(WAIT_S)[:12] == greedy[2]
    assert len(handle.tokens) == 60
    assert client.generate(PROMPTS, max_new_tokens=12).tokens == greedy
    assert client.profile(steps=2).timeline.queues == ("q0",)


def test_a_killed_worker_is_an_error_and_one_call_brings_it_back(client: EngineClient, greedy: list[list[int]]) -> None:
    handle = client.submit(PROMPTS[2], max_new_tokens=3000)
    next(iter(handle))
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        handle.result(WAIT_S)
    client.restart()
    assert client.generate(PROMPTS, max_new_tokens=12).tokens == greedy


def test_a_second_client_runs_beside_it_with_poison(client: EngineClient, greedy: list[list[int]]) -> None:
    with lab.open(
        "tiny", plan="cuda", hw_queues=2, streams="serial", chunked_prefill_size=64, debug_poison=True
    ) as other:
        assert other.pid != client.pid
        handles = [c.submit(PROMPTS[1], max_new_tokens=12) for c in (client, other)]
        assert [h.result(WAIT_S) for h in handles] == [greedy[1]] * 2
        for _ in range(2):  # slots and pages that have been used before
            assert other.generate(PROMPTS, max_new_tokens=12).tokens == greedy
