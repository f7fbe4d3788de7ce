"""A session's time: how much is left to explore, to confirm, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MOST_RESERVE = 0.5
"""Share of a session's time that is kept for confirming, at most."""


class Timer:
    """``seconds`` for the whole session, earlier lives included, which took ``before``; None: as long as it takes.

    ``pairs``: a session's confirmations take so many pairs at most. They get their time at the end.
    """

    def __init__(
        self, seconds: float | None, before: float, pairs: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._before, self._clock = seconds, before, clock
        self._begun = clock()
        self._blocks_to_confirm = 2 * pairs
        self._blocks = 0
        self._loading = 0.0  # seconds spent in blocks, with all that goes with them
        self._trials = 0

    @property
    def elapsed(self) -> float:
        """Seconds of the session so far."""
        return self._before + self._clock() - self._begun

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Time one setting."""
        begun = self._clock()
        yield
        self._loading += self._clock() - begun
        self._trials += 1

    def count(self, *, confirming: bool) -> None:
        """One more block has been measured."""
        if confirming:
            self._blocks_to_confirm = max(0, self._blocks_to_confirm - 1)
        else:
            self._blocks += 1

    @property
    def reserve(self) -> float:
        """Seconds that the rest of confirming will take, by the blocks of exploring."""
        if not self._blocks:
            return 0.0
        wanted = self._blocks_to_confirm * self._loading / self._blocks
        return wanted if self._seconds is None else min(wanted, MOST_RESERVE * self._seconds)

    def over(self) -> bool:
        """Whether the session's time is over."""
        return self._seconds is not None and self.elapsed >= self._seconds

    def exploring_over(self) -> bool:
        """Whether what is left of the time is needed for confirming."""
        return self._seconds is not None and self.elapsed >= self._seconds - self.reserve

    def left(self, trials: int) -> float | None:
        """Seconds until the end, with so many settings still to try; None as long as nothing is known."""
        if not self._trials:
            return None if self._seconds is None else max(0.0, self._seconds - self.elapsed)
        wanted = max(0, trials) * self._loading / self._trials + self.reserve
        return wanted if self._seconds is None else min(wanted, max(0.0, self._seconds - self.elapsed))
