"""The critical path on the device: the chain of rows, waits and gaps that makes up the wall, to the nanosecond."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.intervals import Ints
from dsv4lab.timeline.timeline import UNKNOWN, Timeline
from dsv4lab.trace.analyse.categories import CATEGORIES, category_ids

SAME_STREAM_NS = 2_000
"""A row that starts this soon after its stream's previous row follows that row, whatever else ended in between."""


@dataclass(frozen=True, slots=True)
class PathSegment:
    """One piece of the path: a row, or the gap before it (``what`` is then ``gap: <cause>``)."""

    what: str
    category: str
    stream: str
    row: int
    start_ns: int
    dur_ns: int


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Segments in order of time; their durations add up to ``wall_ns``."""

    segments: tuple[PathSegment, ...]
    wall_ns: int

    def by(self, what: str) -> dict[str, int]:
        """Nanoseconds on the path by ``"category"``, ``"stream"`` or ``"what"``, largest first."""
        time: Counter[str] = Counter()
        for segment in self.segments:
            time[getattr(segment, what)] += segment.dur_ns
        return dict(time.most_common())


def _previous_on_stream(timeline: Timeline, rows: NDArray[np.int64]) -> Ints:
    """For rows in order of their start: position of the row before on the same stream, -1 for the first."""
    out = np.full(len(rows), -1, np.int64)
    last: dict[int, int] = {}
    for at, stream in enumerate(timeline.stream[rows].tolist()):
        out[at] = last.get(stream, -1)
        last[stream] = at
    return out


def critical_path(timeline: Timeline, rank: int | None = None) -> CriticalPath:
    """Walk back from the row that ends last.

    A row's predecessor is its stream's previous row if it started right behind it; else, among all rows that ended by
    its start, the one that ended last: that is what released it. Time without either is a gap: ``launch`` if the row
    was launched after its predecessor ended, else ``wait``. ``rank`` picks one rank of several (default: the one that
    ends last).
    """
    busy = np.flatnonzero(timeline.busy_mask & (timeline.dur_ns > 0))
    if not len(busy):
        return CriticalPath((), 0)
    chosen = int(timeline.rank[busy[timeline.end_ns[busy].argmax()]]) if rank is None else rank
    rows = busy[timeline.rank[busy] == chosen]
    if not len(rows):
        return CriticalPath((), 0)
    rows = rows[np.argsort(timeline.start_ns[rows], kind="stable")]
    start, end = timeline.start_ns[rows], timeline.end_ns[rows]
    by_end = np.argsort(end, kind="stable")
    released = np.searchsorted(end[by_end], start, side="right") - 1
    previous = _previous_on_stream(timeline, rows)
    writer = _Writer(timeline, category_ids(timeline))
    at, stop, first = int(end.argmax()), int(end.max()), int(start.min())
    while True:
        writer.row(int(rows[at]), int(start[at]), stop)
        if int(start[at]) <= first:
            break
        before = int(previous[at])
        behind = before >= 0 and 0 <= int(start[at] - end[before]) <= SAME_STREAM_NS
        if not behind:
            before = int(by_end[released[at]]) if released[at] >= 0 else -1
        if before < 0:
            before = _covering(start, end, at)
            stop = int(start[at])
        else:
            writer.gap(int(rows[at]), int(end[before]), int(start[at]))
            stop = int(end[before])
        at = before
    return CriticalPath(tuple(reversed(writer.segments)), int(end.max()) - first)


def _covering(start: Ints, end: Ints, at: int) -> int:
    """No row ended before this one began: the earliest row that was running then carries the path."""
    running = np.flatnonzero((start[:at] < start[at]) & (end[:at] > start[at]))
    return int(running[0])


class _Writer:
    def __init__(self, timeline: Timeline, categories: NDArray[np.int8]) -> None:
        self.timeline = timeline
        self.categories = categories
        self.segments: list[PathSegment] = []

    def _stream(self, row: int) -> str:
        stream = int(self.timeline.stream[row])
        return self.timeline.streams[stream] if stream != UNKNOWN else "unknown"

    def row(self, row: int, start: int, stop: int) -> None:
        t = self.timeline
        name = t.names[t.name[row]]
        self.segments.append(
            PathSegment(name, CATEGORIES[self.categories[row]], self._stream(row), row, start, stop - start)
        )

    def gap(self, row: int, start: int, stop: int) -> None:
        if stop <= start:
            return
        queued = int(self.timeline.queued_ns[row])
        cause = "wait" if queued != UNKNOWN and queued <= start else "launch" if queued != UNKNOWN else "unknown"
        self.segments.append(PathSegment(f"gap: {cause}", "idle", self._stream(row), row, start, stop - start))
