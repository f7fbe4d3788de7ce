"""Steps: what the engine or the profiler called a step, and the rows that belong to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.busy import summarise
from dsv4lab.timeline.timeline import UNKNOWN, Kind, Timeline

_PROFILER = re.compile(r"ProfilerStep#(\d+)")
_ENGINE = re.compile(
    r"(?:eager_|dummy_)*(?:prefill|decode|extend|verify|draft|mixed|idle)\w*\[|step\[|execute_\d+_context_|execute_context_"
)
_MODES = (
    ("verify", re.compile(r"verify", re.IGNORECASE)),
    ("draft", re.compile(r"draft", re.IGNORECASE)),
    ("prefill", re.compile(r"prefill|extend|context_[1-9]\d*\(", re.IGNORECASE)),
    ("decode", re.compile(r"decode|generation_[1-9]", re.IGNORECASE)),
)
_MIXED = re.compile(r"mixed|context_[1-9]\d*\(.*generation_[1-9]", re.IGNORECASE)


def mode_of(label: str) -> str:
    """``prefill``, ``decode``, ``verify``, ``draft``, ``mixed`` or ``unknown``, as a step's label tells it."""
    if _MIXED.search(label):
        return "mixed"
    return next((mode for mode, pattern in _MODES if pattern.search(label)), "unknown")


@dataclass(frozen=True, slots=True)
class StepSpan:
    """A step as its source marked it: a range of the host's time, or of the rows that carry its number."""

    number: int
    label: str
    mode: str
    rank: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class StepTime:
    """What the device did for one step: the one at ``span`` of :attr:`Steps.spans`.

    ``last`` marks the last step, which the window may have cut off.
    """

    step: int
    label: str
    mode: str
    rank: int
    start_ns: int
    wall_ns: int
    host_ns: int
    rows: int
    union_busy_ns: int
    main_busy_ns: int
    side_busy_ns: int
    hidden_ns: int
    idle_ns: int
    concurrency: float
    last: bool
    span: int


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """``of_row`` is ``int32 [n]``: the position in ``spans`` of every row's step, ``-1`` where it is not known."""

    spans: tuple[StepSpan, ...]
    of_row: NDArray[np.int32]
    source: str
    unattributed: int


def find_steps(timeline: Timeline) -> Steps:
    """The steps of a timeline.

    The ``step`` column wins (our own captures); then the engine's labels; then ``ProfilerStep``. Warm-up steps
    (``dummy_``) are left out. A row belongs to the step in whose host range it was launched; rows without a launch are
    not attributed.
    """
    if bool((timeline.step[timeline.busy_mask] != UNKNOWN).any()):
        return _from_column(timeline)
    for source, pattern in (("engine labels", _ENGINE), ("ProfilerStep", _PROFILER)):
        spans = _spans(timeline, pattern)
        if spans:
            return _attribute(timeline, spans, source)
    return Steps((), np.full(len(timeline), UNKNOWN, np.int32), "none", int(timeline.busy_mask.sum()))


def _from_column(timeline: Timeline) -> Steps:
    busy = timeline.busy_mask & (timeline.step != UNKNOWN)
    spans: list[StepSpan] = []
    of_row = np.full(len(timeline), UNKNOWN, np.int32)
    modes = timeline.meta.get("step_modes")
    for rank in np.unique(timeline.rank[busy]).tolist():
        for number in np.unique(timeline.step[busy & (timeline.rank == rank)]).tolist():
            rows = busy & (timeline.rank == rank) & (timeline.step == number)
            start, end = int(timeline.start_ns[rows].min()), int(timeline.end_ns[rows].max())
            mode = str(modes.get(str(number), "unknown")) if isinstance(modes, dict) else "unknown"
            of_row[rows] = len(spans)
            spans.append(StepSpan(number, f"step {number}", mode, rank, start, end))
    return Steps(tuple(spans), of_row, "step column", int((timeline.busy_mask & (of_row == UNKNOWN)).sum()))


