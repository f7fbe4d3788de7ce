"""What a drafter is given and what it proposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from dsv4lab.kv.pool import KvPool


@dataclass(frozen=True, slots=True, eq=False)
class Committed:
    """Tokens of one request that the target has just computed and that stand: positions ``start, start + 1, ...``.

    ``following[i]`` is the token after the ``i``-th of them. ``hidden`` is what the drafter reads of the target at
    those positions: ``[n, hc, D]`` streams for MTP, ``[n, taps, D]`` for DSpark.
    """

    slot: int
    pages: tuple[int, ...]
    start: int
    following: tuple[int, ...]
    hidden: torch.Tensor


@dataclass(frozen=True, slots=True)
class Anchor:
    """Where a draft begins: ``token`` at ``position`` is known, and not yet in the pool."""

    slot: int
    pages: tuple[int, ...]
    position: int
    token: int


Choose = Callable[[int, int, NDArray[np.float32]], int]
"""``choose(request, place, logits)`` gives the draft token of the ``place``-th place of the ``request``-th anchor."""


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """Draft tokens ``[requests][drafts]``, and the logits they came from: float32 ``[requests, drafts, vocab]``.

    ``logits`` is None where the tokens were chosen on the device.
    """

    tokens: tuple[tuple[int, ...], ...]
    logits: NDArray[np.float32] | None = None


class Drafter(Protocol):
    """Proposes ``drafts`` tokens a step. Its own KV is a ring per slot, and follows the target's committed tokens."""

    @property
    def drafts(self) -> int:
        """Draft tokens per request and step; the verify width is one more."""
        ...

    @property
    def pool(self) -> KvPool:
        """Its rings."""
        ...

    def observe(self, committed: Sequence[Committed]) -> None:
        """Take over committed tokens. Every token of a request is observed once, in order."""
        ...

    def propose(self, anchors: Sequence[Anchor], choose: Choose | None) -> Proposal:
        """Draft from each anchor; all tokens before its position have been observed.

        Without ``choose`` a draft is the likeliest token, as :func:`greedy_choice` gives it, chosen on the device: the
        host waits once, for all of them.
        """
        ...


def greedy_choice(request: int, place: int, logits: NDArray[np.float32]) -> int:
    """The likeliest token, the lowest id on a tie: a :data:`Choose`."""
    return int(np.argmax(logits))
