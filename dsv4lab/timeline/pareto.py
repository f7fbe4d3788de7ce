"""The Pareto front of latency and throughput."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class HasFigures(Protocol):
    """A record with the median TPOT and the throughput of a setting."""

    @property
    def tpot_ms(self) -> float:
        """Milliseconds."""
        ...

    @property
    def tokens_per_s(self) -> float:
        """Of all requests together."""
        ...


R = TypeVar("R", bound=HasFigures)


def pareto_front(records: Iterable[R]) -> tuple[R, ...]:
    """The records that no other beats or equals in both figures, by TPOT; of equal ones the first."""
    front: list[R] = []
    for record in sorted(records, key=lambda r: (r.tpot_ms, -r.tokens_per_s)):
        if not front or record.tokens_per_s > front[-1].tokens_per_s:
            front.append(record)
    return tuple(front)
