"""One request as its caller holds it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from dsv4lab.engine.logprobs import TokenLogprobs
from dsv4lab.engine.request import FinishReason, RequestSpec
from dsv4lab.engine.results import RequestStats
from dsv4lab.errors import LabError, TimeoutExceededError
from dsv4lab.text.stream import TextStream

_WAKE_S = 5.0

T = TypeVar("T")
OnToken = Callable[[int], object]
OnEnd = Callable[["RequestHandle"], object]


@dataclass(frozen=True, slots=True)
class News:
    """What a request has got since somebody last looked; ``done``: nothing comes after it."""

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...]
    done: bool


class Owner(Protocol):
    """The client, as a handle sees it."""

    def abort(self, request_id: int) -> None:
        """End a request."""
        ...

    def silent_for(self) -> float:
        """Seconds since the worker was last heard, or restarted."""
        ...

    @property
    def stall_s(self) -> float:
        """Seconds of silence after which waiting is given up."""
        ...


class RequestHandle:
    """A submitted request: iterate it for new tokens as they come, or wait for :meth:`result`.

    ``stream`` makes text of them, and ends the request at a stop string. Each iteration starts at the first new token.
    Waiting raises what the request failed with, and ``TimeoutExceededError`` when the worker says nothing for too long;
    it never hangs.
    """

    def __init__(
        self,
        spec: RequestSpec,
        owner: Owner,
        submitted_ns: int,
        on_token: OnToken | None = None,
        on_end: OnEnd | None = None,
        stream: TextStream | None = None,
    ) -> None:
        self.on_token = on_token
        self.on_end = on_end
        self._spec = spec
        self._owner = owner
        self._submitted_ns = submitted_ns
        self._tokens: list[int] = []
        self._times_ns: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._stream = stream
        self._pieces: list[str] = []
        self._reason: FinishReason | None = None
        self._error: LabError | None = None
        self._fingerprints: tuple[int, ...] = ()
        self._watcher: Callable[[], object] | None = None
        self._changed = threading.Condition()

    @property
    def request_id(self) -> int:
        """The request's number; the same in snapshots and step records."""
        return self._spec.request_id

    @property
    def prompt(self) -> list[int]:
        """Token ids of the prompt."""
        return list(self._spec.prompt)

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self._spec.prompt)

    @property
    def tokens(self) -> list[int]:
        """New tokens so far."""
        with self._changed:
            return list(self._tokens)

    @property
    def text(self) -> str | None:
        """Text of the new tokens so far, without a stop string; None where the request has none."""
        with self._changed:
            return None if self._stream is None else "".join(self._pieces)

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self._stream is not None and self._stream.stopped is not None

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """Log-probabilities of the new tokens so far; empty unless the request asked for them."""
        with self._changed:
            return list(self._logprobs)

    @property
    def done(self) -> bool:
        """Whether no more tokens come."""
        return self._reason is not None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None while it runs."""
        return self._reason

    @property
    def stats(self) -> RequestStats:
        """Latencies so far; complete once :attr:`done`."""
        with self._changed:
            reason = self._reason or FinishReason.ABORT
            logprobs = tuple(self._logprobs)
            return RequestStats.of(self._submitted_ns, self._times_ns, reason, self._fingerprints, logprobs)

    @property
    def submitted_ns(self) -> int:
        """Time of submission (``time.perf_counter_ns``)."""
        return self._submitted_ns

    @property
    def ended_ns(self) -> int:
        """Time of the last token (``time.perf_counter_ns``), of submission if there is none."""
        with self._changed:
            return self._times_ns[-1] if self._times_ns else self._submitted_ns

    def __iter__(self) -> Iterator[int]:
        return self._follow(self._tokens)

    def pieces(self) -> Iterator[str]:
        """Text as it comes: whole characters, and nothing that may turn out to be the beginning of a stop string."""
        return (piece for piece in self._follow(self._pieces) if piece)

    def watch(self, watcher: Callable[[], object]) -> None:
        """Call ``watcher()`` once now, and on the client's reader after each change: it has to be quick, and not raise.

        It replaces the one before. :meth:`news` tells what changed.
        """
        with self._changed:
            self._watcher = watcher
        watcher()

    def news(self, place: int) -> News:
        """What there is from new token ``place`` on, without waiting. Raises what the request failed with."""
        with self._changed:
            self._raise_error()
            tokens, pieces = tuple(self._tokens[place:]), self._pieces[place:]
            return News(tokens, "".join(pieces), tuple(self._logprobs[place:]), self.done)

    def result(self, timeout_s: float | None = None) -> list[int]:
        """All new tokens, once the request has ended (by itself or by :meth:`abort`)."""
        self._await(lambda: self.done, timeout_s)
        self._raise_error()
        return self.tokens

    def abort(self) -> None:
        """End the request; it keeps the tokens that it has. Nothing happens if it has ended."""
        if not self.done:
            self._owner.abort(self.request_id)

    def abandon(self) -> None:
        """Tell the worker that nobody waits for more; one that is gone needs no telling."""
        with contextlib.suppress(LabError):
            self._owner.abort(self.request_id)

    def replay(self) -> RequestSpec:
        """The request with the tokens so far, for a new worker to go on from."""
        with self._changed:
            return replace(self._spec, generated=tuple(self._tokens))

    def push(self, token: int, time_ns: int, logprobs: TokenLogprobs | None = None) -> None:
        """Take a new token; the client's reader does this."""
        with self._changed:
            self._tokens.append(token)
            self._times_ns.append(time_ns)
            if self._stream is not None:
                self._pieces.append(self._stream.push(token))
            if logprobs is not None:
                self._logprobs.append(logprobs)
            self._changed.notify_all()
            watcher = self._watcher
        if watcher is not None:
            watcher()

    def finish(self, reason: FinishReason, error: LabError | None = None, fingerprints: tuple[int, ...] = ()) -> None:
        """Take the end; the client's reader does this."""
        with self._changed:
            if self._reason is not None:
                return
            self._reason, self._error, self._fingerprints = reason, error, fingerprints
            if self._stream is not None:
                self._pieces.append(self._stream.finish())
            self._changed.notify_all()
            watcher = self._watcher
        if watcher is not None:
            watcher()
        if self.on_end is not None:
            self.on_end(self)

    def _follow(self, items: list[T]) -> Iterator[T]:
        """The items of a growing list, until the request has ended."""
        place = 0
        while True:
            self._await(lambda: len(items) > place or self.done, None)  # noqa: B023 - called at once
            with self._changed:
                fresh, done = items[place:], self.done
            yield from fresh
            place += len(fresh)
            if done:
                self._raise_error()
                return

    def _await(self, condition: Callable[[], bool], timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not condition():
                self._check_patience(deadline, timeout_s)
                left = _WAKE_S if deadline is None else min(_WAKE_S, deadline - time.monotonic())
                self._changed.wait(min(max(left, 0.0), self._owner.stall_s))

    def _check_patience(self, deadline: float | None, timeout_s: float | None) -> None:
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutExceededError(f"request {self.request_id} has not ended within {timeout_s:g} s")
        if (silence := self._owner.silent_for()) > self._owner.stall_s:
            raise TimeoutExceededError(
                f"request {self.request_id}: the worker has said nothing for {silence:.0f} s; "
                "client.restart() starts a new one"
            )

    def _raise_error(self) -> None:
        if self._error is not None:
            raise type(self._error)(str(self._error))
