"""Busy time, concurrency and queue occupancy of a timeline (DESIGN, *Words*), in exact integer nanoseconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import UsageError
from dsv4lab.timeline.intervals import Intervals, Ints, is_sorted, merge, merge_all, overlap_length
from dsv4lab.timeline.records import BusySummary, QueueBusy, QueueOccupancy, StreamBusy
from dsv4lab.timeline.timeline import UNKNOWN, Ids, Kind, Timeline

UNKNOWN_LABEL = "unknown"
EXACT_ROWS = 100_000
MANY_BINS = 1 << 16
QUEUES_ONLY = "the source names hardware queues but no streams: sums, concurrency and hidden time are by queue"
UNKNOWN_STREAM = "some rows name no stream: they are kept in a lane of their own called 'unknown'"


@dataclass(frozen=True, eq=False, slots=True)
class Lane:
    """The busy rows of one stream or queue: ``rows`` are row numbers of the timeline, ``busy`` their union."""

    id: int
    rank: int
    rows: Ints
    busy: Intervals
    sum_dur_ns: int


def group(ids: NDArray[np.int32]) -> Iterator[tuple[int, Ints]]:
    """``(id, positions)`` of every distinct id, positions in their old order."""
    if not len(ids):
        return
    low, high = int(ids.min()), int(ids.max())
    if low == high:
        yield low, np.arange(len(ids))
        return
    keys = ids.astype(np.int16) if low >= -(2**15) and high < 2**15 else ids
    order = np.argsort(keys, kind="stable")
    ordered = ids[order]
    cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    starts = np.concatenate(([0], cuts))
    for first, rows in zip(starts, np.split(order, cuts), strict=True):
        yield int(ordered[first]), rows


def _grouped(timeline: Timeline, ids: Ids) -> Iterator[tuple[int, Ints]]:
    """Busy rows by id: ``(id, row numbers)``."""
    mask = timeline.busy_mask
    if mask.all():
        yield from group(ids)
        return
    picked = np.flatnonzero(mask)
    for lane, inside in group(ids[picked]):
        yield lane, picked[inside]


def lanes(timeline: Timeline, column: str = "stream") -> list[Lane]:
    """Busy rows grouped by ``column`` (``"stream"`` or ``"queue"``) and merged; in order of the id."""
    out = []
    for lane, rows in _grouped(timeline, getattr(timeline, column)):
        start, dur = timeline.start_ns[rows], timeline.dur_ns[rows]
        rank = int(timeline.rank[rows[0]])
        out.append(Lane(lane, rank, rows, merge(start, start + dur), int(dur.sum())))
    return out


def wall(timeline: Timeline) -> tuple[int, int]:
    """First start and last end of the busy rows; ``(0, 0)`` if there are none."""
    mask = timeline.busy_mask
    if not mask.any():
        return 0, 0
    start, end = (
        (timeline.start_ns, timeline.end_ns) if mask.all() else (timeline.start_ns[mask], timeline.end_ns[mask])
    )
    return int(start.min()), int(end.max())


def _label(labels: tuple[str, ...], index: int) -> str:
    return labels[index] if index != UNKNOWN else UNKNOWN_LABEL


def _is_named(label: str, wanted: str) -> bool:
    """Labels of merged files read ``rank0/7``: the full label and its last part both name the lane."""
    return wanted in (label, label.rpartition("/")[2])


def _pick_main(found: list[Lane], labels: tuple[str, ...], wanted: str | None) -> set[int]:
    """Positions in ``found`` of the main lane of every rank: the named one, else the busiest."""
    best: dict[int, int] = {}
    for at, lane in enumerate(found):
        held = best.get(lane.rank)
        if held is None or lane.busy.length > found[held].busy.length:
            best[lane.rank] = at
    if wanted is not None:
        best.update({lane.rank: at for at, lane in enumerate(found) if _is_named(_label(labels, lane.id), wanted)})
    return set(best.values())


def _check_main(found: list[Lane], labels: tuple[str, ...], wanted: str | None) -> None:
    names = [_label(labels, lane.id) for lane in found]
    if wanted is not None and found and not any(_is_named(name, wanted) for name in names):
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        raise UsageError(f"main stream {wanted!r} is not in the timeline; it has: {shown}")


def _queue_of(timeline: Timeline, lane: Lane) -> str | None:
    if not timeline.queues:
        return None
    used = np.flatnonzero(np.bincount(timeline.queue[lane.rows] + 1)) - 1
    labels = [timeline.queues[i] for i in used if i != UNKNOWN]
    return ",".join(labels) if labels else None


def stream_lanes(timeline: Timeline) -> tuple[list[Lane], tuple[str, ...], bool]:
    """The lanes that busy sums are over, their labels, and whether they are streams (else queues)."""
    found = lanes(timeline, "stream")
    if found and all(lane.id == UNKNOWN for lane in found) and timeline.queues:
        return lanes(timeline, "queue"), timeline.queues, False
    return found, timeline.streams, True


def summarise(timeline: Timeline, main: str | None = None) -> BusySummary:
    """Busy table of ``timeline``.

    ``main`` names the main stream; left out, the timeline's own ``main_stream`` counts, else the busiest stream. With
    several ranks each has its own main stream, and the top-level union merges all ranks.

    Raises ``UsageError`` if ``main`` names no stream of the timeline.
    """
    found, labels, are_streams = stream_lanes(timeline)
    _check_main(found, labels, main)
    mains = _pick_main(found, labels, main if main is not None else timeline.main_stream)
    main_busy = {found[at].rank: found[at].busy for at in mains}
    streams, hidden_total = [], 0
    for at, lane in enumerate(found):
        hidden = 0 if at in mains else overlap_length(lane.busy, main_busy[lane.rank])
        hidden_total += hidden
        role = "main" if at in mains else "side"
        queue = _queue_of(timeline, lane)
        label = _label(labels, lane.id)
        streams.append(StreamBusy(label, queue, role, lane.busy.length, lane.sum_dur_ns, hidden, len(lane.rows)))
    first, last = wall(timeline)
    return BusySummary(
        wall_ns=last - first,
        union_busy_ns=_union(timeline, found),
        sum_busy_ns=sum(lane.busy.length for lane in found),
        sum_dur_ns=sum(lane.sum_dur_ns for lane in found),
        hidden_ns=hidden_total,
        streams=tuple(sorted(streams, key=lambda s: (s.role != "main", -s.busy_ns))) if are_streams else (),
        queues=_queue_busy(timeline, found, are_streams),
        warnings=_warnings(timeline, found, are_streams),
    )


def _union(timeline: Timeline, found: list[Lane]) -> int:
    """Busy of all lanes together, from the rows themselves where those are in order of time already."""
    mask = timeline.busy_mask
    if len(found) > 1 and mask.all() and is_sorted(timeline.start_ns):
        return merge(timeline.start_ns, timeline.end_ns).length
    return merge_all([lane.busy for lane in found]).length


def _queue_busy(timeline: Timeline, found: list[Lane], are_streams: bool) -> tuple[QueueBusy, ...]:
    if not timeline.queues:
        return ()
    by_queue = lanes(timeline, "queue") if are_streams else found
    rows = [
        QueueBusy(timeline.queues[lane.id], lane.busy.length, lane.sum_dur_ns, len(lane.rows))
        for lane in by_queue
        if lane.id != UNKNOWN
    ]
    return tuple(sorted(rows, key=lambda q: -q.busy_ns))


def _warnings(timeline: Timeline, found: list[Lane], are_streams: bool) -> tuple[str, ...]:
    extra = []
    if not are_streams:
        extra.append(QUEUES_ONLY)
    elif any(lane.id == UNKNOWN for lane in found):
        extra.append(UNKNOWN_STREAM)
    return (*timeline.warnings, *extra)


def _occupancy_lanes(timeline: Timeline) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Lane of every row and the labels: queues, or streams standing in where the source names no queue."""
    if (timeline.queue != UNKNOWN).any():
        return timeline.queue, timeline.queues
    return timeline.stream, tuple(f"stream {name}" for name in timeline.streams)


