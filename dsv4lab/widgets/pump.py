"""One background thread per view: runs its commands in order and redraws at most so often."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

Command = Callable[[], None]


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

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread after the command or drawing that it runs; drop the rest."""
        with self._changed:
            self._closed = True
            self._commands.clear()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def turn(self) -> bool:
        """Run what is due now: one command, or a drawing. Returns whether there was something."""
        with self._changed:
            if self._closed:
                return False
            command = self._commands.popleft() if self._commands else None
            if command is None:
                if not self._dirty or self._wait_s() > 0:
                    return False
                self._dirty = False
                self._drawn_at = self._clock()
                command = self._draw
        command()
        return True

    def _wait_s(self) -> float:
        return self._drawn_at + self._period_s - self._clock()

    def _run(self) -> None:
        while True:
            if self.turn():
                continue
            with self._changed:
                if self._closed:
                    return
                if not self._commands:
                    self._changed.wait(max(0.001, self._wait_s()) if self._dirty else None)
