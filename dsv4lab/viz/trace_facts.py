"""What the trace explorer says beside the picture: the busy table of a window, its steps and gaps, one row's facts."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import UsageError
from dsv4lab.timeline.intervals import Ints
from dsv4lab.timeline.timeline import UNKNOWN, Kind, Timeline
from dsv4lab.trace.analyse.categories import CATEGORIES
from dsv4lab.trace.analyse.critical import critical_path
from dsv4lab.trace.analyse.idle import CAUSES, Gap
from dsv4lab.trace.analyse.steps import Steps, find_steps, mode_of
from dsv4lab.viz.axes import time_text
from dsv4lab.viz.trace_index import TraceIndex

MOST_PATH_ROWS = 200_000


@dataclass(frozen=True, slots=True)
class TrackBusy:
    """One track in a window; ``hidden_ns`` is what of a side track's busy time lies under its main track's."""

    track: int
    label: str
    role: str
    rank: int
    events: int
    busy_ns: int
    sum_dur_ns: int
    hidden_ns: int


@dataclass(frozen=True, slots=True)
class WindowBusy:
    """The busy table of a window: times are those inside it, events those that begin in it."""

    start_ns: int
    end_ns: int
    union_busy_ns: int
    sum_busy_ns: int
    tracks: tuple[TrackBusy, ...]

    @property
    def concurrency(self) -> float:
        """``sum_busy_ns / union_busy_ns``; 0.0 where nothing ran."""
        return self.sum_busy_ns / self.union_busy_ns if self.union_busy_ns else 0.0


def window_busy(index: TraceIndex, start_ns: int, end_ns: int) -> WindowBusy:
    """The device tracks in ``[start_ns, end_ns)``, top to bottom; those without anything in it are left out."""
    edges = np.array([start_ns, end_ns], np.int64)
    tracks = [at for at in index.order if at in set(index.device)]
    busy, hidden = index.busy.covered(tracks, edges)[:, 0], index.hidden.covered(tracks, edges)[:, 0]
    dur, events = (part[:, 0] for part in index.events.measure(tracks, edges))
    every, union = index.together.covered([0, 1], edges)[:, 0].tolist()
    rows = [
        TrackBusy(
            track,
            index.tracks[track].label,
            index.tracks[track].role,
            index.tracks[track].rank,
            int(events[at]),
            int(busy[at]),
            int(dur[at]),
            int(hidden[at]),
        )
        for at, track in enumerate(tracks)
        if busy[at] or events[at]
    ]
    return WindowBusy(start_ns, end_ns, union, every, tuple(rows))


@dataclass(frozen=True, slots=True)
class NameTime:
    """Busy rows of one name in a window: ``ns`` are those of its time that lie inside."""

    name: str
    category: str
    rows: int
    ns: int


def window_names(index: TraceIndex, start_ns: int, end_ns: int, most: int = 40) -> list[NameTime]:
    """The names with most time in a window, longest first."""
    at = _positions(index, start_ns, end_ns)
    rows = index.placed.rows[at]
    begin, end = np.maximum(index.placed.start[at], start_ns), np.minimum(index.placed.end[at], end_ns)
    name = index.timeline.name[rows]
    keep = index.timeline.busy_mask[rows] & (end >= begin) & (name != UNKNOWN)
    names = len(index.timeline.names)
    count = np.bincount(name[keep], minlength=names)
    time = np.bincount(name[keep], weights=(end - begin)[keep], minlength=names)
    used = np.flatnonzero(count)
    top = used[np.argsort(-time[used], kind="stable")][:most]
    kinds = np.zeros(names, np.int8)
    kinds[name[keep]] = index.categories[rows[keep]]
    labels = index.timeline.names
    return [NameTime(labels[i], CATEGORIES[kinds[i]], int(count[i]), int(time[i])) for i in top.tolist()]


def _positions(index: TraceIndex, start_ns: int, end_ns: int) -> Ints:
    parts = [index.placed.inside(track, start_ns, end_ns) for track in index.device]
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(p.start, p.stop) for p in parts)])


def found_rows(timeline: Timeline, pattern: str) -> NDArray[np.bool_]:
    """``bool [n]``: rows whose name or operator matches a regular expression, case aside. Raises ``UsageError``."""
    try:
        wanted = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise UsageError(f"search {pattern!r} is not a regular expression: {error}") from None
    table = np.array([*(wanted.search(name[:2000]) is not None for name in timeline.names), False], np.bool_)
    return table[timeline.name] | table[timeline.op]


def next_row(index: TraceIndex, rows: NDArray[np.bool_], after_ns: int, *, back: bool = False) -> int | None:
    """Of ``rows`` the one that starts next after (or last before) a moment, ``None`` if there is none."""
    at = np.flatnonzero(rows)
    start = index.timeline.start_ns[at]
    at = at[start < after_ns] if back else at[start > after_ns]
    if not len(at):
        return None
    start = index.timeline.start_ns[at]
    return int(at[start.argmax() if back else start.argmin()])


@dataclass(frozen=True, slots=True)
class StepMark:
    """A step as the device saw it: from its first row's start to its last row's end."""

    label: str
    mode: str
    rank: int
    start_ns: int
    end_ns: int


def step_marks(timeline: Timeline) -> list[StepMark]:
    """Steps of all ranks in order of time; of the source's own numbers, else as labels of the host tell them."""
    busy = timeline.busy_mask
    if bool((timeline.step[busy] != UNKNOWN).any()):
        rows = np.flatnonzero(busy & (timeline.step != UNKNOWN))
        key = timeline.rank[rows].astype(np.int64) * (int(timeline.step.max()) + 1) + timeline.step[rows]
        return _extents(timeline, rows, key, None)
    steps = find_steps(timeline)
    rows = np.flatnonzero(busy & (steps.of_row != UNKNOWN))
    return _extents(timeline, rows, steps.of_row[rows].astype(np.int64), steps)


