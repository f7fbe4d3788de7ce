"""Which tokens of which requests make the next forward: continuous batching with chunked prefill. Never imports torch.

A request is admitted, first come first served, when a slot and the pages of its prompt and all its new tokens are
free, so a running request can never run out of room. Forwards are prefill or decode, and alternate while there is
work of both kinds. At most one forward is in flight; what it reads is not given back before it has completed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dsv4lab.engine.request import FinishReason, RequestSpec
from dsv4lab.errors import EngineError
from dsv4lab.kv.allocator import Allocator, Lease

Mode = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens of one request in one forward, at positions ``start`` and on.

    ``samples`` tells that the last of them is the request's last known token, so its logits choose the next one.
    """

    spec: RequestSpec
    lease: Lease
    start: int
    tokens: tuple[int, ...]
    samples: bool
    generated: int  # new tokens that the request already has: the number of the one to be chosen

    @property
    def slot(self) -> int:
        """Slot of the request."""
        return self.lease.slot

    @property
    def pages(self) -> tuple[int, ...]:
        """Pages of the request, oldest first."""
        return self.lease.pages


@dataclass(frozen=True, slots=True)
class Step:
    """One forward. ``fresh_slots`` were admitted for it and must be cleared before it runs."""

    number: int
    mode: Mode
    chunks: tuple[Chunk, ...]
    fresh_slots: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all chunks."""
        return sum(len(chunk.tokens) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step or an abort meant for one request: a new token, its end, or both.

    ``released`` is what an ended request gave back, None if it never held anything.
    """

    request_id: int
    token: int | None = None
    finish: FinishReason | None = None
    released: Lease | None = None


@dataclass(slots=True)
class Running:
    """An admitted request: its lease, all tokens known so far, and how many of them are in the pool."""

    spec: RequestSpec
    lease: Lease
    tokens: list[int]
    computed: int = 0
    prefilled: bool = False
    aborted: bool = False
    fresh: bool = True

    @property
    def generated(self) -> int:
        """New tokens so far, those of earlier lives included."""
        return len(self.tokens) - len(self.spec.prompt)


