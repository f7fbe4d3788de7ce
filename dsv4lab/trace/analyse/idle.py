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


def _split(timeline: Timeline, rank: int, rows: NDArray[np.int64]) -> list[Gap]:
    """The gaps of one rank, each one split where the launch of the next row begins."""
    rows = rows[np.argsort(timeline.start_ns[rows], kind="stable")]
    start, end = timeline.start_ns[rows], timeline.end_ns[rows]
    reach = np.maximum.accumulate(end)
    open_at = np.flatnonzero(start[1:] > reach[:-1]) + 1
    ender = np.maximum.accumulate(np.where(end == reach, np.arange(len(rows)), 0))
    calls = np.flatnonzero((timeline.kind == int(Kind.HOST)) & (timeline.rank == rank))
    call_ends = np.sort(timeline.end_ns[calls])
    out: list[Gap] = []
    for at in open_at.tolist():
        before, after = int(rows[ender[at - 1]]), int(rows[at])
        out += _causes(timeline, before, after, int(reach[at - 1]), int(start[at]), call_ends)
    return out


def _causes(timeline: Timeline, before: int, after: int, begin: int, end: int, call_ends: Ints) -> list[Gap]:
    names = (timeline.names[timeline.name[before]], timeline.names[timeline.name[after]])
    rank = int(timeline.rank[after])
    queued = int(timeline.queued_ns[after])

    def gap(start: int, stop: int, cause: str) -> Gap:
        return Gap(rank, start, stop - start, cause, *names)

    same_launch = timeline.correlation[before] == timeline.correlation[after] != UNKNOWN
    if same_launch and queued <= begin:
        return [gap(begin, end, "inside graph")]
    if queued == UNKNOWN:
        return [gap(begin, end, "unknown")]
    if queued <= begin:
        own = timeline.stream[before] == timeline.stream[after]
        return [gap(begin, end, "kernel gap" if own else "other stream")]
    launch = min(queued, end)
    if not len(call_ends):
        parts = [gap(begin, launch, "host gap"), gap(launch, end, "launch-bound")]
        return [part for part in parts if part.dur_ns]
    earlier = int(np.searchsorted(call_ends, launch, side="right")) - 1
    host_since = max(int(call_ends[earlier]) if earlier >= 0 else begin, begin)
    if launch - host_since <= LAUNCHING_NS:
        return [gap(begin, end, "launch-bound")]
    parts = [
        gap(begin, host_since, "launch-bound"),
        gap(host_since, launch, "host gap"),
        gap(launch, end, "launch-bound"),
    ]
    return [part for part in parts if part.dur_ns]


def idle_gaps(timeline: Timeline) -> list[Gap]:
    """Every gap between the first and the last busy row of each rank, in order of time. Their sum is the idle time."""
    busy = np.flatnonzero(timeline.busy_mask & (timeline.dur_ns > 0))
    out: list[Gap] = []
    for rank in np.unique(timeline.rank[busy]).tolist():
        out += _split(timeline, rank, busy[timeline.rank[busy] == rank])
    return sorted(out, key=lambda g: (g.start_ns, g.rank))


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