def _spans(timeline: Timeline, pattern: re.Pattern[str]) -> list[StepSpan]:
    """Host ranges whose name matches, in order of time; nested ranges of one rank count once (the outer one)."""
    table = np.array([*(pattern.match(name) is not None for name in timeline.names), False], np.bool_)
    rows = np.flatnonzero((timeline.kind == int(Kind.ANNOTATION)) & (timeline.stream == UNKNOWN) & table[timeline.name])
    rows = rows[np.lexsort((-timeline.dur_ns[rows], timeline.start_ns[rows], timeline.rank[rows]))]
    spans: list[StepSpan] = []
    reach: dict[int, int] = {}
    for row in rows.tolist():
        rank, start = int(timeline.rank[row]), int(timeline.start_ns[row])
        if start < reach.get(rank, start):
            continue
        end = start + int(timeline.dur_ns[row])
        reach[rank] = end
        label = timeline.names[timeline.name[row]]
        if label.startswith(("dummy_", "eager_dummy_")):
            continue
        numbered = _PROFILER.match(label)
        spans.append(StepSpan(int(numbered[1]) if numbered else len(spans), label, mode_of(label), rank, start, end))
    return spans


def _attribute(timeline: Timeline, spans: Sequence[StepSpan], source: str) -> Steps:
    of_row = np.full(len(timeline), UNKNOWN, np.int32)
    busy = timeline.busy_mask
    for rank in {span.rank for span in spans}:
        own = [at for at, span in enumerate(spans) if span.rank == rank]
        start = np.array([spans[at].start_ns for at in own])
        end = np.array([spans[at].end_ns for at in own])
        rows = np.flatnonzero(busy & (timeline.rank == rank) & (timeline.queued_ns != UNKNOWN))
        launched = timeline.queued_ns[rows]
        index = np.searchsorted(start, launched, side="right") - 1
        inside = (index >= 0) & (launched < end[np.maximum(index, 0)])
        of_row[rows[inside]] = np.array(own, np.int32)[index[inside]]
    return Steps(tuple(spans), of_row, source, int((busy & (of_row == UNKNOWN)).sum()))


def step_times(timeline: Timeline, steps: Steps | None = None, main: str | None = None) -> list[StepTime]:
    """Busy figures of every step that has rows."""
    steps = find_steps(timeline) if steps is None else steps
    order = np.argsort(steps.of_row, kind="stable")
    bounds = np.searchsorted(steps.of_row[order], np.arange(len(steps.spans) + 1))
    chosen = main if main is not None else main_of(timeline)
    out = []
    for at, span in enumerate(steps.spans):
        rows = order[bounds[at] : bounds[at + 1]]
        if not len(rows):
            continue
        part = timeline.select(np.sort(rows))
        busy = summarise(part, main=chosen if chosen in _labels(part) else None)
        out.append(
            StepTime(
                step=span.number,
                label=span.label,
                mode=span.mode,
                rank=span.rank,
                start_ns=int(part.start_ns.min()),
                wall_ns=busy.wall_ns,
                host_ns=span.end_ns - span.start_ns,
                rows=len(rows),
                union_busy_ns=busy.union_busy_ns,
                main_busy_ns=busy.main_busy_ns,
                side_busy_ns=busy.side_busy_ns,
                hidden_ns=busy.hidden_ns,
                idle_ns=busy.wall_ns - busy.union_busy_ns,
                concurrency=busy.concurrency,
                last=at == len(steps.spans) - 1,
                span=at,
            )
        )
    return out


def main_of(timeline: Timeline) -> str | None:
    """The main stream of the whole timeline, so that it is the same in every step."""
    if timeline.main_stream is not None:
        return timeline.main_stream
    return next((s.stream.rpartition("/")[2] for s in summarise(timeline).streams if s.role == "main"), None)


def _labels(timeline: Timeline) -> set[str]:
    used = [timeline.streams[i] for i in np.unique(timeline.stream) if i != UNKNOWN]
    return {*used, *(label.rpartition("/")[2] for label in used)}
