"""Engines of two processes each: the tokens of one process, timelines of all ranks, and an end that is told at once.

A pair takes seconds to start, so each test does all that one pair is needed for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsv4lab as lab
from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.client import EngineClient
from dsv4lab.engine.prompts import synthetic
from dsv4lab.engine.runner import Runner
from dsv4lab.engine.scheduling import snapshot_bytes
from dsv4lab.engine.seat import check
from dsv4lab.errors import ConfigError, LabError, RankDiedError, WorkerDiedError
from dsv4lab.kv.memory import plan_for_engine
from dsv4lab.kv.metadata import BatchItem
from dsv4lab.trace.api import load_trace
from dsv4lab.trace.collectives import arrival_skew
from tests.engine.conftest import ROOT, worker_path

WAIT_S = 120.0
Alone = Callable[[list[int], int], list[int]]
NEW = 6
PROMPTS = [np.random.default_rng(i).integers(2, 500, length).tolist() for i, length in enumerate((3, 130, 70))]
LONG = list(range(2, 500)) * 8
SCATTERED = lab.OverlapPlan(
    "scattered", (lab.Rule("moe.all_reduce", "side0"), lab.Rule("attn.all_reduce", "side1", layers="csa"))
)


@pytest.fixture(scope="module")
def alone() -> Alone:
    """What one process gives, greedily."""
    model = preset("tiny")
    config = EngineConfig("tiny", streams="serial", max_total_tokens=1024, max_running_requests=1)
    runner = Runner(model, random_weights(model, 0), config)

    def generate(prompt: list[int], new: int) -> list[int]:
        runner.reset_slot(1)
        out: list[int] = []
        item = BatchItem(1, (1, 2, 3), 0, tuple(prompt))
        while len(out) < new:
            logits = runner.forward([item], "decode" if out else "prefill").logits
            out.append(int(logits[0].argmax()))
            item = BatchItem(1, (1, 2, 3), len(prompt) + len(out) - 1, (out[-1],))
        return out

    return generate


def children(pid: int) -> list[int]:
    """Of all threads of process ``pid``."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def others(client: EngineClient) -> list[int]:
    """Process ids of the ranks beside the worker."""
    assert client.pid is not None
    found = children(client.pid)
    assert len(found) == client.config.world_size - 1
    return found


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def is_told(call: Callable[[], Any]) -> None:
    with pytest.raises(RankDiedError, match=r"^rank 1 of 2 ended: killed by signal 9 \(SIGKILL\)"):
        call()


def test_two_ranks_of_one_group(alone: Alone, tmp_path: Path) -> None:
    expected = [alone(prompt, NEW) for prompt in PROMPTS]
    with lab.open("tiny", tp_size=2, plan="hip", hw_queues=3, chunked_prefill_size=64) as client:
        prints = set()
        for plan in ("hip", "off", "cuda+moe", SCATTERED):
            client.set_plan(plan)
            result = client.generate(PROMPTS, max_new_tokens=NEW, fingerprints=True)
            assert result.tokens == expected
            prints.add(tuple(r.fingerprints for r in result.requests))
        assert len(prints) == 1, "plans must give the same bits"
        client.set_queue_policy("refcount")
        _profile_has_both_ranks(client)
        _torch_has_both_ranks(client, tmp_path)
        handle = client.submit([5], max_new_tokens=5000)
        next(iter(handle))
        kill(others(client))  # while it decodes
        is_told(lambda: handle.result(WAIT_S))
        is_told(client.ops)
        client.restart()
        assert client.generate(PROMPTS, max_new_tokens=NEW).tokens == expected
        deaths: list[LabError] = []
        told = threading.Event()
        client.on_exit(lambda error: (deaths.append(error), told.set()))
        kill(others(client))  # while nothing runs
        assert told.wait(WAIT_S)
        assert [type(error) for error in deaths] == [RankDiedError]
        is_told(client.ops)


def _profile_has_both_ranks(client: EngineClient) -> None:
    profile = client.profile(steps=2, concurrency=2, prompt_tokens=20)
    timeline = profile.timeline
    lanes = {f"rank{rank}/{stream}" for rank in (0, 1) for stream in ("main", "side0", "side1")}
    assert set(timeline.streams) == lanes
    assert timeline.meta["ranks"] == [0, 1]
    for rank in (0, 1):
        mine = timeline.select(timeline.rank == rank)
        assert int(mine.busy_mask.sum()) == 2 * len(profile.program.ops)
        names = [timeline.names[n] for n in mine.name[mine.busy_mask]]
        assert names.count("attn.all_reduce") == names.count("moe.all_reduce") == 8
        busy = mine.stream_busy(main="main")
        assert {s.stream for s in busy.streams} == {lane for lane in lanes if lane.startswith(f"rank{rank}")}
    first = timeline.select(timeline.rank == 0)
    assert {s.step for s in profile.steps} == set(first.step.tolist())


