"""kill -9 of a search session at random moments: its records are valid each time, and it goes on."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4lab.tuning.store import RECORDS, read_records
from tests.unit.search_worker import PLAN

ROOT = Path(__file__).resolve().parents[2]
KILLS = 50


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(ROOT / "tests/unit/search_worker.py"), str(folder)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_fifty_kills_leave_valid_records_and_lose_the_load_in_flight_at_most(tmp_path: Path) -> None:
    pick = random.Random(50)
    killed = finished = 0
    folder = tmp_path / "s"
    while killed < KILLS:
        size = (folder / RECORDS).stat().st_size if folder.exists() else 0
        before = read_records(folder / RECORDS)[0] if size else []
        goal = size + pick.randrange(1, 12_000)
        session = start(folder)
        while session.poll() is None and size_of(folder) < goal:
            with contextlib.suppress(subprocess.TimeoutExpired):
                session.wait(0.002)
        if session.poll() is None:
            session.kill()
            killed += 1
        elif session.returncode == 0:
            check_whole(folder)
            shutil.rmtree(folder)
            finished += 1
            continue
        session.wait()
        records, _ = read_records(folder / RECORDS)
        assert records[: len(before)] == before
        pairs = [
            (r["trial"], r["phase"], r["pair"], r["position"])
            for r in records
            if r["kind"] == "block" and r["pair"] >= 0
        ]
        assert len(pairs) == len(set(pairs))
    assert start(folder).wait() == 0
    check_whole(folder)


def size_of(folder: Path) -> int:
    path = folder / RECORDS
    return path.stat().st_size if path.exists() else 0


def check_whole(folder: Path) -> None:
    records, _ = read_records(folder / RECORDS)
    assert records[-1]["kind"] == "result"
    explored = [tuple(r["setting"].items()) for r in records if r["kind"] == "decision" and r["phase"] == "explore"]
    assert len(explored) == len(set(explored)) == PLAN.choices
    outcome = next(r for r in reversed(records) if r["kind"] == "outcome")
    assert outcome["levels"][0]["use"] == {"plan": "cuda", "hw_queues": 4}
