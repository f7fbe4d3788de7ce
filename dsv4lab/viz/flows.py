"""Arrows of the trace explorer: who released a row that waited, and which call launched it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import UsageError
from dsv4lab.timeline.intervals import Ints
from dsv4lab.timeline.program import StreamProgram
from dsv4lab.timeline.timeline import UNKNOWN, Kind, Timeline

Pairs = NDArray[np.int64]  # [m, 2]: row numbers, producer and consumer
NONE: Pairs = np.zeros((0, 2), np.int64)


def given_pairs(timeline: Timeline, edges: Iterable[tuple[int, int]]) -> Pairs:
    """Pairs of row numbers as an array. Raises :class:`UsageError` for one outside the timeline."""
    pairs = np.array([*edges], np.int64).reshape(-1, 2)
    if len(pairs) and (pairs.min() < 0 or pairs.max() >= len(timeline)):
        raise UsageError(f"edges takes pairs of row numbers in 0..{len(timeline) - 1}")
    return pairs


def program_pairs(timeline: Timeline, program: StreamProgram) -> Pairs:
    """The waits of a program in every step of its recording, whose rows carry the op's place as correlation.

    In one of torch's profiler rows carry their op: a wait is from the last row of one to the first of the other, in the
    same step. Ops that a layer has twice are left out.
    """
    if "capture" in timeline.meta:
        return _captured_pairs(timeline, program)
    rows = np.flatnonzero((timeline.kind == int(Kind.KERNEL)) & (timeline.correlation != UNKNOWN))
    ops = len(program.ops)
    rows = rows[(timeline.correlation[rows] < ops)]
    key = timeline.step[rows].astype(np.int64) * ops + timeline.correlation[rows]
    order = np.argsort(key, kind="stable")
    rows, key = rows[order], key[order]
    edges = np.array(program.edges, np.int64).reshape(-1, 2)
    steps = np.unique(timeline.step[rows]).astype(np.int64)
    wanted = (steps[:, None, None] * ops + edges[None]).reshape(-1, 2)
    at = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
    if not len(key):
        return NONE
    known = (key[at] == wanted).all(axis=1)
    pairs: Pairs = rows[at[known]]
    return pairs


def _captured_pairs(timeline: Timeline, program: StreamProgram) -> Pairs:
    rows = np.flatnonzero((timeline.kind == int(Kind.KERNEL)) & (timeline.op != UNKNOWN) & (timeline.step != UNKNOWN))
    rows = rows[np.argsort(timeline.start_ns[rows], kind="stable")]
    first: dict[tuple[int, int, str], int] = {}
    last: dict[tuple[int, int, str], int] = {}
    for row, step, layer, op in zip(
        rows.tolist(), *(getattr(timeline, c)[rows].tolist() for c in ("step", "layer", "op")), strict=True
    ):
        key = (step, layer, timeline.names[op])
        first.setdefault(key, row)
        last[key] = row
    count = Counter((op.layer, op.name) for op in program.ops)
    once = [(op.layer, op.name) if count[op.layer, op.name] == 1 else None for op in program.ops]
    pairs = [
        (last[step, *producer], first[step, *consumer])
        for step in dict.fromkeys(timeline.step[rows].tolist())
        for p, c in program.edges
        if (producer := once[p]) is not None and (consumer := once[c]) is not None
        if (step, *producer) in last and (step, *consumer) in first
    ]
    return np.array(pairs, np.int64).reshape(-1, 2)


def wait_pairs(timeline: Timeline) -> Pairs:
    """For every ``WAIT`` row, the row of another stream that ended last by its end, and the row that it held up.

    Traces record that a stream waited and for how long, not for whom: the producer is inferred from the times.
    """
    waits = np.flatnonzero(timeline.kind == int(Kind.WAIT))
    busy = np.flatnonzero(timeline.busy_mask)
    if not len(waits) or not len(busy):
        return NONE
    released = timeline.end_ns[waits]
    by_end = busy[np.argsort(timeline.end_ns[busy], kind="stable")]
    last = np.searchsorted(timeline.end_ns[by_end], released, side="right") - 1
    consumer = _next_on_stream(timeline, busy, timeline.stream[waits], released)
    out = []
    for wait, at, held in zip(waits.tolist(), last.tolist(), consumer.tolist(), strict=True):
        stream = timeline.stream[wait]
        while at >= 0 and timeline.stream[by_end[at]] == stream:
            at -= 1
        if at >= 0 and held >= 0:
            out.append((int(by_end[at]), held))
    return np.array(out, np.int64).reshape(-1, 2)


def _next_on_stream(timeline: Timeline, busy: Ints, streams: NDArray[np.int32], moments: Ints) -> Ints:
    """The first busy row of each stream that starts at or after each moment, -1 where there is none."""
    out = np.full(len(streams), -1, np.int64)
    for stream in np.unique(streams).tolist():
        own = busy[timeline.stream[busy] == stream]
        own = own[np.argsort(timeline.start_ns[own], kind="stable")]
        mine = np.flatnonzero(streams == stream)
        at = np.searchsorted(timeline.start_ns[own], moments[mine], side="left")
        inside = at < len(own)
        out[mine[inside]] = own[at[inside]]
    return out


def launches(timeline: Timeline, row: int, most: int = 200) -> list[int]:
    """What belongs to the same launch: the host call of a device row, or the device rows of a host call."""
    correlation = int(timeline.correlation[row])
    if correlation == UNKNOWN:
        return []
    host = int(Kind.HOST)
    same = (timeline.correlation == correlation) & (timeline.rank == timeline.rank[row])
    wanted = timeline.busy_mask if timeline.kind[row] == host else timeline.kind == host
    rows: list[int] = np.flatnonzero(same & wanted)[:most].tolist()
    return rows
