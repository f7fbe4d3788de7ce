"""Who is let in, and what happens when the engine's worker dies."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any

from dsv4lab.engine.client import EngineClient
from dsv4lab.errors import LabError
from dsv4lab.serve.metrics import Metrics
from dsv4lab.serve.problems import bad, too_busy, unavailable

RESTART_WINDOW_S = 3600.0
_STATUS_S = 5.0


class State(StrEnum):
    """What the server does with a request now; only ``READY`` takes one."""

    READY = "ready"
    RESTARTING = "restarting"
    DRAINING = "draining"
    DEAD = "dead"


class Desk:
    """Admission to one engine, and its supervision. On the event loop only; made on it."""

    def __init__(
        self, client: EngineClient, max_queue: int, max_restarts: int, metrics: Metrics, tell: Callable[[str], None]
    ) -> None:
        self.client = client
        self.metrics = metrics
        self.state = State.READY
        self.ended = asyncio.Event()
        """Set once the engine is given up."""
        self.in_flight = 0
        self.capacity = client.limits.max_requests + max_queue
        self._max_restarts = max_restarts
        self._restarts: deque[float] = deque()
        self._tell = tell
        self._news: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def died(error: LabError) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._news.put_nowait, str(error))

        self._forget = client.on_exit(died)

    def check_open(self, count: int = 1) -> None:
        """Raise :class:`Problem` unless ``count`` choices would be let in now."""
        if self.state is not State.READY or not self.client.alive:
            raise unavailable(f"the server is {self.state if self.state is not State.READY else 'restarting'}")
        if count > self.capacity:
            raise bad("n", f"{count} choices: this server takes at most {self.capacity} at once")
        if self.in_flight + count > self.capacity:
            raise too_busy(f"{self.in_flight} choices are in flight, this server takes {self.capacity}: try again")

    @contextmanager
    def seats(self, count: int) -> Iterator[None]:
        """Let ``count`` choices in while the block runs. Raises :class:`Problem`."""
        self.check_open(count)
        self.in_flight += count
        try:
            yield
        finally:
            self.in_flight -= count

    def check_waiting(self) -> None:
        """For those who wait for the engine: a worker that has gone silent is replaced, and their requests go on."""
        if self.state is State.DEAD:
            raise unavailable("the engine is gone")
        silent = self.client.silent_for()
        if self.state is State.READY and silent > self.client.stall_s:
            self.state = State.RESTARTING
            self._news.put_nowait(f"the worker has said nothing for {silent:.0f} s")

    async def supervise(self) -> None:
        """Replace the worker whenever it dies, until that happens too often; then :attr:`ended` is set."""
        while True:
            why = await self._news.get()
            while why:
                self.metrics.worker_deaths += 1
                self._tell(f"worker: {why}")
                if not self._may_restart():
                    self.state = State.DEAD
                    self._tell(f"it was restarted {self._max_restarts} times within an hour: giving up")
                    self.ended.set()
                    return
                why = await self._restart()

    def drain(self) -> None:
        """Take nothing new from now on."""
        if self.state is not State.DEAD:
            self.state = State.DRAINING
        self._forget()

    async def gauges(self) -> dict[str, Any]:
        """What :class:`Metrics` shows beside its counters. An engine that is busy for seconds is left out."""
        own = {"up": int(self.state is State.READY and self.client.alive), "in_flight": self.in_flight}
        try:
            async with asyncio.timeout(_STATUS_S):
                status = await asyncio.to_thread(self.client.status)
        except (TimeoutError, LabError):
            return own
        names = ("steps", "waiting", "running", "free_slots", "free_pages", "preemptions")
        return {**own, **{f"engine_{name}": status[name] for name in names if name in status}}

    def _may_restart(self) -> bool:
        now = time.monotonic()
        while self._restarts and now - self._restarts[0] > RESTART_WINDOW_S:
            self._restarts.popleft()
        if len(self._restarts) >= self._max_restarts:
            return False
        self._restarts.append(now)
        return True

    async def _restart(self) -> str:
        """Empty, or why there is no new worker."""
        draining = self.state is State.DRAINING
        self.state = State.DRAINING if draining else State.RESTARTING
        try:
            await asyncio.to_thread(self.client.restart)
        except LabError as error:
            return str(error)
        self.metrics.worker_restarts += 1
        self._tell("worker: started again")
        if self.state is State.RESTARTING:
            self.state = State.READY
        return ""
