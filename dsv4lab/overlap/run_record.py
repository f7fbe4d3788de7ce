"""What one run of a stream program took, op by op, and its timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.program import MAIN, StreamProgram
from dsv4lab.timeline.timeline import Kind, Timeline

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RunRecord:
    """Times of one run, ``int64 [ops]`` in nanoseconds of ``time.perf_counter_ns``, in issue order.

    A packet enters its queue at ``queued_ns``, reaches the head at ``head_ns``, waits there for its events, and runs in
    ``[start_ns, end_ns)``. ``queue_of`` maps stream to hardware queue.
    """

    program: StreamProgram
    queue_of: Mapping[str, int]
    queued_ns: Times
    head_ns: Times
    start_ns: Times
    end_ns: Times


def timeline_of(
    records: Sequence[RunRecord],
    steps: Sequence[int] | None = None,
    *,
    meta: Mapping[str, Any] | None = None,
    barriers: bool = True,
) -> Timeline:
    """Records of consecutive runs as one timeline: a ``KERNEL`` row per op, a ``WAIT`` row per barrier that blocked.

    ``steps`` numbers the runs (default 0, 1, ...). Streams are named as in the programs, queues ``q0``, ``q1``, ...
    """
    numbers = list(range(len(records))) if steps is None else list(steps)
    names: dict[str, int] = {}
    streams: dict[str, int] = {MAIN: 0}
    queue_count = 1 + max((q for r in records for q in r.queue_of.values()), default=-1)
    parts: list[dict[str, Any]] = []
    known: dict[tuple[int, tuple[tuple[str, int], ...]], _Static] = {}
    for record, number in zip(records, numbers, strict=True):
        key = (id(record.program), tuple(record.queue_of.items()))
        if key not in known:
            known[key] = _static(record, names, streams, barriers)
        parts.append(_columns(record, number, known[key]))
    columns: dict[str, Any] = {
        k: np.concatenate([p[k] for p in parts]) if parts else np.empty(0, np.int64) for k in _COLUMN_NAMES
    }
    return Timeline.build(
        **columns,
        names=tuple(names),
        streams=tuple(streams),
        queues=tuple(f"q{i}" for i in range(queue_count)),
        main_stream=MAIN,
        meta=meta,
    )


_COLUMN_NAMES = ("start_ns", "dur_ns", "stream", "queue", "name", "kind", "queued_ns", "correlation", "step", "layer")


@dataclass(frozen=True, slots=True)
class _Static:
    """What a program's rows have in common in every run of it."""

    name: NDArray[np.int32]
    stream: NDArray[np.int32]
    queue: NDArray[np.int32]
    layer: NDArray[np.int32]
    blocked: NDArray[np.bool_]
    wait_name: int


def _static(record: RunRecord, names: dict[str, int], streams: dict[str, int], barriers: bool) -> _Static:
    ops = record.program.ops
    n = len(ops)
    name = np.fromiter((names.setdefault(o.name, len(names)) for o in ops), np.int32, n)
    stream = np.fromiter((streams.setdefault(o.stream, len(streams)) for o in ops), np.int32, n)
    queue = np.fromiter((record.queue_of[o.stream] for o in ops), np.int32, n)
    layer = np.fromiter((o.layer for o in ops), np.int32, n)
    blocked = np.fromiter((bool(o.waits) for o in ops), np.bool_, n) & barriers
    wait_name = names.setdefault("barrier", len(names)) if blocked.any() else 0
    return _Static(name, stream, queue, layer, blocked, wait_name)


def _columns(record: RunRecord, step: int, of: _Static) -> dict[str, Any]:
    n, blocked = len(record.program.ops), of.blocked
    waits = int(blocked.sum())
    index = np.arange(n, dtype=np.int64)

    def both(kernel: Any, wait: Any) -> Any:
        return np.concatenate([kernel, wait])

    return {
        "start_ns": both(record.start_ns, record.head_ns[blocked]),
        "dur_ns": both(record.end_ns - record.start_ns, (record.start_ns - record.head_ns)[blocked]),
        "stream": both(of.stream, of.stream[blocked]),
        "queue": both(of.queue, of.queue[blocked]),
        "name": both(of.name, np.full(waits, of.wait_name, np.int32)),
        "kind": both(np.full(n, Kind.KERNEL, np.int8), np.full(waits, Kind.WAIT, np.int8)),
        "queued_ns": both(record.queued_ns, record.queued_ns[blocked]),
        "correlation": both(index, index[blocked]),
        "step": np.full(n + waits, step, np.int32),
        "layer": both(of.layer, of.layer[blocked]),
    }
