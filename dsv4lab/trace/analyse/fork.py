"""Did the fork happen: whether side streams really ran beside the main one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsv4lab.timeline.busy import summarise
from dsv4lab.timeline.intervals import Ints, covered, merge
from dsv4lab.timeline.timeline import UNKNOWN, Timeline

VERDICTS = ("no side streams", "not forked", "serialised", "partly hidden", "hidden")
_HIDDEN, _SOME = 0.9, 0.02


@dataclass(frozen=True, slots=True)
class ForkVerdict:
    """``hidden_share`` is the part of side busy that main busy covers.

    ``shared_queues`` are hardware queues that carry main and side rows alike: rows there cannot overlap. ``missing``
    are streams that a plan names and the trace lacks.
    """

    verdict: str
    reason: str
    side_rows: int
    side_busy_ns: int
    hidden_ns: int
    hidden_share: float
    shared_queues: tuple[str, ...]
    missing: tuple[str, ...]


def fork_verdict(timeline: Timeline, expected: tuple[str, ...] = (), main: str | None = None) -> ForkVerdict:
    """Judge the side streams of a timeline; ``expected`` are the streams of the plan that it should have run."""
    busy = summarise(timeline, main=main)
    side = [s for s in busy.streams if s.role != "main" and s.busy_ns]
    present = {s.stream.rpartition("/")[2] for s in busy.streams if s.events}
    missing = tuple(s for s in expected if s not in present)
    rows = sum(s.events for s in side)
    share = busy.hidden_ns / busy.side_busy_ns if busy.side_busy_ns else 0.0
    shared = _shared_queues(timeline, {s.stream for s in side}, {s.stream for s in busy.streams if s.role == "main"})
    verdict, reason = _judge(bool(busy.streams), bool(side), share, shared, missing)
    return ForkVerdict(verdict, reason, rows, busy.side_busy_ns, busy.hidden_ns, share, shared, missing)


def _judge(
    any_streams: bool, has_side: bool, share: float, shared: tuple[str, ...], missing: tuple[str, ...]
) -> tuple[str, str]:
    if not any_streams:
        return "no side streams", "the trace names no streams"
    if not has_side:
        if missing:
            return "not forked", f"the plan names {', '.join(missing)}, but everything ran on the main stream"
        return "no side streams", "everything ran on one stream"
    if share >= _HIDDEN:
        return "hidden", f"{100 * share:.0f} % of the side work ran under main work"
    if share >= _SOME:
        why = f"; they share queue {', '.join(shared)} with main" if shared else ""
        return "partly hidden", f"{100 * share:.0f} % of the side work ran under main work{why}"
    if shared:
        return "serialised", f"side rows share queue {', '.join(shared)} with main rows, so they ran one after another"
    return "serialised", "side rows ran only while main was idle: waits or launches keep them apart"


def _shared_queues(timeline: Timeline, side: set[str], main: set[str]) -> tuple[str, ...]:
    if not timeline.queues or timeline.queues == timeline.streams:
        return ()
    rows = timeline.busy_mask & (timeline.queue != UNKNOWN) & (timeline.stream != UNKNOWN)

    def used(labels: set[str]) -> set[int]:
        ids = [at for at, label in enumerate(timeline.streams) if label in labels]
        return set(np.unique(timeline.queue[rows & np.isin(timeline.stream, ids)]).tolist())

    return tuple(timeline.queues[q] for q in sorted(used(side) & used(main)))


def hidden_by_name(timeline: Timeline, main: str | None = None) -> list[tuple[str, int, int]]:
    """``(name, side time, hidden time)`` of every name with rows on side streams, largest first."""
    busy = summarise(timeline, main=main)
    mains = {s.stream for s in busy.streams if s.role == "main"}
    ids = np.array([at for at, label in enumerate(timeline.streams) if label in mains], np.int64)
    on_main = timeline.busy_mask & np.isin(timeline.stream, ids)
    side = np.flatnonzero(timeline.busy_mask & ~np.isin(timeline.stream, ids))
    hidden: Ints = np.zeros(len(side), np.int64)
    for rank in np.unique(timeline.rank[side]):
        own = on_main & (timeline.rank == rank)
        rows = timeline.rank[side] == rank
        under = merge(timeline.start_ns[own], timeline.end_ns[own])
        hidden[rows] = covered(under, timeline.start_ns[side[rows]], timeline.end_ns[side[rows]])
    out = []
    for name in np.unique(timeline.name[side]):
        same = timeline.name[side] == name
        out.append((timeline.names[name], int(timeline.dur_ns[side[same]].sum()), int(hidden[same].sum())))
    return sorted(out, key=lambda row: -row[1])