def _extents(timeline: Timeline, rows: Ints, key: Ints, steps: Steps | None) -> list[StepMark]:
    if not len(rows):
        return []
    order = np.argsort(key.astype(np.int16) if int(key.max()) < 2**15 else key, kind="stable")  # int16: by radix
    rows, key = rows[order], key[order]
    first = np.concatenate(([0], np.flatnonzero(key[1:] != key[:-1]) + 1))
    start = np.minimum.reduceat(timeline.start_ns[rows], first).tolist()
    end = np.maximum.reduceat(timeline.end_ns[rows], first).tolist()
    modes = timeline.meta.get("step_modes")
    modes = modes if isinstance(modes, dict) else {}
    out = []
    for at, row in enumerate(rows[first].tolist()):
        if steps is not None:
            label, mode = steps.spans[int(steps.of_row[row])].label, steps.spans[int(steps.of_row[row])].mode
        else:
            number = int(timeline.step[row])
            label = f"step {number}"
            mode = str(modes.get(str(number), mode_of(label)))
        out.append(StepMark(label, mode, int(timeline.rank[row]), start[at], end[at]))
    return sorted(out, key=lambda mark: (mark.start_ns, mark.rank))


def paired_steps(a: list[StepMark], b: list[StepMark]) -> list[tuple[int, int]]:
    """Positions of steps of the same mode and order within it, of the first rank of each side."""
    places: list[dict[str, list[int]]] = [{}, {}]
    for marks, place in zip((a, b), places, strict=True):
        rank = min((mark.rank for mark in marks), default=0)
        for at, mark in enumerate(marks):
            if mark.rank == rank:
                place.setdefault(mark.mode, []).append(at)
    pairs = [p for mode, own in places[0].items() for p in zip(own, places[1].get(mode, []), strict=False)]
    return sorted(pairs)


def window_gaps(index: TraceIndex, start_ns: int, end_ns: int, most: int = 1500) -> list[Gap]:
    """The longest idle gaps that touch a window, with their cause."""
    gaps = index.gaps
    inside = np.flatnonzero((gaps.start_ns < end_ns) & (gaps.start_ns + gaps.dur_ns > start_ns))
    longest = inside[np.argsort(-gaps.dur_ns[inside], kind="stable")][:most]
    name, names = index.timeline.name, index.timeline.names
    return [
        Gap(
            int(gaps.rank[at]),
            int(gaps.start_ns[at]),
            int(gaps.dur_ns[at]),
            CAUSES[gaps.cause[at]],
            _label(names, int(name[gaps.after[at]])),
            _label(names, int(name[gaps.before[at]])),
        )
        for at in longest.tolist()
    ]


