"""The compiled loops of the CPU device on disk: made by one process while the others wait, then loaded by all.

Numba's cache alone would do for processes one after another. Two that compile at once both read a loop's index, both
add to it, and may leave one's machine code under the other's signature.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

STAMP, LOCK = "dsv4lab-loops.json", "dsv4lab-loops.lock"
COMPILED = "_native.*.nb[ic]"
"""What Numba leaves of our loops in a folder: indices, and machine code per signature."""

PATIENCE_S = 120.0
POLL_S = 0.1

WAITING = "another process compiles the loops of the CPU device"
COMPILING = "compiling the loops of the CPU device, once on this machine (10 to 30 s)"
HOMELESS = (
    "compiling the loops of the CPU device (10 to 30 s, at every start: neither the package's folder nor the user's "
    "cache can be written; NUMBA_CACHE_DIR names another)"
)

Tell = Callable[[str], None]

_log = logging.getLogger(__name__)


class LoopStore:
    """What ``folders`` hold of the loops. ``key`` names all that the machine code depends on.

    A stamp in the first folder says that they are complete: it has the key, and the files, which have to be there.
    """

    def __init__(self, folders: Sequence[Path], key: str) -> None:
        self.folder = folders[0]
        self._folders, self._key = tuple(folders), key
        self._stamp, self._lock = self.folder / STAMP, self.folder / LOCK

    @property
    def complete(self) -> bool:
        """Whether every loop that the stamp names lies there, compiled for this processor from this source."""
        try:
            stamp = json.loads(self._stamp.read_bytes())
            return stamp["key"] == self._key and all((self.folder / file).exists() for file in stamp["files"])
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def sign(self) -> None:
        """Write the stamp. Where that fails, the next process makes sure of the loops as this one did."""
        found = [file for folder in self._folders for file in folder.glob(COMPILED)]
        files = sorted(os.path.relpath(file, self.folder) for file in found)
        part = self._stamp.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            part.write_text(json.dumps({"key": self._key, "files": files}), encoding="utf-8")
            part.replace(self._stamp)

    @contextmanager
    def alone(self, wait: Callable[[], bool]) -> Iterator[None]:
        """Hold the lock, which the system takes from a process that dies.

        While another one has it, ``wait`` is called; once that is false, or where there are no locks, the block runs
        without: its own machine code is right in any case.
        """
        try:
            fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            yield
            return
        try:
            while not _taken(fd) and wait():
                pass
            yield
        finally:
            os.close(fd)


class Compiling:
    """Listens to the stages of starts: how many ``seconds`` went into making the loops on disk, or waiting for them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = 0.0
        self._clock, self._since = clock, math.nan

    def note(self, _fraction: float, stage: str) -> None:
        """A start has come to ``stage``."""
        now = self._clock()
        if not math.isnan(self._since):
            self.seconds += now - self._since
        self._since = now if stage in (WAITING, COMPILING) else math.nan


def announce(stage: str) -> None:
    """Log what a user waits for without having asked; where no handler takes it, that is a line on standard error."""
    if stage in (WAITING, COMPILING, HOMELESS):
        _log.warning(stage)


def run_once(
    store: LoopStore | None,
    load: Callable[[], None],
    make: Callable[[], None],
    tell: Tell,
    *,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """``load`` the loops that each process needs, or ``make`` all where some are missing; ``tell`` what takes time.

    ``make`` runs in one process at a time. Without a store each process compiles what it loads for itself.
    """
    if store is None:
        tell(HOMELESS)
    if store is None or store.complete:
        load()
        return
    until, told = clock() + patience_s, False

    def wait() -> bool:
        nonlocal told
        if not told:
            tell(WAITING)
        told = True
        sleep(POLL_S)
        return clock() < until

    with store.alone(wait):
        missing = not store.complete  # unless another process has made them meanwhile
        if missing:
            tell(COMPILING)
            make()
            store.sign()
    if not missing:
        load()


def _taken(fd: int) -> bool:
    """Whether the lock is ours now; also where files cannot be locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
