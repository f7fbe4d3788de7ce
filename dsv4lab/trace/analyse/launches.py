"""Launches: graph replays and their lanes, and how far the host runs ahead of the device."""

from __future__ import annotations

from collections.abc import Sequence
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
    host = np.flatnonzero((timeline.kind == int(Kind.HOST)) & (timeline.correlation != UNKNOWN))
    table = np.array([*(_GRAPH in name for name in timeline.names), False], np.bool_)
    calls = {int(timeline.correlation[row]): int(row) for row in host[table[timeline.name[host]]]}
    busy = np.flatnonzero(timeline.busy_mask & (timeline.correlation != UNKNOWN))
    if len(host):
        busy = busy[np.isin(timeline.correlation[busy], list(calls))]
    order = busy[np.argsort(timeline.correlation[busy], kind="stable")]
    ids = timeline.correlation[order]
    bounds = np.concatenate(([0], np.flatnonzero(ids[1:] != ids[:-1]) + 1, [len(ids)]))
    many = np.flatnonzero(np.diff(bounds) >= (1 if len(host) else _ROWS_OF_A_GRAPH)) if len(ids) else ()
    out = []
    for at in many:
        rows = order[bounds[at] : bounds[at + 1]]
        call = calls.get(int(timeline.correlation[rows[0]]))
        name = timeline.names[timeline.name[call]] if call is not None else ""
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
class GraphGroup:
    """Replays alike: launched by the same call, with as many rows on as many lanes. ``concurrency`` is over all."""

    call: str
    rows: int
    lanes: int
    replays: int
    mean_wall_ns: float
    mean_busy_ns: float
    concurrency: float


def graph_groups(replays: Sequence[Replay]) -> list[GraphGroup]:
    """Replays by call, rows and lanes, longest total wall first."""
    groups: dict[tuple[str, int, int], list[Replay]] = {}
    for replay in replays:
        groups.setdefault((replay.call, replay.rows, replay.lanes), []).append(replay)
    out = []
    for key, found in groups.items():
        wall, busy, total = (sum(getattr(r, f) for r in found) for f in ("wall_ns", "busy_ns", "sum_busy_ns"))
        count = len(found)
        out.append((wall, GraphGroup(*key, count, wall / count, busy / count, total / busy if busy else 0.0)))
    return [group for _, group in sorted(out, key=lambda pair: -pair[0])]


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
