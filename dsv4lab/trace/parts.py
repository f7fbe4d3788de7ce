"""Cutting a timeline into the parts that a comparison adds up: one a step, or the whole window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsv4lab.timeline.busy import summarise
from dsv4lab.timeline.records import BusySummary
from dsv4lab.timeline.timeline import UNKNOWN, Ints, Kind, Timeline
from dsv4lab.trace.analyse.ops import layer_ids
from dsv4lab.trace.analyse.steps import Steps, main_of


@dataclass(frozen=True, slots=True)
class Part:
    """Busy rows and launch calls of one step, their busy table, and the ids of the main streams."""

    timeline: Timeline
    busy: BusySummary

    @property
    def mains(self) -> list[int]:
        """Ids of the main streams."""
        names = {s.stream for s in self.busy.streams if s.role == "main"}
        return [at for at, label in enumerate(self.timeline.streams) if label in names]


def cut(timeline: Timeline, steps: Steps, picked: Sequence[int] | None, main: str | None) -> list[Part]:
    """The parts of the steps at positions ``picked`` of ``steps.spans``; ``None`` for the whole window as one part.

    ``main`` names the main stream of all parts, by default the one of the whole timeline.
    """
    main = main_of(timeline) if main is None else main
    timeline = replace(timeline, layer=layer_ids(timeline))
    calls = np.flatnonzero(timeline.kind == int(Kind.HOST))
    calls = calls[np.argsort(timeline.start_ns[calls], kind="stable")]
    if picked is None:
        return [_part(timeline, np.flatnonzero(timeline.busy_mask), calls, main)]
    order = np.argsort(steps.of_row, kind="stable")
    bounds = np.searchsorted(steps.of_row[order], np.arange(len(steps.spans) + 1))
    begins = timeline.start_ns[calls]
    out = []
    for at in picked:
        span = steps.spans[at]
        first, last = np.searchsorted(begins, [span.start_ns, span.end_ns])
        own = calls[first:last]
        rows = np.sort(order[bounds[at] : bounds[at + 1]])
        out.append(_part(timeline, rows, own[timeline.rank[own] == span.rank], main))
    return out


def _part(timeline: Timeline, rows: Ints, calls: Ints, main: str | None) -> Part:
    part = timeline.select(np.concatenate((rows, calls)))
    used = {timeline.streams[i] for i in np.unique(timeline.stream[rows]) if i != UNKNOWN}
    named = main is not None and any(main in (label, label.rpartition("/")[2]) for label in used)
    return Part(part, summarise(part, main=main if named else None))
