"""Compiled loops on disk: one process makes them, the others wait and load."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv4lab.engine.loop_store import (
    COMPILING,
    HOMELESS,
    LOCK,
    STAMP,
    WAITING,
    Compiling,
    LoopStore,
    announce,
    run_once,
)

FILES = ("_native.one-1.py311.nbi", "_native.one-1.py311.1.nbc")
RACER = f"""
import sys
from pathlib import Path
from dsv4lab.engine.loop_store import LoopStore, run_once
folder = Path(sys.argv[1])
def make():
    with (folder / "made").open("a") as file:
        file.write("once\\n")
    for name in {FILES}:
        (folder / name).write_bytes(b"code")
def load():
    assert all((folder / name).exists() for name in {FILES})
print("ready", flush=True)
sys.stdin.read()
run_once(LoopStore([folder], "key"), load, make, lambda text: None)
"""
HOLDER = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


class Loops:
    """Stands for the loops in ``folder``: what was done, and what was told."""

    def __init__(self, folder: Path) -> None:
        self.store, self.folder = LoopStore([folder], "key"), folder
        self.did: list[str] = []

    def load(self) -> None:
        self.did.append("load")

    def make(self) -> None:
        self.did.append("make")
        for name in FILES:
            (self.folder / name).write_bytes(b"code")

    def run(self, *, sleep: Callable[[float], None] = lambda _s: None, patience_s: float = 9.0) -> list[str]:
        """One process's start; a second passes whenever it sleeps."""
        now = 0.0

        def wait(seconds: float) -> None:
            nonlocal now
            now += 1.0
            sleep(seconds)

        self.did.clear()
        run_once(
            self.store,
            self.load,
            self.make,
            self.did.append,
            patience_s=patience_s,
            clock=lambda: now,
            sleep=wait,
        )
        return list(self.did)


def test_the_first_start_makes_them_and_later_ones_load(tmp_path: Path) -> None:
    loops = Loops(tmp_path)
    assert loops.run() == [COMPILING, "make"]
    assert loops.run() == ["load"]


@pytest.mark.parametrize("damage", ["index", "code", "stamp", "torn stamp", "key"])
def test_what_is_missing_or_of_another_source_is_made_again(tmp_path: Path, damage: str) -> None:
    loops = Loops(tmp_path)
    loops.run()
    if damage == "key":
        loops.store = LoopStore([tmp_path], "other source")
    elif damage == "torn stamp":
        (tmp_path / STAMP).write_bytes((tmp_path / STAMP).read_bytes()[:-3])
    else:
        (tmp_path / {"index": FILES[0], "code": FILES[1], "stamp": STAMP}[damage]).unlink()
    assert loops.run() == [COMPILING, "make"]
    assert loops.run() == ["load"]


def test_a_tree_that_moved_keeps_its_loops(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for name in ("a", "b"):
        (old / name).mkdir(parents=True)
    (old / "b" / FILES[1]).write_bytes(b"code")
    LoopStore([old / "a", old / "b"], "key").sign()
    old.rename(new)
    moved = LoopStore([new / "a", new / "b"], "key")
    assert moved.complete
    (new / "b" / FILES[1]).unlink()
    assert not moved.complete


def test_who_waits_loads_what_the_other_made(tmp_path: Path) -> None:
    first, second = Loops(tmp_path), Loops(tmp_path)
    held = os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            first.make()
            first.store.sign()
            os.close(held)

    assert second.run(sleep=sleep) == [WAITING, "load"]
    assert len(slept) == 3


def test_no_start_waits_for_ever(tmp_path: Path) -> None:
    loops = Loops(tmp_path)
    held = os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert loops.run(patience_s=5.0) == [WAITING, COMPILING, "make"]
    os.close(held)


def test_a_folder_that_cannot_be_locked_or_stamped_does_not_stop_a_start(tmp_path: Path) -> None:
    loops = Loops(tmp_path / "gone")
    loops.make = lambda: loops.did.append("make")  # type: ignore[method-assign]
    assert loops.run() == [COMPILING, "make"]


def test_without_a_folder_each_start_compiles_and_says_so() -> None:
    did: list[str] = []
    run_once(None, lambda: did.append("load"), lambda: did.append("make"), did.append)
    assert did == [HOMELESS, "load"]


def test_what_takes_long_is_logged_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    for text in ("loading torch", COMPILING, WAITING, HOMELESS):
        announce(text)
    assert caplog.messages == [COMPILING, WAITING, HOMELESS]


def test_seconds_of_compiling_are_told_apart_from_the_rest_of_a_start() -> None:
    now = 0.0
    compiling = Compiling(lambda: now)
    for took, stage in ((2.0, "loading torch"), (1.0, WAITING), (3.0, COMPILING), (9.0, "building"), (1.0, "ready")):
        compiling.note(0.0, stage)
        now += took
    assert compiling.seconds == 4.0


def test_of_processes_that_start_together_one_makes_them(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACER, str(tmp_path)]
    racers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.close()
    for racer in racers:
        assert racer.wait() == 0
        assert racer.stdout is not None
        racer.stdout.close()
    assert (tmp_path / "made").read_text() == "once\n"


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / LOCK)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert Loops(tmp_path).run() == [COMPILING, "make"]
