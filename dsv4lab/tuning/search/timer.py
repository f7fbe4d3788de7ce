"""A session's time: how much is left to explore, to confirm, and how long the rest will take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dsv4lab.tuning.knobs import Setting

MOST_RESERVE = 0.5
"""Share of a session's time that is kept for confirming, at most."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a session's time, until ``end`` seconds of it have passed; None: without an end."""

    elapsed: Callable[[], float]
    end: float | None

    def over(self) -> bool:
        """Whether it has ended."""
        return self.left_s() <= 0

    def left_s(self) -> float:
        """Seconds until its end, below zero behind it; infinite without one."""
        return math.inf if self.end is None else self.end - self.elapsed()

    def part(self, share: float) -> Span:
        """The first ``share`` (0 to 1) of what is left of it now."""
        if self.end is None:
            return self
        return Span(self.elapsed, self.elapsed() + share * max(0.0, self.left_s()))


class Timer:
    """``seconds`` for the whole session, earlier lives included, which took ``before``; None: as long as it takes.

    ``pairs``: a session's confirmations take so many pairs at most. They get their time at the end. ``aside`` tells the
    seconds since the start that do not count.
    """

    def __init__(
        self,
        seconds: float | None,
        before: float,
        pairs: int,
        clock: Callable[[], float] = time.monotonic,
        aside: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._seconds, self._before, self._clock, self._aside = seconds, before, clock, aside
        self._begun = clock()
        self._blocks_to_confirm = self._most_to_confirm = 2 * pairs
        self._blocks = 0
        self._loading = 0.0  # seconds spent in blocks, with all that goes with them
        self._block_s: dict[Setting, float] = {}  # of the latest block under each load
        self._trials = 0

    @property
    def elapsed(self) -> float:
        """Seconds of the session so far."""
        return self._before + self._clock() - self._begun - self._aside()

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Time one setting."""
        begun = self._clock()
        yield
        self._loading += self._clock() - begun
        self._trials += 1

    def count(self, load: Setting, seconds: float, *, confirming: bool) -> None:
        """One more block has been measured, under ``load``; its own ``seconds`` are NaN if it failed."""
        if seconds > 0:
            self._block_s[load] = seconds
        if confirming:
            self._blocks_to_confirm = max(0, self._blocks_to_confirm - 1)
        else:
            self._blocks += 1

    def still_to_confirm(self, share: float) -> None:
        """Of all confirmations, no more than ``share`` (0 to 1) are left: some took less than they might have."""
        self._blocks_to_confirm = min(self._blocks_to_confirm, math.ceil(share * self._most_to_confirm))

    @property
    def reserve(self) -> float:
        """Seconds that the rest of confirming will take, by the blocks of exploring."""
        if not self._blocks:
            return 0.0
        wanted = self._blocks_to_confirm * self._loading / self._blocks
        return wanted if self._seconds is None else min(wanted, MOST_RESERVE * self._seconds)

    def whole(self) -> Span:
        """The session's time."""
        return Span(lambda: self.elapsed, self._seconds)

    def share(self, load: Setting, left: Sequence[Setting]) -> Span:
        """What ``load`` may take of the rest so that each of ``left``, which it is of, gets as many blocks."""
        unknown = max((self._block_s[one] for one in left if one in self._block_s), default=1.0)
        weights = {one: self._block_s.get(one, unknown) for one in left}
        return self.whole().part(weights[load] / sum(weights.values()))

    def over(self) -> bool:
        """Whether the session's time is over."""
        return self.whole().over()

    def exploring_over(self) -> bool:
        """Whether what is left of the time is needed for confirming."""
        return self._seconds is not None and self.elapsed >= self._seconds - self.reserve

    def left(self, trials: int) -> float | None:
        """Seconds until the end, with so many settings still to try; None as long as nothing is known."""
        if not self._trials:
            return None if self._seconds is None else max(0.0, self._seconds - self.elapsed)
        wanted = max(0, trials) * self._loading / self._trials + self.reserve
        return wanted if self._seconds is None else min(wanted, max(0.0, self._seconds - self.elapsed))