def _packets(timeline: Timeline, rows: Ints) -> tuple[Ints, Ints, Ints]:
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


def _lane_packets(timeline: Timeline, *, barriers: bool) -> tuple[list[Ints], tuple[str, ...]]:
    """Row numbers of the packets of every queue (or stream) that has any, and their labels."""
    lane_of, labels = _occupancy_lanes(timeline)
    packets = timeline.busy_mask
    if barriers:
        packets = packets | (timeline.kind == Kind.WAIT)
    packets = packets & (lane_of != UNKNOWN)
    rows = np.flatnonzero(packets)
    found = [(lane, rows[inside]) for lane, inside in group(lane_of[rows])]
    return [own for _, own in found], tuple(labels[lane] for lane, _ in found)


def occupancy(timeline: Timeline) -> QueueOccupancy:
    """Packets waiting and running in every queue as step functions.

    A packet waits from ``queued_ns`` to its start and runs until its end; a barrier waits until it is released. Where
    the source names no queue, streams stand in, labelled ``stream <name>``. Above ``EXACT_ROWS`` packets the steps are
    those of :func:`occupancy_bins`.
    """
    lanes_of_rows, labels = _lane_packets(timeline, barriers=bool((timeline.queue != UNKNOWN).any()))
    if sum(map(len, lanes_of_rows)) > EXACT_ROWS:
        return occupancy_bins(timeline, MANY_BINS)
    parts = [_packets(timeline, rows) for rows in lanes_of_rows]
    times = [t for part in parts for t in part]
    edges = np.unique(np.concatenate(times)) if times else np.empty(0, np.int64)
    running = np.zeros((len(parts), max(len(edges) - 1, 0)), np.int32)
    waiting = np.zeros_like(running)
    for at, (queued, start, end) in enumerate(parts):
        running[at] = _steps(edges, start, end)
        waiting[at] = _steps(edges, queued, start)
    return QueueOccupancy(labels, edges, running, waiting)


