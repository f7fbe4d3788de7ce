"""Busy time and concurrency of a timeline (DESIGN, *Words*), in exact integer nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import UsageError
from dsv4lab.timeline.intervals import Intervals, Ints, is_sorted, merge, merge_all, overlap_length, union_length
from dsv4lab.timeline.records import BusySummary, QueueBusy, StreamBusy
from dsv4lab.timeline.threads import each
from dsv4lab.timeline.timeline import UNKNOWN, Ids, Timeline

UNKNOWN_LABEL = "unknown"
_FEW_IDS = 16
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


def group(ids: NDArray[np.int32]) -> list[tuple[int, Ints]]:
    """``(id, positions)`` of every distinct id, in order of the ids, positions in their old order."""
    if not len(ids):
        return []
    low, high = int(ids.min()), int(ids.max())
    if low == high:
        return [(low, np.arange(len(ids)))]
    if high - low < _FEW_IDS:
        found = each(lambda lane: (lane, np.flatnonzero(ids == lane)), range(low, high + 1), len(ids))
        return [(lane, rows) for lane, rows in found if len(rows)]
    keys = ids.astype(np.int16) if low >= -(2**15) and high < 2**15 else ids
    order = np.argsort(keys, kind="stable")
    ordered = ids[order]
    cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    firsts = np.concatenate(([0], cuts))
    return [(int(ordered[at]), rows) for at, rows in zip(firsts, np.split(order, cuts), strict=True)]


def grouped(timeline: Timeline, ids: Ids) -> list[tuple[int, Ints]]:
    """Busy rows by id: ``(id, row numbers)``."""
    mask = timeline.busy_mask
    if mask.all():
        return group(ids)
    picked = np.flatnonzero(mask)
    return [(lane, picked[inside]) for lane, inside in group(ids[picked])]


def _ends(timeline: Timeline, rows: Ints) -> tuple[Ints, Ints, int]:
    """Starts, ends and summed durations of ``rows``."""
    start, end = timeline.start_ns[rows], timeline.dur_ns[rows]
    total = int(end.sum())
    end += start
    return start, end, total


def lanes(timeline: Timeline, column: str = "stream") -> list[Lane]:
    """Busy rows grouped by ``column`` (``"stream"`` or ``"queue"``) and merged; in order of the id."""

    def one(part: tuple[int, Ints]) -> Lane:
        lane, rows = part
        start, end, total = _ends(timeline, rows)
        return Lane(lane, int(timeline.rank[rows[0]]), rows, merge(start, end), total)

    return each(one, grouped(timeline, getattr(timeline, column)), len(timeline))


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

    def row(at: int) -> StreamBusy:
        lane = found[at]
        hidden = 0 if at in mains else overlap_length(lane.busy, main_busy[lane.rank])
        role = "main" if at in mains else "side"
        label, queue = _label(labels, lane.id), _queue_of(timeline, lane)
        return StreamBusy(label, queue, role, lane.busy.length, lane.sum_dur_ns, hidden, len(lane.rows))

    streams = each(row, range(len(found)), len(timeline))
    span, union = _wall_and_union(timeline, found)
    return BusySummary(
        wall_ns=span,
        union_busy_ns=union,
        sum_busy_ns=sum(lane.busy.length for lane in found),
        sum_dur_ns=sum(lane.sum_dur_ns for lane in found),
        hidden_ns=sum(s.hidden_ns for s in streams),
        streams=tuple(sorted(streams, key=lambda s: (s.role != "main", -s.busy_ns))) if are_streams else (),
        queues=_queue_busy(timeline),
        warnings=_warnings(timeline, found, are_streams),
    )


def _wall_and_union(timeline: Timeline, found: list[Lane]) -> tuple[int, int]:
    """Wall, and busy of all lanes together: from the rows themselves where those are in order of time already."""
    start = timeline.start_ns
    if len(found) > 1 and bool(timeline.busy_mask.all()) and is_sorted(start):
        end = timeline.end_ns
        return int(end.max()) - int(start[0]), union_length(start, end)
    first, last = wall(timeline)
    return last - first, merge_all([lane.busy for lane in found]).length


def _queue_busy(timeline: Timeline) -> tuple[QueueBusy, ...]:
    if not timeline.queues:
        return ()

    def row(part: tuple[int, Ints]) -> QueueBusy:
        lane, rows = part
        start, end, total = _ends(timeline, rows)
        return QueueBusy(timeline.queues[lane], union_length(start, end), total, len(rows))

    parts = [part for part in grouped(timeline, timeline.queue) if part[0] != UNKNOWN]
    return tuple(sorted(each(row, parts, len(timeline)), key=lambda q: -q.busy_ns))


def _warnings(timeline: Timeline, found: list[Lane], are_streams: bool) -> tuple[str, ...]:
    extra = []
    if not are_streams:
        extra.append(QUEUES_ONLY)
    elif any(lane.id == UNKNOWN for lane in found):
        extra.append(UNKNOWN_STREAM)
    return (*timeline.warnings, *extra)
