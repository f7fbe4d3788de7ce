"""The thread that runs the caller's callbacks, so that a slow or broken one harms neither the reader nor the worker."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)
_REMEMBERED = 32


class Callbacks:
    """Runs callbacks one at a time, in order, on a thread that starts with the first of them.

    An exception in one is logged with its traceback, kept in :attr:`errors`, and ends nothing. Callbacks may call the
    client.
    """

    def __init__(self) -> None:
        self.errors: deque[Exception] = deque(maxlen=_REMEMBERED)
        self.dropped = 0
        self._jobs: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._busy = False

    def post(self, callback: Callable[..., object], *args: Any, room: int | None = None) -> None:
        """Run ``callback(*args)`` soon. With ``room``, drop it (and count that) if so many of the same are waiting."""
        with self._changed:
            if self._closed:
                return
            if room is not None and sum(waiting is callback for waiting, _ in self._jobs) >= room:
                self.dropped += 1
                return
            self._jobs.append((callback, args))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dsv4lab-callbacks", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was posted has run; False when late. Returns at once on the callback thread itself."""
        if threading.current_thread() is self._thread:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or not (self._jobs or self._busy), timeout_s)

    def close(self) -> None:
        """Drop what waits and end the thread after the callback that it runs."""
        with self._changed:
            self._closed = True
            self._jobs.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if self._closed:
                    return
                callback, args = self._jobs.popleft()
                self._busy = True
            try:
                callback(*args)
            except Exception as error:  # noqa: BLE001 - reported, and the next callback still runs
                self.errors.append(error)
                _log.exception("a callback failed: %r", callback)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
