"""The life of one worker as its client sees it: calls with deadlines, events, and one end with one reason."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

from dsv4lab.engine.messages import (
    Answer,
    Booting,
    Call,
    Failed,
    FromWorker,
    Message,
    Progress,
    Ready,
    Reply,
    Shutdown,
    Start,
    Steps,
)
from dsv4lab.engine.transport import WorkerProcess
from dsv4lab.errors import EngineError, LabError, TimeoutExceededError, WorkerDiedError

R = TypeVar("R", bound=Reply)

_LAST_WORDS_S = 5.0
_log = logging.getLogger(__name__)


class Session:
    """One worker process, from start to end. ``on_event`` and ``on_end`` run on the reader thread and must be quick.

    ``on_end(error)`` comes exactly once; ``error`` is None if the end was asked for.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        environ: Mapping[str, str | None],
        arguments: Sequence[str],
        on_event: Callable[[Progress | Steps], None],
        on_end: Callable[[LabError | None], None],
    ) -> None:
        self._on_event = on_event
        self._on_end = on_end
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[int, Future[Answer]] = {}
        self._boot: SimpleQueue[Booting | Ready | LabError] = SimpleQueue()
        self._leaving = False
        self._error: LabError | None = None
        self._ended = threading.Event()
        self.heard_at = time.monotonic()
        self._process = WorkerProcess(environ, arguments)
        self._reader = threading.Thread(target=self._read, name="dsv4lab-reader", daemon=True)
        self._reader.start()
        self.send(Start(dict(config)))

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the worker is gone."""
        return self._ended.is_set()

    def ready(self, timeout_s: float, on_stage: Callable[[str], object]) -> Ready:
        """Wait for the worker to take commands, telling ``on_stage`` how far it is; once.

        Raises what its start failed with, ``TimeoutExceededError`` when it is late, and what ``on_stage`` raises.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                news = self._boot.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise TimeoutExceededError(f"the worker was not ready within {timeout_s:g} s") from None
            if isinstance(news, LabError):
                raise news
            if isinstance(news, Ready):
                return news
            on_stage(news.stage)

    def send(self, message: Message) -> None:
        """Send one way. Raises the session's end if it has ended."""
        if self._ended.is_set():
            raise self._reason()
        self._process.send(message)

    def call(self, make: Callable[[int], Call], kind: type[R], timeout_s: float) -> R:
        """Send ``make(number)`` and wait for its reply. Raises its error, the worker's end, or when it is late."""
        number, future = self.begin(make)
        return self.wait(number, future, kind, timeout_s)

    def begin(self, make: Callable[[int], Call]) -> tuple[int, Future[Answer]]:
        """The first half of :meth:`call`: send, and wait for nothing."""
        number, future = next(self._numbers), Future[Answer]()
        with self._lock:
            if self._ended.is_set():
                raise self._reason()
            self._pending[number] = future
        self.send(make(number))
        return number, future

    def wait(self, number: int, future: Future[Answer], kind: type[R], timeout_s: float) -> R:
        """The second half of :meth:`call`."""
        try:
            answer = future.result(timeout_s)
        except TimeoutError:
            with self._lock:
                self._pending.pop(number, None)
            raise TimeoutExceededError(
                f"the worker did not answer within {timeout_s:g} s; client.restart() starts a new one"
            ) from None
        if not isinstance(answer, kind):
            raise EngineError(f"malformed message: {type(answer).__name__} where {kind.__name__} was due")
        return answer

    def leave(self, patience_s: float) -> None:
        """End the worker after the forward in flight, killing it after ``patience_s``; its messages still arrive."""
        self._leaving = True
        self._process.send(Shutdown())
        self._ended.wait(patience_s)
        self.kill()

    def kill(self) -> None:
        """End the worker now, and wait until its end has been told."""
        self._leaving = True
        self._process.end(0.0 if not self._ended.is_set() else _LAST_WORDS_S)
        if threading.current_thread() is not self._reader:
            self._reader.join(2 * _LAST_WORDS_S)

    def _read(self) -> None:
        error: LabError | None = None
        try:
            while (message := self._process.receive()) is not None:
                self.heard_at = time.monotonic()
                self._take(message)
        except LabError as caught:
            error = caught
        except Exception as caught:  # noqa: BLE001 - logged, and the end of the session like any other
            _log.exception("the client failed on a message of the worker")
            error = EngineError(f"the client failed on a message of the worker: {type(caught).__name__}: {caught}")
        self._finish(error)

    def _take(self, message: FromWorker) -> None:
        if isinstance(message, Failed) and message.call == 0:
            raise message.error()
        if isinstance(message, Reply):
            with self._lock:
                future = self._pending.pop(message.call, None)
            if future is not None:  # else its caller has given up
                _settle(future, message)
        elif isinstance(message, Booting | Ready):
            self._boot.put(message)
        else:
            self._on_event(message)

    def _finish(self, error: LabError | None) -> None:
        self._process.end(_LAST_WORDS_S)
        self._process.release()
        if error is None and not self._leaving:
            error = WorkerDiedError(f"the worker process ended unexpectedly: {self._process.epitaph()}")
        with self._lock:
            self._error = error
            pending, self._pending = list(self._pending.values()), {}
            self._ended.set()
        self._on_end(error)
        for future in pending:
            future.set_exception(self._reason())
        self._boot.put(self._reason())

    def _reason(self) -> LabError:
        """The end as a new exception: one instance must not be raised by several threads."""
        return again(self._error) if self._error is not None else WorkerDiedError("the worker has been ended")


def again(error: LabError) -> LabError:
    """The same error as a new exception."""
    return type(error)(str(error))


def _settle(future: Future[Answer], answer: Answer) -> None:
    if isinstance(answer, Failed):
        future.set_exception(answer.error())
    else:
        future.set_result(answer)
