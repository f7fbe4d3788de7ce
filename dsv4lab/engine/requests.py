"""The requests in flight of one client: who gets which token, and what a new worker must be told again."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

from dsv4lab.engine.callbacks import Callbacks
from dsv4lab.engine.handle import RequestHandle
from dsv4lab.engine.messages import Progress, lab_error
from dsv4lab.engine.request import FinishReason, RequestSpec
from dsv4lab.errors import LabError


class LiveRequests:
    """Handles by request number, from submission to the end. Thread-safe."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._numbers = itertools.count(1)
        self._handles: dict[int, RequestHandle] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._handles)

    def number(self) -> int:
        """A request number that no other request of this client has, over all its workers."""
        return next(self._numbers)

    def add(self, handles: Sequence[RequestHandle]) -> None:
        """These are in flight now."""
        with self._lock:
            self._handles.update((handle.request_id, handle) for handle in handles)

    def discard(self, handles: Sequence[RequestHandle]) -> None:
        """These never were submitted after all."""
        with self._lock:
            for handle in handles:
                self._handles.pop(handle.request_id, None)

    def take(self, progress: Progress) -> None:
        """Give tokens and ends to those they belong to; the reader does this."""
        logprobs = dict(progress.logprobs)
        for place, (request_id, token) in enumerate(progress.tokens):
            handle = self._handles.get(request_id)
            if handle is not None:
                handle.push(token, progress.time_ns, logprobs.get(place))
                if handle.on_token is not None:
                    self._callbacks.post(handle.on_token, token)
                if handle.stopped:
                    self._end_here(handle)
        for end in progress.finished:
            with self._lock:
                handle = self._handles.pop(end.request_id, None)
            if handle is not None:
                failed = end.reason is FinishReason.ERROR
                error = lab_error(end.kind, end.text) if failed else None
                handle.finish(end.reason, error, end.fingerprints)

    def _end_here(self, handle: RequestHandle) -> None:
        """A stop string is complete, which the worker cannot know: end the request for its caller, and tell it."""
        with self._lock:
            self._handles.pop(handle.request_id, None)
        handle.finish(FinishReason.STOP)
        self._callbacks.post(handle.abandon)

    def fail(self, error: LabError) -> None:
        """None of them will get any more."""
        with self._lock:
            lost, self._handles = list(self._handles.values()), {}
        for handle in lost:
            handle.finish(FinishReason.ERROR, error)

    def abort(self, request_id: int) -> None:
        """End one that no worker knows."""
        with self._lock:
            handle = self._handles.pop(request_id, None)
        if handle is not None:
            handle.finish(FinishReason.ABORT)

    def replays(self) -> list[RequestSpec]:
        """All of them with their tokens so far, oldest first."""
        with self._lock:
            return [handle.replay() for handle in self._handles.values()]
