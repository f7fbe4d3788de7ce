"""Collective kernels and what they tell about the clocks of ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.timeline import Ints, Timeline

_COLLECTIVE = re.compile(
    r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce|broadcast_kernel|quick_?reduce",
    re.IGNORECASE,
)
_LOCAL = re.compile(r"at::native|elementwise|memcpy", re.IGNORECASE)
_SHIFTS = 8
_ALMOST = 0.8
MIN_MATCHES = 3


def is_collective(name: str) -> bool:
    """Whether a kernel of this name moves data between ranks."""
    return _COLLECTIVE.search(name) is not None and _LOCAL.search(name) is None


def collective_mask(timeline: Timeline) -> NDArray[np.bool_]:
    """``bool [n]``: busy rows that are collectives."""
    table = np.array([*(is_collective(name) for name in timeline.names), False], np.bool_)
    return np.asarray(table[timeline.name] & timeline.busy_mask, np.bool_)


@dataclass(frozen=True, slots=True)
class ClockEstimate:
    """How far a rank's clock is ahead of the first rank's, from the ends of ``matches`` shared collectives.

    ``residual_ns`` is the median distance of the matches from the estimate: what alignment cannot explain.
    """

    offset_ns: int
    residual_ns: int
    matches: int

    @property
    def significant(self) -> bool:
        """Whether the offset stands out of what it leaves unexplained: only then are times moved."""
        return abs(self.offset_ns) > 2 * self.residual_ns


def _ends(timeline: Timeline) -> dict[str, Ints]:
    rows = np.flatnonzero(collective_mask(timeline))
    out: dict[str, Ints] = {}
    for name in np.unique(timeline.name[rows]):
        ends = timeline.end_ns[rows[timeline.name[rows] == name]]
        out[timeline.names[name]] = np.sort(ends)
    return out


def _differences(first: dict[str, Ints], other: dict[str, Ints], shift: int) -> Ints:
    parts = []
    for name, a in first.items():
        b = other.get(name)
        if b is None:
            continue
        start_a, start_b = max(shift, 0), max(-shift, 0)
        size = min(len(a) - start_a, len(b) - start_b)
        if size > 0:
            parts.append(b[start_b : start_b + size] - a[start_a : start_a + size])
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def clock_of(first: Timeline, other: Timeline) -> ClockEstimate | None:
    """Estimate ``other``'s clock against ``first``'s; ``None`` with fewer than three shared collectives.

    A collective ends at the same moment everywhere. The k-th of a name on one rank is the k-th on another unless their
    windows opened at different times: another pairing is believed only if it matches almost as many and spreads far
    less.
    """
    a, b = _ends(first), _ends(other)
    best: ClockEstimate | None = None
    for shift in sorted(range(-_SHIFTS, _SHIFTS + 1), key=abs):
        differences = _differences(a, b, shift)
        if len(differences) < MIN_MATCHES:
            continue
        offset = int(np.median(differences))
        residual = int(np.median(np.abs(differences - offset)))
        if best is None or (residual < best.residual_ns / 4 and len(differences) >= _ALMOST * best.matches):
            best = ClockEstimate(offset, residual, len(differences))
    return best


@dataclass(frozen=True, slots=True)
class Arrival:
    """One collective over ranks: how far apart the ranks entered it, and who came last."""

    name: str
    start_ns: int
    ranks: int
    skew_ns: int
    last_rank: int
    dur_ns: int


def arrival_skew(timeline: Timeline) -> list[Arrival]:
    """Entry skew of every collective that at least two ranks of an aligned timeline ran, in order of time.

    The k-th of a name on each rank counts as the same collective.
    """
    rows = np.flatnonzero(collective_mask(timeline))
    out: list[Arrival] = []
    for name in np.unique(timeline.name[rows]):
        same = rows[timeline.name[rows] == name]
        ranks = np.unique(timeline.rank[same])
        if len(ranks) < 2:
            continue
        by_rank = [_in_time(timeline, same[timeline.rank[same] == rank]) for rank in ranks]
        out += [_arrival(timeline, np.array(group), ranks) for group in zip(*by_rank, strict=False)]
    return sorted(out, key=lambda a: a.start_ns)


def _in_time(timeline: Timeline, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows[np.argsort(timeline.start_ns[rows], kind="stable")]


def _arrival(timeline: Timeline, rows: NDArray[np.int64], ranks: Sequence[int] | NDArray[np.int32]) -> Arrival:
    start = timeline.start_ns[rows]
    return Arrival(
        name=timeline.names[timeline.name[rows[0]]],
        start_ns=int(start.min()),
        ranks=len(rows),
        skew_ns=int(start.max() - start.min()),
        last_rank=int(ranks[int(start.argmax())]),
        dur_ns=int(timeline.end_ns[rows].max() - start.min()),
    )
