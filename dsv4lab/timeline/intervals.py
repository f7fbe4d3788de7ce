"""Exact interval arithmetic on ``int64`` nanoseconds, vectorised.

An *interval set* is a pair ``(start, end)`` of sorted, disjoint, non-touching intervals ``[start, end)``, each longer
than zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Intervals(NamedTuple):
    """Sorted, disjoint, non-empty intervals: ``int64 [m]`` each."""

    start: Ints
    end: Ints

    @property
    def length(self) -> int:
        """Total length in nanoseconds."""
        return int(self.end.sum() - self.start.sum()) if len(self.start) else 0


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def is_sorted(values: NDArray[np.signedinteger[Any]]) -> bool:
    """True if ``values`` never decrease."""
    return len(values) < 2 or bool((values[1:] >= values[:-1]).all())


def in_order(values: Ints) -> Ints:
    """``values`` sorted; as they are if they already are."""
    return values if is_sorted(values) else np.sort(values, kind="stable")


def distinct(values: Ints) -> int:
    """How many different values there are (by sorting: ``np.unique`` hashes, which takes ten times as long here)."""
    ordered = in_order(values)
    return int((ordered[1:] != ordered[:-1]).sum()) + min(len(ordered), 1)


def _ordered(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Starts in order, and ends such that a gap of the union lies between ``end[k]`` and a larger ``start[k + 1]``.

    Rows in order of their starts: the latest end so far. Otherwise rows are not paired: with starts and ends sorted on
    their own, the first ``k + 1`` rows are over at ``end[k]``, and the next has not begun.
    """
    if len(start) and not bool((end > start).all()):
        keep = end > start
        start, end = start[keep], end[keep]
    if is_sorted(start):
        return start, np.maximum.accumulate(end)
    return np.sort(start, kind="stable"), in_order(end)


def merge(start: Ints, end: Ints) -> Intervals:
    """The union of ``[start, end)``; rows of zero or negative length contribute nothing."""
    start, end = _ordered(start, end)
    if not len(start):
        return EMPTY
    cuts = np.flatnonzero(start[1:] > end[:-1])
    if len(cuts) == len(start) - 1:
        return Intervals(start, end)
    return Intervals(start[np.concatenate(([0], cuts + 1))], end[np.concatenate((cuts, [len(start) - 1]))])


def union_length(start: Ints, end: Ints) -> int:
    """The length of :func:`merge`'s union, without its pieces."""
    start, end = _ordered(start, end)
    if not len(start):
        return 0
    gap = start[1:] - end[:-1]
    return int(end[-1]) - int(start[0]) - int(np.maximum(gap, 0, out=gap).sum())


def merge_all(sets: list[Intervals]) -> Intervals:
    """The union of several interval sets."""
    if len(sets) == 1:
        return sets[0]
    if not sets:
        return EMPTY
    return merge(np.concatenate([s.start for s in sets]), np.concatenate([s.end for s in sets]))


def covered(by: Intervals, start: Ints, end: Ints) -> Ints:
    """``int64 [n]``: how much of each ``[start, end)`` lies inside ``by``."""
    if not len(by.start) or not len(start):
        return np.zeros(len(start), np.int64)
    total = np.concatenate(([0], np.cumsum(by.end - by.start)))

    def before(t: Ints) -> Ints:
        index = np.searchsorted(by.start, t, side="right")
        past = np.maximum(by.end[index - 1] - t, 0)
        return np.where(index > 0, total[index] - past, 0)

    return np.asarray(before(end) - before(start), np.int64)


def overlap_length(a: Intervals, b: Intervals) -> int:
    """How much of ``a`` lies inside ``b``."""
    if 4 * len(a.start) < len(b.start):
        return int(covered(b, a.start, a.end).sum())
    return a.length + b.length - union_length(*map(np.concatenate, zip(a, b, strict=True)))


def gaps(of: Intervals, start: int, end: int) -> Intervals:
    """What ``[start, end)`` leaves uncovered by ``of``."""
    clipped_start, clipped_end = np.clip(of.start, start, end), np.clip(of.end, start, end)
    left = np.concatenate(([start], clipped_end)).astype(np.int64)
    right = np.concatenate((clipped_start, [end])).astype(np.int64)
    keep = right > left
    return Intervals(left[keep], right[keep])


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """What lies in both sets."""
    if not len(a.start) or not len(b.start):
        return EMPTY
    low, high = int(min(a.start[0], b.start[0])), int(max(a.end[-1], b.end[-1]))
    outside = merge_all([gaps(a, low, high), gaps(b, low, high)])
    return gaps(outside, low, high)


def depth_time(start: Ints, end: Ints) -> dict[int, int]:
    """Nanoseconds spent at each depth of overlap above zero, over all ``[start, end)``."""
    keep = end > start
    edges = np.concatenate((start[keep], end[keep]))
    if not len(edges):
        return {}
    change = np.ones(len(edges), np.int64)
    change[len(edges) // 2 :] = -1
    order = np.argsort(edges, kind="stable")
    edges, depth = edges[order], np.cumsum(change[order])
    length = edges[1:] - edges[:-1]
    out: dict[int, int] = {}
    for level in np.unique(depth[:-1]):
        spent = int(length[depth[:-1] == level].sum())
        if level > 0 and spent:
            out[int(level)] = spent
    return out
