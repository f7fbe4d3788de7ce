"""Packets waiting and running in hardware queues: how deep each queue was, and step functions over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.busy import grouped, wall
from dsv4lab.timeline.intervals import Ints, in_order
from dsv4lab.timeline.records import QueueOccupancy
from dsv4lab.timeline.threads import each
from dsv4lab.timeline.timeline import UNKNOWN, Kind, Timeline

EXACT_PACKETS = 100_000
MANY_BINS = 1 << 16


def _lane_column(timeline: Timeline) -> tuple[NDArray[np.int32], tuple[str, ...], bool]:
    """Lane of every row, the labels, and whether they are queues: streams stand in where the source names none."""
    if (timeline.queue != UNKNOWN).any():
        return timeline.queue, timeline.queues, True
    return timeline.stream, tuple(f"stream {name}" for name in timeline.streams), False


def _packets(timeline: Timeline, rows: Ints | slice) -> tuple[Ints, Ints, Ints]:
    """``(queued, start, end)`` of the packets ``rows``; a barrier (``WAIT``) never runs: its start is its end."""
    start, queued = timeline.start_ns[rows], timeline.queued_ns[rows]
    end = start + timeline.dur_ns[rows]
    barrier = timeline.kind[rows] == Kind.WAIT
    known = queued != UNKNOWN
    if not known.all():
        queued = np.where(known, queued, start)
    if barrier.any():
        start = np.where(barrier, end, start)
    return np.minimum(queued, start), start, end


def _packet_rows(timeline: Timeline, lane: NDArray[np.int32], *, barriers: bool) -> Ints | slice:
    """Rows that are packets of some lane."""
    packets = timeline.busy_mask
    if barriers:
        packets = packets | (timeline.kind == Kind.WAIT)
    packets = packets & (lane != UNKNOWN)
    return slice(None) if packets.all() else np.flatnonzero(packets)


def occupancy(timeline: Timeline) -> QueueOccupancy:
    """Packets waiting and running in every queue as step functions.

    A packet waits from ``queued_ns`` to its start and runs until its end; a barrier waits until it is released. Where
    the source names no queue, streams stand in, labelled ``stream <name>``. Above ``EXACT_PACKETS`` packets the steps
    are those of :func:`occupancy_bins`, which ``exact`` tells; :func:`queue_depth` is exact at any size.
    """
    lane_of, labels, are_queues = _lane_column(timeline)
    rows = _packet_rows(timeline, lane_of, barriers=are_queues)
    lane = lane_of[rows]
    if len(lane) > EXACT_PACKETS:
        return occupancy_bins(timeline, MANY_BINS)
    queued, start, end = _packets(timeline, rows)
    edges = np.unique(np.concatenate((queued, start, end)))
    used = np.unique(lane)
    running = np.zeros((len(used), max(len(edges) - 1, 0)), np.int32)
    waiting = np.zeros_like(running)
    for at, lane_id in enumerate(used):
        own = lane == lane_id
        running[at] = _steps(edges, start[own], end[own])
        waiting[at] = _steps(edges, queued[own], start[own])
    return QueueOccupancy(tuple(labels[i] for i in used), edges, running, waiting)


def _steps(edges: Ints, start: Ints, end: Ints) -> NDArray[np.int32]:
    change = np.bincount(np.searchsorted(edges, start), minlength=len(edges))
    change -= np.bincount(np.searchsorted(edges, end), minlength=len(edges))
    return np.cumsum(change)[:-1].astype(np.int32)


def occupancy_bins(timeline: Timeline, bins: int = 4096) -> QueueOccupancy:
    """Like :func:`occupancy`, on at most ``bins`` equal cells of the wall: the exact counts at every cell's start.

    One pass over the packets, without sorting: what a picture of a million rows needs.
    """
    lane_of, labels, are_queues = _lane_column(timeline)
    rows = _packet_rows(timeline, lane_of, barriers=are_queues)
    first, last = wall(timeline)
    if last <= first:
        return QueueOccupancy((), np.empty(0, np.int64), np.zeros((0, 0), np.int32), np.zeros((0, 0), np.int32))
    width = -(-(last - first) // bins)
    cells = -(-(last - first) // width)
    edges = first + width * np.arange(cells + 1, dtype=np.int64)
    edges[-1] = last
    lane = lane_of[rows]
    used = np.flatnonzero(np.bincount(lane, minlength=len(labels)))
    place = np.zeros(len(labels), np.int64)
    place[used] = np.arange(len(used)) * (cells + 1)
    offset = place[lane]

    def counted(times: Ints) -> NDArray[np.int64]:
        """Packets of every lane whose time is at or before the start of each cell."""
        past = np.maximum(times, first).view(np.uint64) - np.int64(first).astype(np.uint64)
        cell = np.minimum((past + np.uint64(width - 1)) // np.uint64(width), np.uint64(cells)).view(np.int64)
        found = np.bincount(offset + cell, minlength=len(used) * (cells + 1))
        return np.asarray(np.cumsum(found.reshape(len(used), cells + 1), axis=1)[:, :-1])

    entered, begun, over = each(counted, _packets(timeline, rows), len(lane))
    running, waiting = (begun - over).astype(np.int32), (entered - begun).astype(np.int32)
    return QueueOccupancy(tuple(labels[i] for i in used), edges, running, waiting, exact=False)


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How full a queue was: packets running and waiting on average over the wall, and the most that ever waited."""

    queue: str
    mean_running: float
    mean_waiting: float
    most_waiting: int


def queue_depth(timeline: Timeline) -> list[QueueDepth]:
    """Depth of every hardware queue, exact at any size; empty where the source names none."""
    if not timeline.queues:
        return []
    first, last = wall(timeline)
    span = max(last - first, 1)

    def depth(lane: tuple[int, Ints]) -> QueueDepth:
        queued, start, end = _packets(timeline, lane[1])
        return QueueDepth(
            queue=timeline.queues[lane[0]],
            mean_running=int((end - start).sum()) / span,
            mean_waiting=int((start - queued).sum()) / span,
            most_waiting=_most_waiting(in_order(queued), in_order(start)),
        )

    return each(depth, [lane for lane in grouped(timeline, timeline.queue) if lane[0] != UNKNOWN], len(timeline))


def _most_waiting(entered: Ints, begun: Ints) -> int:
    """The most packets that had entered and not begun at one moment; both sorted.

    At least ``d`` wait at some moment exactly if, for some ``k``, the packet ``d`` places before the ``k``-th begins
    after the ``k``-th enters; what holds for ``d`` holds for all less, so bisection finds the largest.
    """

    def reaches(depth: int) -> bool:
        return bool((begun[: len(begun) - depth + 1] > entered[depth - 1 :]).any())

    if not len(entered) or not reaches(1):
        return 0
    low, high = 1, 2
    while high <= len(entered) and reaches(high):
        low, high = high, 2 * high
    high = min(high, len(entered) + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if reaches(middle) else (low, middle)
    return low
