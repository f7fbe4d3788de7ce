"""One background thread per view: runs its commands in order and redraws at most so often."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

Command = Callable[[], None]
REST_S = 0.3
GIVEN_WAY = 5


class Pump:
    """Runs ``draw`` when something changed, at most every ``period_s`` seconds, and commands as they come.

    Neither runs beside the other. Callers hand in functions that deal with their own errors. Without :meth:`start`
    nothing runs by itself and :meth:`turn` does one round, which is how tests drive it.
    """

    def __init__(self, draw: Command, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._draw = draw
        self._period_s = period_s
        self._clock = clock
        self._commands: deque[Command] = deque()
        self._changed = threading.Condition()
        self._dirty = False
        self._closed = False
        self._drawn_at = float("-inf")
        self._later: tuple[float, Command] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="dsv4lab-view", daemon=True)
        self._thread.start()

    def submit(self, command: Command) -> None:
        """Run ``command`` on the thread, after those before it."""
        with self._changed:
            self._commands.append(command)
            self._changed.notify_all()

    def touch(self) -> None:
        """Something changed: draw when the period allows it."""
        with self._changed:
            self._dirty = True
            self._changed.notify_all()

    def later(self, command: Command) -> None:
        """Run ``command`` once nothing else was due for a while; only the last one given, and once."""
        with self._changed:
            self._later = (self._clock() + REST_S, command)
            self._changed.notify_all()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread after the command or drawing that it runs; drop the rest."""
        with self._changed:
            self._closed = True
            self._commands.clear()
            self._later = None
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def turn(self) -> bool:
        """Run what is due now: one command, a drawing, or what can wait. Returns whether there was something."""
        with self._changed:
            if self._closed:
                return False
            command = self._next()
        if command is None:
            return False
        command()
        return True

    def _next(self) -> Command | None:
        if self._commands:
            return self._commands.popleft()
        if self._dirty and self._wait_s() <= 0:
            self._dirty = False
            self._drawn_at = self._clock()
            return self._draw
        if self._dirty or self._later is None or self._clock() < self._later[0]:
            return None
        _, command = self._later
        self._later = None
        return command

    def _wait_s(self) -> float:
        return self._drawn_at + self._period_s - self._clock()

    def _patience_s(self) -> float | None:
        """Seconds until something is due by itself; None: nothing is."""
        if self._dirty:
            return max(0.001, self._wait_s())
        return None if self._later is None else max(0.001, self._later[0] - self._clock())

    def _run(self) -> None:
        _give_way()
        while True:
            if self.turn():
                continue
            with self._changed:
                if self._closed:
                    return
                if not self._commands:
                    self._changed.wait(self._patience_s())


def _give_way() -> None:
    """Have this thread run after those of the engine where they share cores: pictures can wait, forwards cannot."""
    if sys.platform == "linux":  # where a priority belongs to a thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), GIVEN_WAY)
