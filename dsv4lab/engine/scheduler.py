"""Which tokens of which requests make the next forward: continuous batching with chunked prefill. Never imports torch.

Requests are served first come, first served. One is admitted when a slot and the pages of its known tokens are free,
and gets further pages as it decodes; where those run out, the youngest request gives all of its own back, and goes on
later, ahead of everything that came after it. The oldest request is never stopped, so all come to an end. With
``reserve_full`` a request takes the pages of all its new tokens at once, and is never stopped.

Forwards are prefill or decode, and alternate while there is work of both kinds; with ``mixed`` one forward does both.
At most one forward is in flight; what it reads is not given back before it has completed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dsv4lab.engine.request import FinishReason, RequestSpec
from dsv4lab.engine.step import Chunk, Outcome, Running, Step, StepMode, Waiting
from dsv4lab.errors import EngineError
from dsv4lab.kv.allocator import Allocator, Freed
from dsv4lab.kv.geometry import ceil_div
from dsv4lab.kv.prefix_cache import Hit, PrefixCache

WATERMARK_SHARE = 100  # of this many pages one stays free when a request is admitted beside others, at least one


@dataclass(slots=True)
class Scheduler:
    """Waiting and running requests of one engine."""

    allocator: Allocator
    chunked_prefill_size: int
    lookahead: int = 0
    """Tokens past its last one that a request's decode steps may write: the drafts of speculation."""
    mixed: bool = False
    """Prefill chunks and decoding requests share forwards, of ``chunked_prefill_size`` tokens together."""
    reserve_full: bool = False
    whole_chunks: bool = False
    """A request's prefill chunks are those it would have alone: one that does not fit beside others waits."""
    cache: PrefixCache | None = None
    _waiting: deque[Waiting] = field(default_factory=deque)
    _running: dict[int, Running] = field(default_factory=dict)  # by request id, in order of arrival
    _freed: list[Freed] = field(default_factory=list)  # since the last step
    _in_flight: Step | None = None
    _last_mode: StepMode = "decode"
    _steps: int = 0
    _preemptions: int = 0

    @property
    def steps(self) -> int:
        """Forwards so far."""
        return self._steps

    @property
    def preemptions(self) -> int:
        """How often a request was stopped for want of pages."""
        return self._preemptions

    @property
    def waiting(self) -> int:
        """Requests that are not admitted yet, or were stopped."""
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
        return request_id in self._running or any(w.spec.request_id == request_id for w in self._waiting)

    def submit(self, spec: RequestSpec) -> None:
        """Queue a request whose limits have been checked. Raises :class:`EngineError` if its number is in use."""
        if self.knows(spec.request_id):
            raise EngineError(f"request {spec.request_id} exists already")
        self._waiting.append(Waiting(spec, [*spec.prompt, *spec.generated]))

    def abort(self, request_id: int) -> Outcome | None:
        """End a request. None if it is unknown (it may have just finished), or if its end must wait for
        :meth:`complete` because the forward in flight still touches its rows.
        """
        for waiting in self._waiting:
            if waiting.spec.request_id == request_id:
                self._waiting.remove(waiting)
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
        self._make_room_to_decode()
        self._admit()
        mode = self._choose_mode()
        if mode is None:
            return None
        chunks = tuple(self._chunks(mode))
        fresh = [r for c in chunks if (r := self._running[c.spec.request_id]).fresh]
        resumes = tuple(request.resume() for request in fresh if request.hit is not None)
        step = Step(self._steps, mode, chunks, tuple(r.lease.slot for r in fresh), self._take_freed(), resumes)
        for request in fresh:
            request.fresh, request.hit = False, None
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
        """Raise :class:`EngineError` or ``PoolError`` if somebody could write what somebody else holds."""
        self.allocator.check()
        if self.cache is not None:
            self.cache.check()
        leases = [r.lease for r in self._running.values()]
        if leases != list(self.allocator.leases):
            raise EngineError("the running requests and the allocator's leases differ")
        readers = [page for lease in leases for page in lease.pages]
        for request in self._running.values():
            for page in request.lease.pages[request.computed // self.allocator.geometry.page_size :]:
                if readers.count(page) > 1 or page in self.allocator.cached_page_ids:
                    raise EngineError(f"request {request.spec.request_id} writes page {page}, which others may read")

    def _make_room_to_decode(self) -> None:
        """Give every decoding request, oldest first, the pages of its next step; stop the youngest if need be."""
        for request in self.running:
            while request.spec.request_id in self._running and request.prefilled and not self._grow(request):
                self._preempt(self.running[-1])

    def _grow(self, request: Running) -> bool:
        tokens = len(request.tokens) + self.lookahead
        missing = self.allocator.geometry.pages_for(tokens) - len(request.lease.pages)
        if missing > 0 and self.cache is not None:
            self.cache.evict(missing - self.allocator.free_pages)
        if not self.allocator.can_grow(request.lease, tokens):
            return False
        self.allocator.grow(request.lease, tokens)
        return True

    def _preempt(self, request: Running) -> None:
        del self._running[request.spec.request_id]
        self._freed.append(self.allocator.release(request.lease))
        self._waiting.appendleft(Waiting(request.spec, request.tokens))
        self._preemptions += 1

    def _admit(self) -> None:
        while self._waiting and self.allocator.free_slots:
            first = self._waiting[0]
            most = min(first.goal, len(first.tokens) - 1)
            hit = None if self.cache is None else self.cache.match(first.tokens, most)
            if not self._can_admit(first, hit):
                return
            self._waiting.popleft()
            tokens, number = self._reserved(first), first.spec.request_id
            shared = () if hit is None else hit.pages
            if self.cache is not None:
                missing = self.allocator.geometry.pages_for(tokens) - len(shared)
                self.cache.evict(missing - self.allocator.free_pages, shared)
                self.cache.count(first.tokens, hit)
            lease = self.allocator.admit(number, tokens, shared)
            computed = 0 if hit is None else hit.length
            self._running[number] = Running(first.spec, lease, first.tokens, computed, hit)

    def _can_admit(self, first: Waiting, hit: Hit | None) -> bool:
        """Whether enough pages are free; beside other requests a few stay free for those to grow."""
        a = self.allocator
        shared = () if hit is None else hit.pages
        pages = a.geometry.pages_for(self._reserved(first)) - len(shared)
        if self._running and not self.reserve_full:
            pages += ceil_div(a.geometry.pages - 1, WATERMARK_SHARE)
        evictable = a.idle_pages - sum(map(a.is_idle, shared))
        return pages <= a.free_pages + evictable

    def _reserved(self, waiting: Waiting) -> int:
        """Tokens whose pages a request gets at admission: those of its first decode step included."""
        whole = waiting.spec.total_tokens
        return self.lookahead + (whole if self.reserve_full else min(whole, len(waiting.tokens) + 1))

    def _take_freed(self) -> tuple[Freed, ...]:
        freed, self._freed = self._freed, []
        if self.cache is not None and (pages := self.cache.take_freed()):
            freed.append(Freed(None, pages))
        return tuple(freed)

    def _choose_mode(self) -> StepMode | None:
        modes: set[StepMode] = {"decode" if r.prefilled else "prefill" for r in self._running.values()}
        if len(modes) < 2:
            return modes.pop() if modes else None
        if self.mixed and self._decode_tokens() < self.chunked_prefill_size:
            return "mixed"
        return "prefill" if self._last_mode == "decode" else "decode"

    def _decode_tokens(self) -> int:
        return sum(r.prefilled for r in self._running.values()) * (1 + self.lookahead)

    def _chunks(self, mode: StepMode) -> Iterator[Chunk]:
        """Decoding requests, then prefill chunks within the budget that is left, both oldest first."""
        budget = self.chunked_prefill_size
        if mode != "prefill":
            yield from (r.decode_chunk(self.lookahead) for r in self._running.values() if r.prefilled)
            budget -= self._decode_tokens()
        if mode != "decode":
            boundary = None if self.cache is None else self.allocator.geometry.page_size
            for request in self._running.values():
                if not request.prefilled and budget > 0:
                    most = self.chunked_prefill_size if self.whole_chunks else budget
                    chunk = request.prefill_chunk(most, boundary)
                    if len(chunk.tokens) > budget:
                        return
                    budget -= len(chunk.tokens)
                    yield chunk

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
        before = request.computed
        request.computed += len(chunk.tokens) + max(len(new) - 1, 0)
        if request.aborted:
            return [self._end(request, FinishReason.ABORT)]
        outcomes: list[Outcome] = []
        for token in new:
            request.tokens.append(token)
            reason = self._reason_to_end(request, token)
            if reason is not None:
                self._remember(request, before)
                return [*outcomes, self._end(request, reason, token)]
            outcomes.append(Outcome(request.spec.request_id, token))
        self._remember(request, before)
        return outcomes

    def _remember(self, request: Running, before: int) -> None:
        """Keep the pages of ``request`` in the prefix cache if a page has become full since ``before`` tokens."""
        if self.cache is None:
            return
        size = self.allocator.geometry.page_size
        boundary = min(request.computed, len(request.tokens)) // size * size
        if boundary > before:
            self.cache.keep(request.tokens[:boundary], request.lease)

    def _reason_to_end(self, request: Running, token: int) -> FinishReason | None:
        if token in request.spec.sampling.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if request.generated >= request.spec.max_new_tokens else None

    def _end(self, request: Running, reason: FinishReason, token: int | None = None) -> Outcome:
        del self._running[request.spec.request_id]
        return Outcome(request.spec.request_id, token, reason, self.allocator.release(request.lease))


def _tuple(new: int | tuple[int, ...] | None) -> tuple[int, ...]:
    if new is None:
        return ()
    return new if isinstance(new, tuple) else (new,)
