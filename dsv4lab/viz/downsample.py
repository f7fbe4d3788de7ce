"""Reduce data before it is drawn: bin slices into cells, step functions into bins, long grids into aggregates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class BusyGrid:
    """Slices binned in time: ``share[lane, bin]`` of the bin is covered by slices (1.0 or more when they overlap).

    ``edges_ns`` is ``int64 [bins + 1]``; ``top[lane, bin]`` is the name id with most time in the cell (-1 if none);
    ``count[lane, bin]`` counts slices that start in the bin.
    """

    edges_ns: Ints
    share: Floats
    top: NDArray[np.int32]
    count: Ints


def bin_edges(start_ns: int, end_ns: int, bins: int) -> Ints:
    """``int64 [m + 1]`` increasing edges from ``start_ns`` to ``end_ns``, ``m`` at most ``bins`` and at least 1."""
    end_ns = max(end_ns, start_ns + 1)
    edges = np.linspace(0, end_ns - start_ns, max(1, bins) + 1)
    return np.unique(np.rint(edges).astype(np.int64)) + start_ns


def bin_slices(
    lane: NDArray[np.int32], start_ns: Ints, dur_ns: Ints, name: NDArray[np.int32], lanes: int, edges_ns: Ints
) -> BusyGrid:
    """Spread slices over ``lanes`` rows and the bins of ``edges_ns``; rows of other lanes are left out."""
    bins = len(edges_ns) - 1
    keep = (lane >= 0) & (lane < lanes)
    lane, start_ns, dur_ns, name = lane[keep].astype(np.int64), start_ns[keep], dur_ns[keep], name[keep]
    row, cell, covered = _spread(start_ns, start_ns + dur_ns, edges_ns)
    flat = lane[row] * bins + cell
    width = np.diff(edges_ns).astype(np.float64)
    total = np.bincount(flat, weights=covered, minlength=lanes * bins).reshape(lanes, bins)
    first = np.searchsorted(edges_ns, start_ns, side="right") - 1
    inside = (first >= 0) & (first < bins)
    count = np.bincount((lane * bins + first)[inside], minlength=lanes * bins).reshape(lanes, bins)
    return BusyGrid(edges_ns, total / width, _top_names(flat, covered, name[row], lanes, bins), count)


def _spread(start: Ints, end: Ints, edges: Ints) -> tuple[Ints, Ints, Floats]:
    """Pairs (slice, bin) that touch, with the nanoseconds they share."""
    bins = len(edges) - 1
    first = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, bins - 1)
    last = np.clip(np.searchsorted(edges, end, side="left") - 1, 0, bins - 1)
    spans = np.maximum(last - first + 1, 1)
    row = np.repeat(np.arange(len(start)), spans)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(spans) - spans, spans)
    cell = first[row] + offset
    covered = np.minimum(end[row], edges[cell + 1]) - np.maximum(start[row], edges[cell])
    return row, cell, np.maximum(covered, 0).astype(np.float64)


def _top_names(flat: Ints, covered: Floats, name: NDArray[np.int32], lanes: int, bins: int) -> NDArray[np.int32]:
    top = np.full(lanes * bins, -1, np.int32)
    if len(flat):
        pair, inverse = np.unique(np.stack([flat, name.astype(np.int64)]), axis=1, return_inverse=True)
        weight = np.bincount(inverse.ravel(), weights=covered)
        order = np.argsort(weight, kind="stable")
        top[pair[0, order]] = pair[1, order]
    return top.reshape(lanes, bins)


def bin_steps(edges_ns: Ints, values: NDArray[np.int32], new_edges_ns: Ints) -> tuple[Floats, Ints]:
    """Time-weighted mean ``float64 [q, bins]`` and maximum ``int64 [q, bins]`` of step functions over new bins.

    ``values[q, i]`` holds in ``[edges_ns[i], edges_ns[i + 1])``; outside the old edges a function is 0.
    """
    queues, bins = values.shape[0], len(new_edges_ns) - 1
    if values.shape[1] == 0:
        return np.zeros((queues, bins)), np.zeros((queues, bins), np.int64)
    row, cell, covered = _spread(edges_ns[:-1], edges_ns[1:], new_edges_ns)
    width = np.diff(new_edges_ns).astype(np.float64)
    mean, peak = np.zeros((queues, bins)), np.zeros((queues, bins), np.int64)
    touched = covered > 0
    for q in range(queues):
        mean[q] = np.bincount(cell, weights=values[q, row] * covered, minlength=bins) / width
        np.maximum.at(peak[q], cell[touched], values[q, row[touched]])
    return mean, peak


def group_size(items: int, most: int) -> int:
    """How many items one cell must hold so that at most ``most`` cells are drawn; a power of two."""
    size = 1
    while -(-items // size) > most:
        size *= 2
    return size


def sub_lanes(lane: NDArray[np.int32], start_ns: Ints, end_ns: Ints) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Where slices of one lane overlap, put them beside each other.

    Returns ``sub`` and ``depth``, ``int32 [n]``: the sub-lane of each slice and how many sub-lanes its lane needs.
    """
    sub, depth = np.zeros(len(lane), np.int32), np.ones(len(lane), np.int32)
    for one in np.unique(lane):
        rows = np.flatnonzero(lane == one)
        rows = rows[np.lexsort((end_ns[rows], start_ns[rows]))]
        ends: list[int] = []
        for row in rows:
            free = next((i for i, end in enumerate(ends) if end <= start_ns[row]), len(ends))
            ends[free : free + 1] = [int(end_ns[row])]
            sub[row] = free
        depth[rows] = max(1, len(ends))
    return sub, depth
