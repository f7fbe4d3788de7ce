"""How many drafts are accepted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class AcceptanceStats:
    """Verify steps of requests, by the number of drafts that were accepted in each."""

    drafts: int
    by_accepted: Counter[int] = field(default_factory=Counter)

    def count(self, accepted: int) -> None:
        """One request's verify step accepted so many drafts."""
        self.by_accepted[accepted] += 1

    @property
    def steps(self) -> int:
        """Verify steps, each request's counted by itself."""
        return self.by_accepted.total()

    @property
    def accepted_per_step(self) -> float:
        """Mean number of accepted drafts, 0 to ``drafts``; each step commits one token more."""
        return sum(n * c for n, c in self.by_accepted.items()) / self.steps if self.steps else 0.0

    def rate_by_place(self) -> tuple[float, ...]:
        """For each place of a draft, the share of steps in which it was accepted."""
        if not self.steps:
            return (0.0,) * self.drafts
        reached = [sum(c for n, c in self.by_accepted.items() if n > place) for place in range(self.drafts)]
        return tuple(r / self.steps for r in reached)
