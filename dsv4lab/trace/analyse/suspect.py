"""Rows whose times cannot all be right, found without changing anything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.busy import group, lanes
from dsv4lab.timeline.intervals import Ints, distinct, is_sorted, merge_all
from dsv4lab.timeline.timeline import UNKNOWN, Kind, Timeline

FLOOR_NS = 100_000
SUCCESSORS = 3
FACTOR = 10


Rows = NDArray[np.int64]


def _lanes(timeline: Timeline) -> list[Rows]:
    """Busy rows of every stream (of every queue, where no stream is known) in the order of the file."""
    rows = np.flatnonzero(timeline.busy_mask)
    ids = timeline.stream[rows]
    if len(ids) and int(ids.max()) == UNKNOWN:
        ids = timeline.queue[rows]
    return [rows[inside] for _, inside in group(ids)]


def _in_time(timeline: Timeline, lanes: list[Rows]) -> list[Rows]:
    """The same, each in order of its starts."""
    starts = [timeline.start_ns[lane] for lane in lanes]
    sorts = [None if is_sorted(start) else np.argsort(start, kind="stable") for start in starts]
    return [lane if order is None else lane[order] for lane, order in zip(lanes, sorts, strict=True)]


def _out_of_order(timeline: Timeline, lanes: list[Rows]) -> int:
    """How many rows start before the row that the file has before them on the same stream."""
    starts = [timeline.start_ns[lane] for lane in lanes]
    return sum(int((start[1:] < start[:-1]).sum()) for start in starts)


def _overlapping(timeline: Timeline, lanes: list[Rows]) -> int:
    """How many rows start before an earlier row of their stream has ended."""
    count = 0
    for lane in lanes:
        latest = np.maximum.accumulate(timeline.end_ns[lane])
        count += int((timeline.start_ns[lane][1:] < latest[:-1]).sum())
    return count


def overlong(timeline: Timeline) -> Rows:
    """Rows that run over at least three successors on their stream, by 0.1 ms or more and ten times the median.

    Exporters write such rows where completion stamps arrive late. Real overlap inside a stream is far shorter.
    """
    return _overlong(timeline, _in_time(timeline, _lanes(timeline)))


def _overlong(timeline: Timeline, lanes: list[Rows]) -> Rows:
    found = []
    for lane in lanes:
        if len(lane) <= SUCCESSORS:
            continue
        start, dur = timeline.start_ns[lane], timeline.dur_ns[lane]
        head = slice(0, len(lane) - SUCCESSORS)
        past = start[head] + dur[head] - start[SUCCESSORS:] > FLOOR_NS
        if past.any():
            long = dur[head] > FACTOR * max(int(np.median(dur)), 1)
            found.append(lane[head][past & long])
    return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)


def clip_overlong(timeline: Timeline) -> Timeline:
    """The timeline with every row of :func:`overlong` ended where its successor on the stream starts."""
    rows = overlong(timeline)
    dur: Ints = timeline.dur_ns.copy()
    chosen = np.zeros(len(timeline), np.bool_)
    chosen[rows] = True
    for lane in _in_time(timeline, _lanes(timeline)):
        start = timeline.start_ns[lane]
        after = np.append(start[1:], np.iinfo(np.int64).max)
        hit = chosen[lane]
        dur[lane[hit]] = after[hit] - start[hit]
    return replace(timeline, dur_ns=dur)


def findings(timeline: Timeline) -> dict[str, int]:
    """Oddities by name, with counts above zero only; the rows themselves stay as they are."""
    busy = timeline.busy_mask
    in_file = _lanes(timeline)
    in_time = _in_time(timeline, in_file)
    host = timeline.kind == int(Kind.HOST)
    ids = timeline.correlation[host & (timeline.correlation != UNKNOWN)]
    found = {
        "rows without a stream": int((busy & (timeline.stream == UNKNOWN)).sum()),
        "rows that overlap an earlier row of their stream": _overlapping(timeline, in_time),
        "rows that run far past their successors": len(_overlong(timeline, in_time)),
        "rows out of time order": _out_of_order(timeline, in_file),
        "times below zero": int((busy & (timeline.start_ns < 0)).sum()),
        "launches that share a correlation id": len(ids) - distinct(ids),
        "sync or barrier rows": int((timeline.kind == int(Kind.WAIT)).sum()),
    }
    return {name: count for name, count in found.items() if count}


def warnings(timeline: Timeline, found: dict[str, int]) -> list[str]:
    """What a reader of busy figures has to know of ``found``."""
    late = found.get("rows that run far past their successors", 0)
    if not late:
        return []
    as_is, clipped = (merge_all([lane.busy for lane in lanes(t)]).length for t in (timeline, clip_overlong(timeline)))
    return [
        (
            f"{late} rows run far past their successors on the stream (late completion stamps?): "
            f"union busy is {as_is} ns as written, {clipped} ns with them clipped"
        )
    ]
