"""The client's line to its worker: started, restarted with other settings, ended; one worker at a time."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import MethodType
from typing import Any, TypeVar

from dsv4lab.config.engine import EngineConfig
from dsv4lab.engine.loop_store import announce
from dsv4lab.engine.messages import Answer, Call, Message, Progress, Ready, Reply, Steps
from dsv4lab.engine.session import Session
from dsv4lab.env import VARIABLES, rank_environ
from dsv4lab.errors import EngineError, LabError, WorkerDiedError

R = TypeVar("R", bound=Reply)
OnProgress = Callable[[float, str], object]
"""Called with a fraction from 0 to 1 and what is being done."""

_CLOSED = "the client is closed"
_BOOT_FRACTIONS = (0.2, 0.4, 0.8)


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a client waits: for a start, for a call, for any sign of life while requests run, for an end."""

    start_s: float = 300.0
    call_s: float = 60.0
    stall_s: float = 120.0
    stop_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that has been sent and not waited for."""

    session: Session
    number: int
    future: Future[Answer]

    def wait(self, kind: type[R], timeout_s: float) -> R:
        """Its reply; see :meth:`Session.call`."""
        return self.session.wait(self.number, self.future, kind, timeout_s)


class Link:
    """Holds the present session. ``on_event`` and ``on_end`` are methods; their owner is not kept alive by them."""

    def __init__(
        self,
        arguments: Sequence[str],
        patience: Patience,
        on_event: Callable[[Progress | Steps], None],
        on_end: Callable[[LabError], None],
    ) -> None:
        self.patience = patience
        self._arguments = tuple(arguments)
        self._on_event = _weak(on_event)
        self._report_end = _weak(on_end)
        self._session: Session | None = None
        self._down: LabError = WorkerDiedError("the worker has not been started")
        self._touched = time.monotonic()
        self._closed = False
        self._lock = threading.Lock()

    @property
    def alive(self) -> bool:
        """Whether a worker takes commands."""
        return self._session is not None

    @property
    def pid(self) -> int | None:
        """Process id of the worker."""
        return self._session.pid if self._session is not None else None

    @property
    def error(self) -> LabError | None:
        """Why there is no worker, if there is none."""
        return None if self.alive else self._down

    def silent_for(self) -> float:
        """Seconds since the worker was heard, or since the last start began."""
        session = self._session
        heard = session.heard_at if session is not None else self._touched
        return time.monotonic() - max(heard, self._touched)

    def connect(self, config: EngineConfig, environ: Mapping[str, str | None], progress: OnProgress | None) -> Ready:
        """Start a worker and wait for it. On any error there is none afterwards, and calls raise that error."""
        tell = progress or (lambda _fraction, _stage: None)
        with self._lock:
            self._check_open()
            self._touched = time.monotonic()
            tell(0.1, "starting a process")
            session = Session(
                config.to_json(), worker_environ(config, environ), self._arguments, self._on_event, self._on_end
            )
            fractions = iter(_BOOT_FRACTIONS)

            def on_stage(stage: str) -> None:
                announce(stage)
                tell(next(fractions, 0.9), stage)

            try:
                ready = session.ready(self.patience.start_s, on_stage)
            except BaseException as error:
                session.kill()
                self._down = error if isinstance(error, LabError) else WorkerDiedError("the start was interrupted")
                raise
            self._session = session
            if session.ended:  # it died before it could be told that it is the present one
                self._session = None
                raise type(self._down)(str(self._down))
        tell(1.0, "ready")
        return ready

    def disconnect(self) -> None:
        """End the worker after the forward in flight. What it said until then has been taken when this returns."""
        with self._lock:
            self._check_open()
            session, self._session = self._session, None
            self._touched = time.monotonic()
            self._down = WorkerDiedError("the worker is being restarted")
            if session is not None:
                session.leave(self.patience.stop_s)

    def close(self) -> None:
        """End the worker for good."""
        self._closed = True
        session, self._session = self._session, None
        self._down = EngineError(_CLOSED)
        if session is not None:
            session.leave(min(self.patience.stop_s, 5.0))

    def send(self, message: Message) -> None:
        """Send one way. Raises why the worker is gone."""
        self._present().send(message)

    def begin(self, make: Callable[[int], Call]) -> Pending:
        """Send a call, and wait for nothing."""
        session = self._present()
        return Pending(session, *session.begin(make))

    def call(self, make: Callable[[int], Call], kind: type[R]) -> R:
        """Send a call and wait for its reply within the call's patience."""
        return self.begin(make).wait(kind, self.patience.call_s)

    def _present(self) -> Session:
        session = self._session
        if session is None:
            raise type(self._down)(str(self._down))
        return session

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError(_CLOSED)

    def _on_end(self, error: LabError | None) -> None:
        if error is not None:
            self._down, self._session = error, None
            self._report_end(error)


def worker_environ(config: EngineConfig, changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """What the worker's environment has other than ours: what is read once, when a process starts."""
    variable = "cuda_device_max_connections" if config.device.startswith("cuda") else "gpu_max_hw_queues"
    ranks = rank_environ() if config.world_size > 1 else {}
    return {**ranks, **changes, VARIABLES[variable]: str(config.hw_queues)}


def _weak(method: Callable[..., None]) -> Callable[[Any], None]:
    assert isinstance(method, MethodType)
    reference = weakref.WeakMethod(method)

    def call(argument: Any) -> None:
        alive = reference()
        if alive is not None:
            alive(argument)

    return call
