"""Joining device rows to the host calls that launched them, by correlation id, without a Python loop."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.timeline import UNKNOWN, Ints


def launch_of(row_id: Ints, row_start: Ints, launch_id: Ints, launch_start: Ints) -> Ints:
    """``int64 [n]``: position of each row's launch in ``launch_id``, ``UNKNOWN`` where there is none.

    One launch may own many rows (a graph replay). Where an id repeats among launches, a row belongs to the latest of
    them that began at or before it, else to the earliest.
    """
    out = np.full(len(row_id), UNKNOWN, np.int64)
    usable = np.flatnonzero(launch_id != UNKNOWN)
    if not len(usable) or not len(row_id):
        return out
    order = usable[np.lexsort((launch_start[usable], launch_id[usable]))]
    ids, times = launch_id[order], launch_start[order]
    first = np.searchsorted(ids, row_id, side="left")
    after = np.searchsorted(ids, row_id, side="right")
    found = (after > first) & (row_id != UNKNOWN)
    pick = first.copy()
    many = np.flatnonzero(found & (after - first > 1))
    if len(many):
        pick[many] = _latest_before(ids, times, row_id[many], row_start[many], first[many])
    out[found] = order[pick[found]]
    return out


def _latest_before(ids: Ints, times: Ints, row_id: Ints, row_start: Ints, first: Ints) -> Ints:
    """Among launches sorted by ``(id, time)``: the last of the row's id that is not after the row's start."""
    clock = np.unique(np.concatenate((times, row_start)))
    dense = np.unique(ids, return_inverse=True)[1]
    width = len(clock) + 1
    key = dense * width + np.searchsorted(clock, times)
    wanted = dense[first] * width + np.searchsorted(clock, row_start)
    return np.asarray(np.maximum(np.searchsorted(key, wanted, side="right") - 1, first), np.int64)


def lookup(keys: Ints, values: NDArray[np.int32], wanted: Ints) -> NDArray[np.int32]:
    """``int32 [n]``: the value of the first entry with each wanted key, ``UNKNOWN`` where there is none."""
    out = np.full(len(wanted), UNKNOWN, np.int32)
    if not len(keys) or not len(wanted):
        return out
    known, index = np.unique(keys, return_index=True)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    hit = (known[at] == wanted) & (wanted != UNKNOWN)
    out[hit] = values[index[at[hit]]]
    return out
