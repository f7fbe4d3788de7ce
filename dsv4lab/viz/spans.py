"""How much time slices cover, and how many begin, in any window: exact, at the cost of a binary search.

The time that slices cover before a moment ``t`` is ``sum(t - start)`` over those begun, less ``sum(t - end)`` over
those over. Two sorted columns with running sums answer that for any ``t``, however the slices overlap; sums wrap
around in 64 bits, and the difference of two is exact as long as it fits itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.intervals import Ints, is_sorted


@dataclass(frozen=True, eq=False, slots=True)
class _Column:
    """Times in order within each group, and running sums (one longer) of them since ``origin``."""

    times: Ints
    sums: Ints

    @classmethod
    def of(cls, times: Ints, first: Ints, origin: int) -> Self:
        times = _ordered(times, first)
        sums = np.zeros(len(times) + 1, np.int64)
        np.cumsum(times - origin, out=sums[1:])
        return cls(times, sums)

    def passed(self, low: int, count: Ints, since: Ints) -> Ints:
        """What has passed since the first ``count`` times from ``low`` on, added up."""
        out: Ints = since * count - (self.sums[low + count] - self.sums[low])
        return out


@dataclass(frozen=True, eq=False, slots=True)
class SpanIndex:
    """Slices ``[start, end)`` in groups ``0 .. groups - 1``; see the module."""

    first: Ints  # int64 [groups + 1]: where each group begins
    origin: int
    starts: _Column
    ends: _Column
    apart: NDArray[np.bool_]  # of each group: no two slices overlap, so those over are those begun, or one less

    @classmethod
    def build(cls, start: Ints, end: Ints, group: NDArray[np.integer], groups: int) -> Self:
        """Index slices by ``group``; rows of any order, ``end >= start``."""
        kind = np.int16 if groups < 2**15 else np.int32
        order = np.argsort(group.astype(kind), kind="stable")
        if not is_sorted(order):
            start, end = start[order], end[order]
        counts = np.bincount(group, minlength=groups) if len(group) else np.zeros(groups, np.int64)
        first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        origin = int(start.min()) if len(start) else 0
        starts, ends = _Column.of(start, first, origin), _Column.of(end, first, origin)
        overlaps = np.flatnonzero(starts.times[1:] < ends.times[:-1]) + 1
        apart = np.ones(groups, np.bool_)
        apart[np.searchsorted(first, overlaps[~np.isin(overlaps, first)], side="right") - 1] = False
        return cls(first, origin, starts, ends, apart)

    def covered(self, groups: Sequence[int], edges: Ints) -> Ints:
        """``int64 [len(groups), len(edges) - 1]``: nanoseconds covered in each bin, slices that overlap added up."""
        return self.measure(groups, edges)[0]

    def measure(self, groups: Sequence[int], edges: Ints) -> tuple[Ints, Ints]:
        """Nanoseconds covered, and slices begun, in each bin: ``int64 [len(groups), len(edges) - 1]`` each."""
        time = np.zeros((len(groups), max(len(edges) - 1, 0)), np.int64)
        count = np.zeros_like(time)
        since = edges - self.origin
        for at, group in enumerate(groups):
            low, high = int(self.first[group]), int(self.first[group + 1])
            if low == high:
                continue
            begun = np.searchsorted(self.starts.times[low:high], edges, side="left")
            ends = self.ends.times[low:high]
            if self.apart[group]:
                over = begun - ((begun > 0) & (ends[begun - 1] > edges))
            else:
                over = np.searchsorted(ends, edges, side="left")
            time[at] = np.diff(self.starts.passed(low, begun, since) - self.ends.passed(low, over, since))
            count[at] = np.diff(begun)
        return time, count


def _ordered(times: Ints, first: Ints) -> Ints:
    """``times`` sorted within each group; as they are if they already are."""
    falls = np.flatnonzero(times[1:] < times[:-1]) + 1
    inside = falls[~np.isin(falls, first)]
    if not len(inside):
        return times
    out = times.copy()
    for group in np.unique(np.searchsorted(first, inside, side="right") - 1).tolist():
        out[first[group] : first[group + 1]].sort(kind="stable")
    return out