def _torch_has_both_ranks(client: EngineClient, folder: Path) -> None:
    """Each rank in a file of its own, and all of them on one timeline, named by op."""
    profile = client.profile(steps=3, concurrency=1, prompt_tokens=20, capture="torch", directory=folder)
    assert profile.path == folder
    assert sorted(path.name.partition(".")[0] for path in folder.iterdir()) == ["dsv4lab-rank000", "dsv4lab-rank001"]
    timeline = profile.timeline
    assert timeline.meta["ranks"] == [0, 1]
    for rank in (0, 1):
        mine = timeline.select((timeline.rank == rank) & timeline.busy_mask)
        names = [timeline.names[n] for n in mine.name]
        assert names.count("attn.all_reduce") == 3 * 4
    arrivals = arrival_skew(timeline)
    assert {found.ranks for found in arrivals} == {2}
    assert len(load_trace(folder)) == len(timeline)


@pytest.mark.parametrize("fields", [{"tp_size": 2, "speculative": "mtp"}, {"dp_size": 2}], ids=["tp", "dp"])
def test_ranks_with_a_prefix_cache(fields: dict[str, Any], alone: Alone) -> None:
    """Room for one snapshot and a half: each new one drops that before it, on every rank."""
    shared, other = (np.random.default_rng(i).integers(2, 500, 256).tolist() for i in (7, 8))
    texts = [[*shared, 5, 6], [*shared, *PROMPTS[2]], [*other, 9], [*other, 30, 31], [*shared, 12]]
    config = EngineConfig("tiny", **fields, max_running_requests=2, max_total_tokens=2048)
    model = preset("tiny")
    verify = 4 if "speculative" in fields else 1
    geometry = plan_for_engine(model, replace(config, verify_tokens=verify), None).geometry
    room = snapshot_bytes(config, model, geometry) * 3 // 2
    expected = [alone(text, NEW) for text in texts]
    with EngineClient(replace(config, enable_prefix_cache=True, prefix_cache_bytes=room)) as client:
        assert [client.generate([text], max_new_tokens=NEW).tokens[0] for text in texts] == expected
        cache = client.status()["prefix_cache"]
    assert (cache["queries"], cache["hits"], cache["tokens_saved"]) == (5, 2, 512)
    assert (cache["snapshots"], cache["evicted_snapshots"]) == (1, 2)


def test_two_ranks_with_a_drafter(alone: Alone, gone: Callable[[int], bool]) -> None:
    expected = [alone(prompt, 3 * NEW) for prompt in PROMPTS]
    hot = lab.SamplingParams(temperature=1.0, top_k=20, seed=3)
    fields: dict[str, Any] = {"speculative": "mtp", "draft_tokens": 2, "enable_mixed_chunk": True}
    with lab.open("tiny", tp_size=2, chunked_prefill_size=64, **fields) as client:
        assert client.generate(PROMPTS, max_new_tokens=3 * NEW).tokens == expected
        sampled = client.generate(PROMPTS, max_new_tokens=NEW, sampling=hot).tokens
        assert client.generate(PROMPTS, max_new_tokens=NEW, sampling=hot).tokens == sampled
        assert client.status()["speculation"]["steps"] > 0
        (worker,), ranks = [client.pid], others(client)
        assert worker is not None
        handle = client.submit([5], max_new_tokens=5000)
        next(iter(handle))
        kill([worker])
        with pytest.raises(WorkerDiedError, match="the worker process ended unexpectedly: killed by signal 9"):
            handle.result(WAIT_S)
        assert all(gone(pid) for pid in ranks), "ranks end with the worker"

        def kill_while_they_meet(_fraction: float, stage: str) -> None:
            if stage.startswith("meeting"):
                kill([pid for child in children(os.getpid()) for pid in children(child)])

        def start_and_ask() -> None:
            client.restart(kill_while_they_meet)
            client.generate([5], max_new_tokens=5000)  # if all were there before the stage was told

        is_told(start_and_ask)


