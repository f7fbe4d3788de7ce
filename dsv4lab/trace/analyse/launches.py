"""Launches: graph replays and their lanes, and how far the host runs ahead of the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.busy import summarise
from dsv4lab.timeline.intervals import distinct
from dsv4lab.timeline.timeline import UNKNOWN, Kind, Timeline

_GRAPH = "GraphLaunch"
_ROWS_OF_A_GRAPH = 4
LATE_NS = 20_000


@dataclass(frozen=True, slots=True)
class Replay:
    """One graph launch and the rows that share its correlation id. ``lanes`` are the streams its rows ran on."""

    correlation: int
    rank: int
    call: str
    launch_ns: int | None
    start_ns: int
    wall_ns: int
    rows: int
    lanes: int
    busy_ns: int
    sum_busy_ns: int
    concurrency: float


def graph_replays(timeline: Timeline) -> list[Replay]:
    """Replays in order of time.

    A launch is a graph's if its call says so; where the trace has no calls, if at least four rows share its id.
    """
    host = (timeline.kind == int(Kind.HOST)) & (timeline.correlation != UNKNOWN)
    calls = {int(timeline.correlation[row]): int(row) for row in np.flatnonzero(host)}
    busy = np.flatnonzero(timeline.busy_mask & (timeline.correlation != UNKNOWN))
    order = busy[np.argsort(timeline.correlation[busy], kind="stable")]
    ids = timeline.correlation[order]
    cuts = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    out = []
    for rows in np.split(order, cuts) if len(order) else []:
        call = calls.get(int(timeline.correlation[rows[0]]))
        name = timeline.names[timeline.name[call]] if call is not None else ""
        if _GRAPH in name or (call is None and not calls and len(rows) >= _ROWS_OF_A_GRAPH):
            out.append(_replay(timeline, np.sort(rows), call, name))
    return sorted(out, key=lambda r: r.start_ns)


def _replay(timeline: Timeline, rows: NDArray[np.int64], call: int | None, name: str) -> Replay:
    part = timeline.select(rows)
    busy = summarise(part)
    return Replay(
        correlation=int(part.correlation[0]),
        rank=int(part.rank[0]),
        call=name,
        launch_ns=int(timeline.start_ns[call]) if call is not None else None,
        start_ns=int(part.start_ns.min()),
        wall_ns=busy.wall_ns,
        rows=len(rows),
        lanes=len(np.unique(part.stream)),
        busy_ns=busy.union_busy_ns,
        sum_busy_ns=busy.sum_busy_ns,
        concurrency=busy.concurrency,
    )


@dataclass(frozen=True, slots=True)
class LaunchBoundness:
    """How far ahead the host was. ``late_share`` is the share of launched rows that started within 20 us of their
    launch: the device had been waiting for them. ``verdict`` is ``launch-bound``, ``balanced``, ``device-bound`` or
    ``unknown``.
    """

    rows: int
    launched_rows: int
    launches: int
    median_delay_ns: int
    late_share: float
    launch_call_ns: int
    verdict: str


def launch_boundness(timeline: Timeline) -> LaunchBoundness:
    """Compare launch times with start times."""
    busy = np.flatnonzero(timeline.busy_mask)
    known = busy[timeline.queued_ns[busy] != UNKNOWN]
    calls = np.flatnonzero((timeline.kind == int(Kind.HOST)) & (timeline.correlation != UNKNOWN))
    delay = timeline.start_ns[known] - timeline.queued_ns[known]
    late = float((delay < LATE_NS).mean()) if len(known) else 0.0
    if len(known) < len(busy) / 2 or not len(known):
        verdict = "unknown"
    else:
        verdict = "launch-bound" if late > 0.5 else "balanced" if late > 0.1 else "device-bound"
    return LaunchBoundness(
        rows=len(busy),
        launched_rows=len(known),
        launches=distinct(timeline.correlation[known]),
        median_delay_ns=int(np.median(delay)) if len(known) else 0,
        late_share=late,
        launch_call_ns=int(timeline.dur_ns[calls].sum()),
        verdict=verdict,
    )
