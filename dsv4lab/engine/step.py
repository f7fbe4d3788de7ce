"""What the scheduler decides and learns: requests, their chunks, forwards and what those meant. Never imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dsv4lab.engine.request import FinishReason, RequestSpec
from dsv4lab.kv.allocator import Freed, Lease
from dsv4lab.kv.prefix_cache import Hit, Snapshot

Mode = Literal["prefill", "decode"]
"""The two kinds of forward that a runner knows."""

StepMode = Literal["prefill", "decode", "mixed"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens of one request in one forward, at positions ``start`` and on.

    ``samples`` tells that the last of them is the request's last known token, so its logits choose the next one;
    otherwise ``following`` is the token after them. ``decodes``: the request is past its prompt, and with a drafter the
    forward has ``drafts`` more tokens of it.
    """

    spec: RequestSpec
    lease: Lease
    start: int
    tokens: tuple[int, ...]
    samples: bool
    generated: int  # new tokens that the request already has: the number of the one to be chosen
    decodes: bool = False
    following: int | None = None
    drafts: int = 0

    @property
    def slot(self) -> int:
        """Slot of the request."""
        return self.lease.slot

    @property
    def pages(self) -> tuple[int, ...]:
        """Pages of the request, oldest first."""
        return self.lease.pages

    @property
    def width(self) -> int:
        """Flat tokens of the forward that are this request's."""
        return len(self.tokens) + self.drafts


@dataclass(frozen=True, slots=True)
class Resume:
    """A slot that takes over a snapshot: its request goes on at position ``length``, with the token ``following``."""

    slot: int
    pages: tuple[int, ...]
    length: int
    following: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Step:
    """One forward, of decoding requests first. Before it runs, in this order: what ``freed`` lists has no owner any
    more, ``fresh_slots`` were given out and must be cleared, ``resumes`` are to be restored.
    """

    number: int
    mode: StepMode
    chunks: tuple[Chunk, ...]
    fresh_slots: tuple[int, ...]
    freed: tuple[Freed, ...] = ()
    resumes: tuple[Resume, ...] = ()

    @property
    def forward(self) -> Mode:
        """How it is run: a mixed one is a prefill in which decoding requests extend by one token, or a verify step."""
        return "decode" if self.mode == "decode" else "prefill"

    @property
    def tokens(self) -> int:
        """Tokens of all chunks, drafts not counted."""
        return sum(len(chunk.tokens) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step or an abort meant for one request: a new token, its end, or both.

    ``released`` is what an ended request gave back, None if it held nothing.
    """

    request_id: int
    token: int | None = None
    finish: FinishReason | None = None
    released: Freed | None = None


@dataclass(slots=True)
class Waiting:
    """A request without a slot, and all tokens known of it: prompt, tokens of earlier lives, and of before it was
    preempted.
    """

    spec: RequestSpec
    tokens: list[int]

    @property
    def goal(self) -> int:
        """Tokens to be prefilled: all of a prompt, but of a request with new tokens all but the last, so that it goes
        on decoding exactly as it would have.
        """
        return prefill_goal(self.spec, self.tokens)


@dataclass(slots=True)
class Running:
    """An admitted request: its lease, all tokens known so far, and how many of them are in the pool."""

    spec: RequestSpec
    lease: Lease
    tokens: list[int]
    computed: int = 0
    hit: Hit | None = None
    """What it was restored from, until its first forward."""
    aborted: bool = field(default=False)
    fresh: bool = field(default=True)

    @property
    def generated(self) -> int:
        """New tokens so far, those of earlier lives included."""
        return len(self.tokens) - len(self.spec.prompt)

    @property
    def prefilled(self) -> bool:
        """Whether it decodes from now on."""
        return self.computed >= prefill_goal(self.spec, self.tokens)

    def decode_chunk(self, drafts: int) -> Chunk:
        """Its last token, and the drafts that follow it."""
        return self._chunk(len(self.tokens), drafts=drafts, decodes=True)

    def prefill_chunk(self, budget: int, boundary: int | None) -> Chunk:
        """Up to ``budget`` more tokens of what it has to prefill, not beyond the next multiple of ``boundary``."""
        stop = min(prefill_goal(self.spec, self.tokens), self.computed + budget)
        if boundary is not None:
            stop = min(stop, (self.computed // boundary + 1) * boundary)
        return self._chunk(stop, drafts=0, decodes=False)

    def resume(self) -> Resume:
        """How its slot is restored from its hit."""
        assert self.hit is not None
        length = self.hit.length
        return Resume(self.lease.slot, self.hit.pages, length, self.tokens[length], self.hit.snapshot)

    def _chunk(self, stop: int, *, drafts: int, decodes: bool) -> Chunk:
        ends = stop == len(self.tokens)
        return Chunk(
            spec=self.spec,
            lease=self.lease,
            start=self.computed,
            tokens=tuple(self.tokens[self.computed : stop]),
            samples=ends,
            generated=self.generated,
            decodes=decodes,
            following=None if ends else self.tokens[stop],
            drafts=drafts,
        )


def prefill_goal(spec: RequestSpec, tokens: list[int]) -> int:
    """See :attr:`Waiting.goal`."""
    return len(tokens) if len(tokens) == len(spec.prompt) else len(tokens) - 1