@pytest.mark.parametrize("ep_size", [pytest.param(1, marks=pytest.mark.slow), 2], ids=["shared", "dealt"])
def test_two_groups(ep_size: int, alone: Alone) -> None:
    expected = [alone(prompt, NEW) for prompt in PROMPTS]
    fields: dict[str, Any] = {"speculative": "mtp", "draft_tokens": 2} if ep_size == 2 else {}
    with lab.open("tiny", dp_size=2, ep_size=ep_size, chunked_prefill_size=64, **fields) as client:
        assert client.generate(PROMPTS, max_new_tokens=NEW).tokens == expected
        assert client.generate(PROMPTS[1], max_new_tokens=NEW).tokens == expected[1:2], "one group has no tokens"
        client.set_plan("hip")
        assert client.generate(PROMPTS, max_new_tokens=NEW).tokens == expected
        handles = [client.submit(LONG, max_new_tokens=9000) for _ in range(2)]
        handles[0].abort()
        handles[0].result(WAIT_S)
        groups = client.status()["groups"]
        assert [group["running"] + group["waiting"] for group in groups] == [0, 1], "equal requests go to both groups"
        handles[1].abort()
        handles[1].result(WAIT_S)
        timeline = client.profile(steps=2, concurrency=2, prompt_tokens=20).timeline
        assert set(timeline.rank.tolist()) == {0, 1}
        assert {"moe.all_gather", "moe.reduce_scatter"} <= set(timeline.names)
        steps = client.status()["steps"]
        handle = client.submit(LONG, max_new_tokens=9000)
        while client.status()["steps"] <= steps + 1:
            pass
        kill(others(client))  # in a prefill chunk, as a rule
        is_told(lambda: handle.result(WAIT_S))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"tp_size": 2, "speculative": "mtp", "enable_mixed_chunk": True},
        {"dp_size": 2, "ep_size": 2, "speculative": "dspark"},
    ],
    ids=["tp2", "dp2"],
)
def test_a_crowd_with_aborts_gives_everybody_their_own_tokens(fields: dict[str, Any], alone: Alone) -> None:
    """A pool too small for all of them, so that some are preempted; afterwards everything is free again."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(2, 500, length).tolist() for length in (300, 3, 60, 250, 130, 258, 3, 130, 60, 300)]
    news = [int(n) for n in rng.choice([4, 12, 25], len(prompts))]
    with lab.open("tiny", chunked_prefill_size=96, max_running_requests=3, max_total_tokens=1024, **fields) as client:
        free = client.status()
        handles = [client.submit(p, max_new_tokens=n) for p, n in zip(prompts, news, strict=True)]
        dropped = [client.submit(p, max_new_tokens=400) for p in prompts[:4]]
        next(iter(dropped[0]))
        for handle in dropped:
            handle.abort()
        got = [handle.result(WAIT_S) for handle in handles]
        for handle in dropped:
            handle.result(WAIT_S)
        assert got == [alone(p, n) for p, n in zip(prompts, news, strict=True)]
        after = client.status()
        assert [after[key] for key in ("free_slots", "free_pages", "running")] == [
            *(free[key] for key in ("free_slots", "free_pages")), 0,
        ]  # fmt: skip


@pytest.mark.slow
def test_four_ranks_and_the_end_of_the_one_that_is_farthest_away(alone: Alone) -> None:
    with lab.open("tiny", tp_size=2, dp_size=2, chunked_prefill_size=64) as client:
        assert client.generate(PROMPTS, max_new_tokens=NEW).tokens == [alone(prompt, NEW) for prompt in PROMPTS]
        timeline = client.profile(steps=2).timeline
        assert set(timeline.rank.tolist()) == {0, 1, 2, 3}
        assert client.pid is not None
        (farthest,) = [pid for child in children(client.pid) for pid in children(child)]
        kill([farthest])
        with pytest.raises(RankDiedError, match=r"^rank 2 of 4 failed: rank 3 of 4 ended: killed by signal 9"):
            client.generate(PROMPTS, max_new_tokens=500)


@pytest.mark.slow
def test_a_rank_that_hangs_is_missed_after_a_while(gone: Callable[[int], bool]) -> None:
    with lab.open("tiny", tp_size=2, collective_timeout_s=10) as client:
        ranks = others(client)
        handle = client.submit([5], max_new_tokens=5000)
        next(iter(handle))
        os.kill(ranks[0], signal.SIGSTOP)
        with pytest.raises(
            RankDiedError, match=r"^rank 0 of 2 failed: CollectiveError: all_gather of tp0: .*[Tt]imed out"
        ):
            handle.result(WAIT_S)
        assert gone(ranks[0]), "it is ended although it does not listen"


@pytest.mark.slow
def test_ranks_end_with_their_client(gone: Callable[[int], bool]) -> None:
    code = """
import os, signal
import dsv4lab as lab
from pathlib import Path
client = lab.open("tiny", tp_size=2)
handle = client.submit([5], max_new_tokens=5000)
next(iter(handle))
children = Path(f"/proc/{client.pid}/task/{client.pid}/children").read_text().split()
print(client.pid, *children, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    env = {**os.environ, "PYTHONPATH": worker_path()}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env, cwd=ROOT)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)
    parent.wait(WAIT_S)
    parent.stdout.close()


def test_the_command_line_runs_ranks(capsys: pytest.CaptureFixture[str], alone: Alone) -> None:
    from dsv4lab.cli.main import main

    words = ["run", "--preset", "tiny", "--tp-size", "2", "--prompt-tokens", "40", "--max-new-tokens", "4", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    (prompt,) = synthetic(preset("tiny").vocab_size, 1, 40, 0)
    assert found["tokens"] == [alone(list(prompt), 4)]
    assert {s["stream"] for s in found["stream_busy"]["streams"]} == {"rank0/main", "rank1/main"}
    assert found["tp_size"] == 2


def test_sizes_that_do_not_fit_are_refused_before_ranks_meet() -> None:
    with pytest.raises(ConfigError, match=r"^tp_size = 4: tiny has o_groups = 2, .* it takes 1 or 2$"):
        check(EngineConfig("tiny", tp_size=4))
    with pytest.raises(ConfigError, match="batch_invariant: got True, expected false where there are several ranks"):
        EngineConfig("tiny", tp_size=2, batch_invariant=True)
