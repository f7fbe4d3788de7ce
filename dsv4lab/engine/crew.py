"""The processes that a leader has started: what they are told, what they answer, and what happens when one ends.

The end of a rank is the end of the run: nobody else can finish a forward without it. It is noticed at once by the
thread that listens to it, whatever the other ranks are blocked in, and told as one error.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from dsv4lab.engine.child import Line
from dsv4lab.engine.rank_messages import (
    Answer,
    Command,
    Joined,
    Profiled,
    RankFailed,
    Said,
    Stop,
    Ticked,
    Times,
    decode_answer,
    encode,
)
from dsv4lab.errors import CollectiveError, LabError, RankDiedError
from dsv4lab.parallel.layout import Layout

OnDeath = Callable[[LabError, bool], None]
"""Called with the error that ends the run, and whether it may be the effect of an end elsewhere."""

_SETTLE_S = 10.0  # an end makes others miss it: so long is waited for the one that came first
_EXIT_S = 5.0
_STOP_S = 10.0
_KEPT_TIMES = 64


class Member:
    """One rank as its leader sees it."""

    def __init__(self, rank: int, process: Line, on_end: Callable[[Member, str, bool], None]) -> None:
        self.rank = rank
        self.process = process
        self.news: SimpleQueue[Said | Ticked] = SimpleQueue()
        self.profiles: SimpleQueue[Profiled] = SimpleQueue()
        self.joined = threading.Event()
        self._times: deque[Times] = deque(maxlen=_KEPT_TIMES)
        self._told = threading.Condition()
        self._on_end = on_end
        self.reader = threading.Thread(target=self._read, name=f"dsv4lab-rank-{rank}", daemon=True)
        self.reader.start()

    def times(self, number: int, patience_s: float) -> Times | None:
        """The times of forward ``number``, one of the last few. None if they do not come."""

        def find() -> Times | None:
            return next((t for t in self._times if t.number == number), None)

        with self._told:
            return self._told.wait_for(find, patience_s)

    def _read(self) -> None:
        failed: RankFailed | None = None
        try:
            while (payload := self.process.receive_bytes()) is not None:
                answer = decode_answer(payload)
                if isinstance(answer, RankFailed):
                    failed = answer
                else:
                    self._take(answer)
        except LabError as error:
            failed = RankFailed(str(error), secondary=False)
        self.process.end(_EXIT_S)
        self.process.release()
        if failed is not None:
            self._on_end(self, f"failed: {failed.text}", failed.secondary)
        else:
            self._on_end(self, f"ended: {self.process.epitaph()}", False)

    def _take(self, answer: Answer) -> None:
        if isinstance(answer, Joined):
            self.joined.set()
        elif isinstance(answer, Times):
            with self._told:
                self._times.append(answer)
                self._told.notify_all()
        elif isinstance(answer, Said | Ticked):
            self.news.put(answer)
        elif isinstance(answer, Profiled):
            self.profiles.put(answer)


class Crew:
    """All members. ``on_death`` is called once, from a thread of its own, with the error that ends the run."""

    def __init__(self, world_size: int, on_death: OnDeath) -> None:
        self.members: list[Member] = []
        self._world = world_size
        self._on_death = on_death
        self._lock = threading.Lock()
        self._ends: list[tuple[bool, int, str]] = []  # secondary, rank, what happened
        self._leaving = False
        self._over = threading.Event()

    @contextlib.contextmanager
    def fatal(self, rank: int) -> Iterator[None]:
        """An error within leaves the ranks out of step: it ends the run, and is raised once that has been told."""
        try:
            yield
        except Exception as error:
            self.blame(rank, error)
            self._over.wait()
            raise

    def take(self, rank: int, process: Line) -> Member:
        """``process`` is ``rank`` from now on."""
        member = Member(rank, process, self._end)
        self.members.append(member)
        return member

    def of_group(self, layout: Layout) -> tuple[Member, ...]:
        """The followers of the attention group that ``layout.rank`` leads."""
        group = range(layout.rank + 1, layout.rank + layout.tp_size)
        return tuple(member for member in self.members if member.rank in group)

    def leaders(self, layout: Layout) -> tuple[Member, ...]:
        """The first ranks of the other groups."""
        return tuple(member for member in self.members if layout.at(member.rank).tp_rank == 0)

    def wait_for_all(self) -> None:
        """Until every member takes commands; one that ends before is reported as any other end."""
        for member in self.members:
            member.joined.wait()

    def tell(self, command: Command) -> None:
        """Tell all members, in the order of the calls."""
        payload = encode(command)
        for member in self.members:
            member.process.send_bytes(payload)

    def blame(self, rank: int, error: Exception) -> None:
        """Our own rank cannot go on; it may be the effect of another's end, which is then what is told."""
        secondary = isinstance(error, CollectiveError)
        self._note(secondary, rank, f"failed: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Let all members finish, and see them off; after it nobody's end is reported any more."""
        with self._lock:
            self._leaving = True
        self.tell(Stop())
        deadline = time.monotonic() + _STOP_S
        for member in self.members:
            member.reader.join(max(0.1, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End whoever is still there, now."""
        with self._lock:
            self._leaving = True
        for member in self.members:
            if member.process.alive:
                member.process.end(0.0)

    def _end(self, member: Member, what: str, secondary: bool) -> None:
        self._note(secondary, member.rank, what)

    def _note(self, secondary: bool, rank: int, what: str) -> None:
        with self._lock:
            if self._leaving:
                return
            self._ends.append((secondary, rank, what))
            if len(self._ends) > 1:
                return
        threading.Thread(target=self._tell_death, name="dsv4lab-rank-end", daemon=True).start()

    def _tell_death(self) -> None:
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:
            with self._lock:
                if any(not secondary for secondary, _, _ in self._ends):
                    break
            time.sleep(0.01)
        with self._lock:
            self._leaving = True
            secondary, rank, what = min(self._ends)
        self.kill()  # one that is stopped, or blocked, does not notice by itself
        self._on_death(RankDiedError(f"rank {rank} of {self._world} {what}"), secondary)
        self._over.set()
