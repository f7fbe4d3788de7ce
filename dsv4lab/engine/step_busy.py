"""Busy and hidden time of forwards, summed up where the loop waits for it: many forwards at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from dsv4lab.timeline.intervals import EMPTY, covered, merge
from dsv4lab.timeline.program import MAIN

if TYPE_CHECKING:
    from dsv4lab.overlap.run_record import RunRecord
    from dsv4lab.timeline.program import StreamProgram

Busy = tuple[dict[str, int], int]
"""Busy time by stream, and how much of the side streams' lies under main's: as ``stream_busy`` of a timeline."""


def busy_of_each(records: Sequence[RunRecord]) -> list[Busy]:
    """:data:`Busy` of every record, in order."""
    out: list[Busy] = []
    for _, group in groupby(records, key=lambda r: id(r.program)):
        same = list(group)
        out += _together(same) or [busy_of(record) for record in same]
    return out


def busy_of(record: RunRecord) -> Busy:
    """:data:`Busy` of one record."""
    merged = {s: merge(record.start_ns[rows], record.end_ns[rows]) for s, rows in _places(record.program).items()}
    main = merged.get(MAIN, EMPTY)
    hidden = sum(int(covered(main, *union).sum()) for stream, union in merged.items() if stream != MAIN)
    return {stream: union.length for stream, union in merged.items()}, hidden


def _together(records: Sequence[RunRecord]) -> list[Busy] | None:
    """Records of one program in one go; None unless forwards, and ops within a stream, ran one after the other."""
    start = np.stack([r.start_ns for r in records])
    end = np.stack([r.end_ns for r in records])
    if not start.size or not (start.min(axis=1)[1:] >= end.max(axis=1)[:-1]).all():
        return None
    parts = {s: (start[:, rows], end[:, rows]) for s, rows in _places(records[0].program).items()}
    if not all(_in_turn(s.ravel(), e.ravel()) for s, e in parts.values()):
        return None
    busy = {stream: (e - s).sum(axis=1).tolist() for stream, (s, e) in parts.items()}
    main = merge(*(column.ravel() for column in parts[MAIN])) if MAIN in parts else EMPTY
    hidden = np.zeros(len(records), np.int64)
    for stream, (s, e) in parts.items():
        if stream != MAIN and s.size:
            hidden += covered(main, s.ravel(), e.ravel()).reshape(s.shape).sum(axis=1)
    return [({stream: sums[n] for stream, sums in busy.items()}, int(hidden[n])) for n in range(len(records))]


def _in_turn(start: np.ndarray, end: np.ndarray) -> bool:
    return bool((end >= start).all() and (start[1:] >= end[:-1]).all())


def _places(program: StreamProgram) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {stream: [] for stream in program.streams}
    for place, op in enumerate(program.ops):
        places[op.stream].append(place)
    return places
