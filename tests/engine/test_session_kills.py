"""Sessions whose process, server or worker is killed at random moments: the record holds, and the session goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dsv4lab.tuning.knobs import KnobSpace, Setting
from dsv4lab.tuning.read_view import read_view
from dsv4lab.tuning.store import MANIFEST, RECORDS, read_manifest, read_records
from dsv4lab.tuning.view import FINISHED, Row
from tests.engine.conftest import worker_path

SCRIPT = Path(__file__).with_name("session_for_kills.py")
CHILDREN = {"server": "wrong_server.py", "engine": "dsv4lab.engine.worker"}
POLL_S = 0.005
END_S = 240.0
Gone = Callable[[int], bool]


@dataclass
class Life:
    """A session's folder, the process that works in it now, and what has been done to it."""

    kind: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    session_kills: int = 0
    child_kills: int = 0
    seen: bytes = b""
    children: set[int] = field(default_factory=set)

    def start(self) -> None:
        environ = {**os.environ, "PYTHONPATH": worker_path(), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, str(SCRIPT), self.kind, str(self.folder)]
        log = (self.folder.parent / f"{self.folder.name}.log").open("ab")
        with log:
            self.process = subprocess.Popen(words, env=environ, stdout=log, stderr=log)

    @property
    def ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    @property
    def data(self) -> bytes:
        with suppress(FileNotFoundError):
            return (self.folder / RECORDS).read_bytes()
        return b""

    def child(self) -> int | None:
        """The server or worker that runs now."""
        assert self.process is not None
        with suppress(OSError):
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                for pid in map(int, (task / "children").read_text().split()):
                    if CHILDREN[self.kind].encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                        self.children.add(pid)
                        return pid
        return None

    def kill(self, chance: random.Random, whom: str) -> bool:
        """Kill the session or its child once the record has grown by some lines; False: it was gone by then."""
        assert self.process is not None
        target = self.data.count(b"\n") + chance.randrange(14)
        while self.data.count(b"\n") < target and not self.ended:
            self.child()
            time.sleep(POLL_S)
        time.sleep(chance.uniform(0.0, 0.03))
        victim = self.process.pid
        if whom == "child":
            while (found := self.child()) is None and not self.ended:
                time.sleep(POLL_S)
            victim = found or victim
        else:
            self.child()
        if self.ended:
            return False
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:  # the session has ended its child meanwhile
            return False
        if whom == "session":
            self.process.wait(END_S)
        self.session_kills += whom == "session"
        self.child_kills += whom == "child"
        return True

    def check(self) -> None:
        """What was on record is there still, byte for byte, and can be read."""
        now = self.data
        assert now.startswith(self.seen)
        self.seen = now
        if (self.folder / MANIFEST).exists():
            records, torn = read_records(self.folder / RECORDS)
            assert torn <= self.session_kills
            assert len(records) >= now.count(b"\n") - torn
            read_view(self.folder)

    def finish(self) -> None:
        """Run to the end, once more after each end that a killed child has brought about."""
        for _ in range(2 + self.child_kills):
            assert self.process is not None
            if self.process.wait(END_S) == 0:
                break
            self.start()
        assert self.process is not None
        assert self.process.returncode == 0
        self.check()
        view = read_view(self.folder)
        assert view.state == FINISHED
        failed = [row for row in view.rows if row.change is None and row.role == "candidate" and not _starved(row)]
        assert len(failed) <= self.child_kills
        assert all(row.verdict in ("crashed", "died at start", "failed", "undecided") for row in failed)
        assert {row.label for row in view.rows} == {s.label for s in _settings(self.folder)}


def _starved(row: Row) -> bool:
    """Whether this process had so little time that it saw all tokens at once."""
    return "all at once" in (row.why or "")


def _settings(folder: Path) -> list[Setting]:
    return list(KnobSpace.from_json(read_manifest(folder)["settings"]["space"]).candidates())


@contextmanager
def session(kind: str, folder: Path) -> Iterator[Life]:
    life = Life(kind, folder)
    life.start()
    try:
        yield life
    finally:
        if life.process is not None and life.process.poll() is None:
            life.process.kill()
            life.process.wait(END_S)


def kill_sessions(kind: str, home: Path, kills: int, seed: int, gone: Gone) -> None:
    """So many kills, over as many sessions as they take; each session ends well."""
    chance = random.Random(seed)
    done = sessions = 0
    while done < kills:
        sessions += 1
        with session(kind, home / f"{kind}-{sessions}") as life:
            while done < kills and not life.ended:
                whom = "session" if done % 2 == 0 else "child"
                if not life.kill(chance, whom):
                    break
                done += 1
                life.check()
                if life.ended:
                    assert all(map(gone, life.children))
                    life.start()
            life.finish()
            assert all(map(gone, life.children))


def test_three_kills(tmp_path: Path, gone: Gone) -> None:
    kill_sessions("server", tmp_path, 3, seed=1, gone=gone)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["server", "engine"])
def test_fifty_kills(kind: str, tmp_path: Path, gone: Gone) -> None:
    kills = {"server": 26, "engine": 24}[kind]
    kill_sessions(kind, tmp_path, kills, seed=7, gone=gone)
