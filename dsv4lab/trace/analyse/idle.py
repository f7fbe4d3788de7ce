"""Why the device was idle: every gap of the union of busy rows, with its cause."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.busy import lanes
from dsv4lab.timeline.intervals import Intervals, Ints, covered, gaps, merge_all
from dsv4lab.timeline.timeline import UNKNOWN, Kind, Timeline

CAUSES = ("launch-bound", "host gap", "other stream", "kernel gap", "inside graph", "unknown")
"""
* ``launch-bound``: the next row's launch began inside the gap or is still on its way, and the host was launching.
* ``host gap``: the host launched nothing for a while before the next row's launch. Where the trace has launch times
  but no calls (our own runs), all the time until the launch.
* ``other stream``: the next row was queued before the gap and follows a row of another stream: it waited for it.
* ``kernel gap``: the next row was queued before the gap, behind a row of its own stream.
* ``inside graph``: both rows belong to one replay.
* ``unknown``: the trace does not say when the next row was launched.
"""
LAUNCHING_NS = 50_000


@dataclass(frozen=True, slots=True)
class Gap:
    """One idle moment of a rank's device. ``after`` and ``before`` name the rows around it."""

    rank: int
    start_ns: int
    dur_ns: int
    cause: str
    after: str
    before: str


@dataclass(frozen=True, slots=True)
class IdleCause:
    """All gaps of one cause, over all ranks."""

    cause: str
    gaps: int
    idle_ns: int
    share: float


@dataclass(frozen=True, slots=True)
class StreamIdle:
    """A stream's idle time inside the window: while other streams worked, and while the whole device was idle."""

    stream: str
    idle_ns: int
    others_busy_ns: int
    device_idle_ns: int


@dataclass(frozen=True, eq=False, slots=True)
class GapColumns:
    """Gaps in columns, in order of time: ``cause`` indexes :data:`CAUSES`, ``after`` and ``before`` are row numbers."""

    rank: NDArray[np.int32]
    start_ns: Ints
    dur_ns: Ints
    cause: NDArray[np.int8]
    after: Ints
    before: Ints

    def __len__(self) -> int:
        return len(self.start_ns)


def gap_columns(timeline: Timeline) -> GapColumns:
    """Every gap between the first and the last busy row of each rank. Their sum is the idle time."""
    busy = np.flatnonzero(timeline.busy_mask & (timeline.dur_ns > 0))
    ranks = timeline.rank[busy]
    parts = [_of_rank(timeline, rank, busy[ranks == rank]) for rank in np.unique(ranks).tolist()]
    columns = [np.concatenate([np.zeros(0, np.int64), *(part[i] for part in parts)]) for i in range(6)]
    order = np.lexsort((columns[0], columns[1]))
    rank, start, dur, cause, after, before = (column[order] for column in columns)
    return GapColumns(rank.astype(np.int32), start, dur, cause.astype(np.int8), after, before)


def _of_rank(timeline: Timeline, rank: int, rows: NDArray[np.int64]) -> tuple[Ints, ...]:
    """The gaps of one rank, each one split where the launch of the next row begins."""
    rows = rows[np.argsort(timeline.start_ns[rows], kind="stable")]
    start, end = timeline.start_ns[rows], timeline.end_ns[rows]
    reach = np.maximum.accumulate(end)
    at = np.flatnonzero(start[1:] > reach[:-1]) + 1
    ender = np.maximum.accumulate(np.where(end == reach, np.arange(len(rows)), 0))
    before, after, begin, stop = rows[ender[at - 1]], rows[at], reach[at - 1], start[at]
    cause, cuts = _causes(timeline, rank, before, after, begin, stop)
    edges = np.stack([begin, *cuts, stop], axis=1)
    keep = edges[:, 1:] > edges[:, :-1]
    which = np.broadcast_to(np.arange(len(at))[:, None], keep.shape)[keep]
    begins = edges[:, :-1][keep]
    lasts = edges[:, 1:][keep]
    return np.full(len(which), rank, np.int64), begins, lasts - begins, cause[keep], before[which], after[which]


def _causes(
    timeline: Timeline, rank: int, before: Ints, after: Ints, begin: Ints, end: Ints
) -> tuple[NDArray[np.int64], tuple[Ints, Ints]]:
    """Causes ``[gaps, 3]`` of the pieces of each gap, and the two moments between them; most pieces are empty."""
    launching, host, other, kernel, graph, unknown = range(len(CAUSES))
    queued = timeline.queued_ns[after]
    same = (timeline.correlation[before] == timeline.correlation[after]) & (timeline.correlation[after] != UNKNOWN)
    early = queued <= begin
    own = timeline.stream[before] == timeline.stream[after]
    whole = np.select(
        [same & early, queued == UNKNOWN, early & own, early], [graph, unknown, kernel, other], default=launching
    )
    launch = np.minimum(queued, end)
    late = ~early & (queued != UNKNOWN)
    calls = np.flatnonzero((timeline.kind == int(Kind.HOST)) & (timeline.rank == rank))
    if len(calls):
        ends = np.sort(timeline.end_ns[calls])
        earlier = np.searchsorted(ends, launch, side="right") - 1
        since = np.where(earlier >= 0, np.maximum(ends[np.maximum(earlier, 0)], begin), begin)
        late &= launch - since > LAUNCHING_NS
    else:
        since = begin
    first, second = np.where(late, since, begin), np.where(late, launch, begin)
    cause = np.stack([np.full_like(whole, launching), np.full_like(whole, host), whole], axis=1)
    return cause, (first, second)


def idle_gaps(timeline: Timeline) -> list[Gap]:
    """:func:`gap_columns` as records that name the rows around each gap."""
    gaps = gap_columns(timeline)
    names = timeline.names

    def named(rows: Ints) -> list[str]:
        return [names[i] for i in timeline.name[rows].tolist()]

    columns = (gaps.rank, gaps.start_ns, gaps.dur_ns)
    causes = [CAUSES[i] for i in gaps.cause.tolist()]
    rows = zip(*(c.tolist() for c in columns), causes, named(gaps.after), named(gaps.before), strict=True)
    return [Gap(*row) for row in rows]


def idle_causes(timeline: Timeline, found: list[Gap] | None = None) -> list[IdleCause]:
    """Idle time by cause, largest first."""
    found = idle_gaps(timeline) if found is None else found
    time: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for gap in found:
        time[gap.cause] += gap.dur_ns
        count[gap.cause] += 1
    total = sum(time.values())
    return [IdleCause(cause, count[cause], ns, ns / total if total else 0.0) for cause, ns in time.most_common()]


def stream_idle(timeline: Timeline) -> list[StreamIdle]:
    """Idle time of every stream within its rank's window."""
    found = lanes(timeline)
    out = []
    for lane in found:
        others = merge_all([other.busy for other in found if other.rank == lane.rank])
        if not len(others.start):
            continue
        free: Intervals = gaps(lane.busy, int(others.start[0]), int(others.end[-1]))
        elsewhere = int(covered(others, free.start, free.end).sum())
        label = timeline.streams[lane.id] if lane.id != UNKNOWN else "unknown"
        out.append(StreamIdle(label, free.length, elsewhere, free.length - elsewhere))
    return out
