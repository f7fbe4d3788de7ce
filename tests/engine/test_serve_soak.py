"""Long runs of the server on the real ``tiny`` model: many streams, and processes killed at random moments."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

import dsv4lab as lab
from dsv4lab.load.client import Endpoint, discover, open_session, run_load, stream_one
from dsv4lab.load.process import ServerProcess, ServerSpec
from dsv4lab.load.report import RequestRecord
from dsv4lab.load.spec import LoadSpec
from dsv4lab.serve.desk import Desk, State
from tests.engine.serving import site
from tests.engine.test_load_trial import ours

SECONDS = 300.0
STREAMS = 256
MOST_GROWTH = 64 << 20
"""Bytes that the worker may grow by in the last two thirds of the soak; one lost page of each request were 200 MiB."""
KILLS = 10
PROMPTS = LoadSpec(16, prompt_tokens=24, range_ratio=0.2, seed=9).prompts(500)
NEW = 12


async def soak(endpoint: Endpoint, early: Callable[[], None]) -> list[RequestRecord]:
    """Every stream asks for one prompt after the other until the time is over; ``early`` is called after a third."""
    until = time.monotonic() + SECONDS
    asyncio.get_running_loop().call_later(SECONDS / 3, early)

    async def one(first: int) -> list[RequestRecord]:
        records = []
        at = first
        while not records or time.monotonic() < until:
            records.append(await stream_one(session, endpoint, at, PROMPTS[at % len(PROMPTS)], NEW))
            at += 1
        return records

    async with open_session(endpoint) as session:
        return [r for records in await asyncio.gather(*map(one, range(STREAMS))) for r in records]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_streams_for_minutes() -> None:
    tokens = STREAMS * 256
    with lab.open("tiny", max_running_requests=STREAMS, max_total_tokens=tokens) as client:
        expected = client.generate(PROMPTS, max_new_tokens=NEW).tokens
        with site(client, max_queue=0) as served:
            endpoint = Endpoint(served.running.url, body={"return_token_ids": True}, silence_s=300.0)
            worker = client.pid or 0
            open_before, grown = (open_files(os.getpid()), open_files(worker)), [0]
            records = asyncio.run(soak(endpoint, lambda: grown.append(resident_bytes(worker))))
            assert {r.error for r in records} == {None}
            assert len(records) >= STREAMS
            assert all(list(r.token_ids) == expected[r.index % len(PROMPTS)] for r in records)
            served.until_empty()
            assert served.running.desk.metrics.generated_tokens == NEW * len(records)
            served.until(lambda: open_files(os.getpid()) <= open_before[0])
            assert open_files(worker) <= open_before[1]
            growth = resident_bytes(worker) - grown[-1]
            print(f"{len(records)} requests, {NEW * len(records) / SECONDS:.0f} tokens/s, worker +{growth >> 20} MiB")
            assert growth < MOST_GROWTH


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_workers_killed_at_random_moments() -> None:
    """Each request ends in the right tokens or in an error, and the server always comes back."""
    chance = random.Random(4)
    spec = LoadSpec(16, max_new_tokens=NEW, concurrency=4)
    with lab.open("tiny", max_running_requests=4) as client:
        expected = client.generate(PROMPTS, max_new_tokens=NEW).tokens
        with site(client, max_restarts=KILLS) as served:
            desk = served.running.desk
            endpoint = Endpoint(served.running.url, body={"return_token_ids": True})
            for kill in range(1, KILLS + 1):
                load = run_load(endpoint, spec, PROMPTS)
                records = asyncio.run(_killing(load, client.pid or 0, chance.uniform(0.0, 0.3)))
                for record in records:
                    assert record.error is not None or list(record.token_ids) == expected[record.index]
                served.until(partial(_back, desk, kill))
                served.until_empty()
            assert client.generate(PROMPTS, max_new_tokens=NEW).tokens == expected


def _back(desk: Desk, restarts: int) -> bool:
    return desk.metrics.worker_restarts == restarts and desk.state is State.READY


async def _killing(load: Awaitable[list[RequestRecord]], pid: int, after_s: float) -> list[RequestRecord]:
    task = asyncio.ensure_future(load)
    await asyncio.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    return await task


@pytest.mark.slow
def test_a_killed_server_takes_its_worker_with_it(tmp_path: Path, gone: Callable[[int], bool]) -> None:
    spec: ServerSpec = ours("--json")
    server = ServerProcess.start(spec, tmp_path / "log")
    try:
        asyncio.run(server.ready())
        told = next(line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{"))
        worker = json.loads(told)["worker_pid"]
        endpoint, _ = asyncio.run(discover(Endpoint(server.url)))
        assert endpoint.model == "tiny"
        os.kill(server.pid, signal.SIGKILL)
        assert gone(int(worker))
    finally:
        server.stop()