def window_idle(index: TraceIndex, start_ns: int, end_ns: int) -> dict[str, int]:
    """Idle time of a window by cause, in nanoseconds; causes without any are left out."""
    time = index.idle.covered(range(len(CAUSES)), np.array([start_ns, end_ns], np.int64))[:, 0].tolist()
    return {cause: ns for cause, ns in zip(CAUSES, time, strict=True) if ns}


def path_rows(index: TraceIndex, start_ns: int, end_ns: int) -> tuple[NDArray[np.bool_], dict[str, int]] | None:
    """Rows on the critical path, and its time by what it is made of; of the window where the whole is too large.

    ``None`` if the window has more than 200,000 busy rows as well.
    """
    line = index.timeline
    rows = np.flatnonzero(line.busy_mask)
    if len(rows) > MOST_PATH_ROWS:
        inside = index.placed.rows[_positions(index, start_ns, end_ns)]
        rows = inside[line.busy_mask[inside]]
        if len(rows) > MOST_PATH_ROWS:
            return None
    path = critical_path(line.select(rows))
    out = np.zeros(len(line), np.bool_)
    out[rows[[s.row for s in path.segments if not s.what.startswith("gap: ")]]] = True
    time: dict[str, int] = {}
    for segment in path.segments:
        what = segment.what if segment.what.startswith("gap: ") else segment.category
        time[what] = time.get(what, 0) + segment.dur_ns
    return out, dict(sorted(time.items(), key=lambda item: -item[1]))


def row_facts(index: TraceIndex, row: int) -> list[tuple[str, str]]:
    """Everything known of one row, as pairs of a label and plain text. Raises :class:`UsageError` for a bad number."""
    line = index.timeline
    if not 0 <= row < len(line):
        raise UsageError(f"row {row}: takes a row number in 0..{len(line) - 1}")
    facts = [("name", _label(line.names, int(line.name[row])))]
    if line.op[row] != UNKNOWN:
        facts.append(("op", line.names[line.op[row]]))
    kind = Kind(int(line.kind[row]))
    facts.append(("kind", kind.name.lower()))
    if kind <= Kind.MEMSET:
        facts.append(("category", CATEGORIES[index.categories[row]]))
    facts.append(("duration", f"{time_text(int(line.dur_ns[row]))} ({int(line.dur_ns[row]):,} ns)"))
    facts.append(("start", f"{time_text(int(line.start_ns[row]) - index.span_ns[0])} after the first row"))
    if 0 <= line.queued_ns[row] <= line.start_ns[row]:
        facts.append(("waited in queue", time_text(int(line.start_ns[row] - line.queued_ns[row]))))
    facts += _places(index, row)
    if around := _ranges_around(index, row):
        facts.append(("inside", " › ".join(around)))
    return facts


def _places(index: TraceIndex, row: int) -> list[tuple[str, str]]:
    line = index.timeline
    facts = []
    for label, column, names in (("stream", line.stream, line.streams), ("queue", line.queue, line.queues)):
        if column[row] != UNKNOWN:
            facts.append((label, names[column[row]]))
    numbers = (("layer", index.layers), ("step", line.step), ("rank", line.rank), ("correlation", line.correlation))
    return facts + [(label, str(int(column[row]))) for label, column in numbers if column[row] != UNKNOWN]


def _ranges_around(index: TraceIndex, row: int) -> list[str]:
    """Names of the ranges that hold the row's launch, or its start where no launch is known; the widest first."""
    line = index.timeline
    moment = int(line.queued_ns[row]) if line.queued_ns[row] != UNKNOWN else int(line.start_ns[row])
    ranges = np.flatnonzero((line.kind == int(Kind.ANNOTATION)) & (line.rank == line.rank[row]))
    holds = (line.start_ns[ranges] <= moment) & (moment < line.end_ns[ranges]) & (ranges != row)
    ranges = ranges[holds]
    ranges = ranges[np.argsort(-line.dur_ns[ranges], kind="stable")]
    return [_label(line.names, int(line.name[r])) for r in ranges[:8].tolist()]


def _label(names: tuple[str, ...], index: int) -> str:
    return names[index] if index != UNKNOWN else "unnamed"
