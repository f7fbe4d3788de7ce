"""kill -9 of a search session at random moments: its records are valid each time, and it goes on."""

from __future__ import annotations

import multiprocessing as mp
import random
import shutil
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from dsv4lab.tuning.store import RECORDS, read_records
from tests.unit import search_worker

KILLS = 50
_FORKS = mp.get_context("forkserver")


def start(folder: Path) -> BaseProcess:
    session = _FORKS.Process(target=search_worker.main, args=(str(folder),))
    session.start()
    return session


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a busy machine takes its time
def test_fifty_kills_leave_valid_records_and_lose_the_load_in_flight_at_most(tmp_path: Path) -> None:
    _FORKS.set_forkserver_preload([search_worker.__name__])
    pick = random.Random(50)
    killed, folder = 0, tmp_path / "s"
    while killed < KILLS:
        before = read_records(folder / RECORDS)[0] if size_of(folder) else []
        goal = size_of(folder) + pick.randrange(1, 12_000)
        session = start(folder)
        while session.exitcode is None and size_of(folder) < goal:
            session.join(0.001)
        session.kill()
        session.join()
        records, _ = read_records(folder / RECORDS)
        assert records[: len(before)] == before
        blocks = [r for r in records if r["kind"] == "block" and r["pair"] >= 0]
        places = [(r["trial"], r["phase"], r["pair"], r["position"]) for r in blocks]
        assert len(places) == len(set(places))
        if session.exitcode == 0:  # it was done before
            check_whole(folder)
            shutil.rmtree(folder)
        else:
            killed += 1
    last = start(folder)
    last.join()
    assert last.exitcode == 0
    check_whole(folder)


def size_of(folder: Path) -> int:
    path = folder / RECORDS
    return path.stat().st_size if path.exists() else 0


def check_whole(folder: Path) -> None:
    records, _ = read_records(folder / RECORDS)
    assert records[-1]["kind"] == "result"
    explored = [tuple(r["setting"].items()) for r in records if r["kind"] == "decision" and r["phase"] == "explore"]
    assert len(explored) == len(set(explored)) == search_worker.PLAN.choices
    outcome = next(r for r in reversed(records) if r["kind"] == "outcome")
    assert outcome["levels"][0]["use"] == {"plan": "cuda", "hw_queues": 4}