def _steps(edges: Ints, start: Ints, end: Ints) -> NDArray[np.int32]:
    change = np.bincount(np.searchsorted(edges, start), minlength=len(edges))
    change -= np.bincount(np.searchsorted(edges, end), minlength=len(edges))
    return np.cumsum(change)[:-1].astype(np.int32)


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How full a queue was: packets running and waiting on average over the wall, and the most that ever waited."""

    queue: str
    mean_running: float
    mean_waiting: float
    most_waiting: int


def queue_depth(timeline: Timeline) -> list[QueueDepth]:
    """Depth of every hardware queue; empty where the source names none."""
    if not timeline.queues:
        return []
    first, last = wall(timeline)
    out = []
    for lane, rows in _grouped(timeline, timeline.queue):
        if lane == UNKNOWN:
            continue
        queued, start, end = _packets(timeline, rows)
        queued, begun = np.sort(queued, kind="stable"), np.sort(start, kind="stable")
        waiting = np.searchsorted(queued, queued, side="right") - np.searchsorted(begun, queued, side="right")
        span = max(last - first, 1)
        out.append(
            QueueDepth(
                queue=timeline.queues[lane],
                mean_running=int((end - start).sum()) / span,
                mean_waiting=int(np.clip(begun - queued, 0, None).sum()) / span,
                most_waiting=int(waiting.max(initial=0)),
            )
        )
    return out


def occupancy_bins(timeline: Timeline, bins: int = 4096) -> QueueOccupancy:
    """Like :func:`occupancy`, on ``bins`` equal cells: the counts at every cell's start, barriers left out.

    Cheap at any size: what a picture of a million rows needs.
    """
    lanes_of_rows, labels = _lane_packets(timeline, barriers=False)
    first, last = wall(timeline)
    edges = np.unique(np.linspace(first, last, bins + 1).astype(np.int64))
    running = np.zeros((len(labels), max(len(edges) - 1, 0)), np.int32)
    waiting = np.zeros_like(running)
    for at, rows in enumerate(lanes_of_rows):
        queued, start, end = (np.sort(times, kind="stable") for times in _packets(timeline, rows))
        begun, over, entered = (np.searchsorted(times, edges[:-1], side="right") for times in (start, end, queued))
        running[at] = begun - over
        waiting[at] = entered - begun
    return QueueOccupancy(labels, edges, running, waiting)