@dataclass(slots=True)
class Scheduler:
    """Waiting and running requests of one engine."""

    allocator: Allocator
    chunked_prefill_size: int
    lookahead: int = 0
    """Tokens past its last one that a request's decode steps may write: the drafts of speculation."""
    _waiting: deque[RequestSpec] = field(default_factory=deque)
    _running: dict[int, Running] = field(default_factory=dict)  # by request id, in order of admission
    _in_flight: Step | None = None
    _last_mode: Mode = "decode"
    _steps: int = 0

    @property
    def steps(self) -> int:
        """Forwards so far."""
        return self._steps

    @property
    def waiting(self) -> int:
        """Requests that are not admitted yet."""
        return len(self._waiting)

    @property
    def running(self) -> tuple[Running, ...]:
        """Admitted requests, oldest first."""
        return tuple(self._running.values())

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do, and nothing in flight."""
        return not self._waiting and not self._running

    def find(self, request_id: int) -> Running | None:
        """The running request of that number, if there is one."""
        return self._running.get(request_id)

    def knows(self, request_id: int) -> bool:
        """Whether the request is running or waiting."""
        return request_id in self._running or any(spec.request_id == request_id for spec in self._waiting)

    def submit(self, spec: RequestSpec) -> None:
        """Queue a request whose limits have been checked. Raises :class:`EngineError` if its number is in use."""
        if self.knows(spec.request_id):
            raise EngineError(f"request {spec.request_id} exists already")
        self._waiting.append(spec)

    def abort(self, request_id: int) -> Outcome | None:
        """End a request. None if it is unknown (it may have just finished), or if its end must wait for
        :meth:`complete` because the forward in flight still touches its rows.
        """
        for spec in self._waiting:
            if spec.request_id == request_id:
                self._waiting.remove(spec)
                return Outcome(request_id, finish=FinishReason.ABORT)
        request = self._running.get(request_id)
        if request is None:
            return None
        if self._touches(request_id):
            request.aborted = True
            return None
        return self._end(request, FinishReason.ABORT)

    def next_step(self) -> Step | None:
        """Admit what fits and choose the next forward; None if there is nothing to run."""
        if self._in_flight is not None:
            raise EngineError(f"step {self._in_flight.number} is still in flight")
        self._admit()
        mode = self._choose_mode()
        if mode is None:
            return None
        chunks = tuple(self._prefill_chunks() if mode == "prefill" else self._decode_chunks())
        fresh = tuple(chunk.slot for chunk in chunks if self._running[chunk.spec.request_id].fresh)
        step = Step(self._steps, mode, chunks, fresh)
        for chunk in chunks:
            self._running[chunk.spec.request_id].fresh = False
        self._in_flight, self._last_mode = step, mode
        self._steps += 1
        return step

    def complete(self, step: Step, chosen: Sequence[int | tuple[int, ...] | None]) -> list[Outcome]:
        """Take the results of ``step``: ``chosen`` has, per chunk, the new token, or None where none was due.

        A decode chunk may give several tokens: all but the last of them are in the pool already, like its own.
        """
        self._land(step)
        return [
            outcome
            for chunk, new in zip(step.chunks, chosen, strict=True)
            for outcome in self._advance(self._running[chunk.spec.request_id], chunk, _tuple(new))
        ]

    def fail(self, step: Step) -> list[Outcome]:
        """``step`` raised: its requests end, and everything they held comes back."""
        self._land(step)
        requests = [self._running[chunk.spec.request_id] for chunk in step.chunks]
        return [self._end(r, FinishReason.ABORT if r.aborted else FinishReason.ERROR) for r in requests]

    def check(self) -> None:
        """Raise :class:`EngineError` if what the requests hold and what the allocator gave out disagree."""
        self.allocator.check()
        slots = [r.lease.slot for r in self._running.values()]
        pages = [page for r in self._running.values() for page in r.lease.pages]
        if len(set(slots)) != len(slots) or len(set(pages)) != len(pages):
            raise EngineError("two requests hold one slot or page")

    def _admit(self) -> None:
        while self._waiting and self.allocator.can_admit(self._waiting[0].total_tokens + self.lookahead):
            spec = self._waiting.popleft()
            lease = self.allocator.admit(spec.request_id, spec.total_tokens + self.lookahead)
            self._running[spec.request_id] = Running(spec, lease, [*spec.prompt, *spec.generated])

    def _choose_mode(self) -> Mode | None:
        modes: set[Mode] = {"decode" if r.prefilled else "prefill" for r in self._running.values()}
        if len(modes) == 2:
            return "prefill" if self._last_mode == "decode" else "decode"
        return modes.pop() if modes else None

    def _prefill_chunks(self) -> Iterator[Chunk]:
        budget = self.chunked_prefill_size
        for request in self._running.values():
            if not request.prefilled and budget > 0:
                chunk = _chunk(request, budget)
                budget -= len(chunk.tokens)
                yield chunk

    def _decode_chunks(self) -> Iterator[Chunk]:
        return (_chunk(request, 1) for request in self._running.values() if request.prefilled)

    def _touches(self, request_id: int) -> bool:
        step = self._in_flight
        return step is not None and any(chunk.spec.request_id == request_id for chunk in step.chunks)

    def _land(self, step: Step) -> None:
        if step is not self._in_flight:
            raise EngineError(f"step {step.number} is not in flight")
        self._in_flight = None

    def _advance(self, request: Running, chunk: Chunk, new: tuple[int, ...]) -> list[Outcome]:
        if bool(new) != chunk.samples and not request.aborted:
            raise EngineError(f"request {chunk.spec.request_id}: a token was {'due' if chunk.samples else 'not due'}")
        request.computed += len(chunk.tokens) + max(len(new) - 1, 0)
        if request.aborted:
            return [self._end(request, FinishReason.ABORT)]
        outcomes: list[Outcome] = []
        for token in new:
            request.prefilled = True
            request.tokens.append(token)
            reason = self._reason_to_end(request, token)
            if reason is not None:
                return [*outcomes, self._end(request, reason, token)]
            outcomes.append(Outcome(request.spec.request_id, token))
        return outcomes

    def _reason_to_end(self, request: Running, token: int) -> FinishReason | None:
        if token in request.spec.sampling.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if request.generated >= request.spec.max_new_tokens else None

    def _end(self, request: Running, reason: FinishReason, token: int | None = None) -> Outcome:
        del self._running[request.spec.request_id]
        self.allocator.release(request.lease)
        return Outcome(request.spec.request_id, token, reason, request.lease)


def _tuple(new: int | tuple[int, ...] | None) -> tuple[int, ...]:
    if new is None:
        return ()
    return new if isinstance(new, tuple) else (new,)


def _chunk(request: Running, budget: int) -> Chunk:
    stop = min(len(request.tokens), request.computed + budget)
    return Chunk(
        spec=request.spec,
        lease=request.lease,
        start=request.computed,
        tokens=tuple(request.tokens[request.computed : stop]),
        samples=stop == len(request.tokens),
        generated=request.generated,
    )
