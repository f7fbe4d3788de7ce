"""Writing a timeline as Kineto/Chrome JSON: what Perfetto, TensorBoard's PyTorch plugin and our own loader open.

Rows carry ``stream``, ``hsa_queue``, ``device`` and ``correlation`` as torch's exporters do, and lie on one track a
stream. The same rows are mirrored on one track a hardware queue under category ``hw_queue``, which no tool counts as
GPU time, and each queue's depth is a counter track. Label lists under the top-level key ``dsv4lab`` make reading back
exact.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import TraceError
from dsv4lab.timeline.occupancy import occupancy_bins
from dsv4lab.timeline.timeline import UNKNOWN, Ids, Kind, Timeline

SUFFIX = ".pt.trace.json"
HOST_PID, QUEUE_PID, DEPTH_PID = 1_000_000, 2_000_000, 3_000_000
_CATEGORY = {
    Kind.KERNEL: "kernel",
    Kind.MEMCPY: "gpu_memcpy",
    Kind.MEMSET: "gpu_memset",
    Kind.WAIT: "cuda_sync",
    Kind.HOST: "cuda_runtime",
    Kind.ANNOTATION: "user_annotation",
}
_ROWS_AT_ONCE = 20_000
_DEPTH_CELLS = 2_000
_ANNOTATION_IDS = 1 << 40
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


def safe_file_part(text: str) -> str:
    """``text`` with everything but letters, digits, ``_``, ``-`` and inner dots replaced; never empty or hidden."""
    return _UNSAFE.sub("_", text).strip(".")[:100] or "unnamed"


def micros_text(ns: int) -> str:
    """Nanoseconds as exporters print them: microseconds with three decimals."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


def export_run(timeline: Timeline, directory: Path, worker: str = "dsv4lab", time_ns: int | None = None) -> Path:
    """Write ``<directory>/<worker>.<time_ns>.pt.trace.json.gz`` and return its path.

    ``time_ns`` is the wall clock's nanoseconds, now if left out. Raises ``TraceError`` if the file cannot be written.
    """
    stamp = time.time_ns() if time_ns is None else time_ns
    return export_kineto(timeline, directory / f"{safe_file_part(worker)}.{stamp}{SUFFIX}.gz")


def export_kineto(timeline: Timeline, path: Path) -> Path:
    """Write ``timeline`` to ``path`` (compressed if it ends in ``.gz``) and return the path.

    The text goes to a ``.json`` file first and only a complete file gets its final name: a ``.json`` left beside no
    ``.gz`` tells of an export that died. Raises ``TraceError`` if it cannot be written.
    """
    packed = path.name.endswith(".gz")
    plain = path.with_name(path.name.removesuffix(".gz") if packed else f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with plain.open("wb") as file:
            write_kineto(timeline, file, path.name)
        if packed:
            half = path.with_name(f"{path.name}.tmp")
            with plain.open("rb") as source, half.open("wb") as raw, gzip.GzipFile("", "wb", 5, raw, 0) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            os.replace(half, path)
            plain.unlink()
        else:
            os.replace(plain, path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def write_kineto(timeline: Timeline, file: BinaryIO, name: str) -> None:
    """Write ``timeline`` as plain JSON text."""
    file.write(msgspec.json.encode(_header(timeline))[:-1] + b',\n"traceEvents": [\n')
    first = True
    for block in (_metadata(timeline), _steps(timeline), _rows(timeline), _depth(timeline)):
        for text in block:
            file.write(text.encode() if first else b",\n" + text.encode())
            first = False
    file.write(b'\n],\n"traceName": ' + msgspec.json.encode(name) + b"}\n")


def _header(timeline: Timeline) -> dict[str, Any]:
    meta = timeline.meta
    gpus = meta.get("gpus") or [meta.get("device_name") or "dsv4lab CPU device"]
    ranks = np.unique(timeline.rank)
    world = meta.get("world_size") or max(len(ranks), 1)
    base = meta.get("base_time_ns")
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": at, "name": str(gpu), "totalGlobalMem": 0} for at, gpu in enumerate(gpus)],
        "distributedInfo": {"backend": "", "rank": int(ranks[0]) if len(ranks) else 0, "world_size": world},
        "displayTimeUnit": "ms",
        **({"baseTimeNanoseconds": base} if isinstance(base, int) else {}),
        "dsv4lab": {
            "version": 1,
            "platform": str(meta.get("platform", "cpu")),
            "streams": timeline.streams,
            "queues": timeline.queues,
            "names": timeline.names,
            "main_stream": timeline.main_stream,
            "devices": [str(d) for d in meta.get("devices", ())],
            "step_modes": {str(step): str(mode) for step, mode in _modes(meta).items()},
            **{key: meta[key] for key in ("manifest", "capture") if isinstance(meta.get(key), dict)},
        },
    }


def _modes(meta: Mapping[str, Any]) -> dict[Any, Any]:
    modes = meta.get("step_modes")
    return modes if isinstance(modes, dict) else {}


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _metadata(timeline: Timeline) -> Iterator[str]:
    def row(kind: str, pid: int, tid: int, key: str, value: str) -> str:
        return f'{{"ph": "M", "name": "{kind}", "pid": {pid}, "tid": {tid}, "args": {{"{key}": {value}}}}}'

    devices = device_numbers(timeline)
    shown = "stream" if timeline.streams else "queue"
    for rank in np.unique(timeline.rank).tolist():
        inside = timeline.rank == rank
        device = int(devices[inside][0])
        for pid, what, column, labels in (
            (device, f"device, rank {rank}: {shown}s", shown, getattr(timeline, f"{shown}s")),
            (QUEUE_PID + rank, f"device, rank {rank}: hardware queues", "queue", timeline.queues),
        ):
            used = np.unique(getattr(timeline, column)[inside & timeline.busy_mask])
            if pid != device and not (used != UNKNOWN).any():
                continue
            yield row("process_name", pid, 0, "name", _quoted(what))
            yield row("process_labels", pid, 0, "labels", _quoted(f"GPU {device}" if pid == device else "queues"))
            for lane in used.tolist():
                label = labels[lane] if lane != UNKNOWN else "unknown"
                yield row("thread_name", pid, lane, "name", _quoted(f"{column} {label}"))
        if bool((inside & np.isin(timeline.kind, [int(Kind.HOST), int(Kind.ANNOTATION)])).any()):
            yield row("process_name", HOST_PID + rank, 0, "name", _quoted(f"host, rank {rank}"))


def _steps(timeline: Timeline) -> Iterator[str]:
    """Derived ``ProfilerStep#n`` ranges, for step views of other tools, where the timeline has none; not read back.

    A row without a step belongs to the one range over everything that stands in when no step is known at all.
    """
    if any(name.startswith("ProfilerStep#") for name in timeline.names) or not bool(timeline.busy_mask.any()):
        return
    busy = timeline.busy_mask & (timeline.step != UNKNOWN)
    step = timeline.step
    if not bool(busy.any()):
        busy, step = timeline.busy_mask, np.zeros(len(timeline), np.int32)
    start, end, step = timeline.start_ns[busy], timeline.end_ns[busy], step[busy]
    for number in np.unique(step).tolist():
        inside = step == number
        first, last = int(start[inside].min()), int(end[inside].max())
        yield (
            f'{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{number}", "pid": {HOST_PID}, "tid": 0, '
            f'"ts": {micros_text(first)}, "dur": {micros_text(last - first)}, '
            f'"args": {{"External id": {_ANNOTATION_IDS - 1 - number}, "derived": 1}}}}'
        )


def device_numbers(timeline: Timeline) -> NDArray[np.int64]:
    """``int64 [n]``: the process id of each row's device: its number, or its rank where there are several ranks."""
    if len(np.unique(timeline.rank)) > 1:
        return timeline.rank.astype(np.int64)
    labels = [str(d) for d in timeline.meta.get("devices", ())]
    numbers = [int(d) if d.isdecimal() and len(d) < 6 else at for at, d in enumerate(labels)]
    known = np.minimum(timeline.device, len(numbers) - 1)
    table = np.array([*numbers, int(timeline.rank[0]) if len(timeline) else 0], np.int64)
    return np.asarray(table[known], np.int64)


def _lane(timeline: Timeline) -> Ids:
    """What is written as ``stream``: queues stand in where the source names no streams, for tools that need one.

    The label lists of the header tell them apart when the file is read back.
    """
    return timeline.stream if timeline.streams else timeline.queue


def _rows(timeline: Timeline) -> Iterator[str]:
    names = [_quoted(name) for name in timeline.names]
    devices = device_numbers(timeline)
    for first in range(0, len(timeline), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        columns = [
            (_lane(timeline) if c == "stream" else getattr(timeline, c))[part].tolist()
            for c in ("start_ns", "dur_ns", "kind", "name", "stream", "queue", "rank")
        ]
        extras = _extras(timeline, devices, part)
        pids = devices[part].tolist()
        for at, (start, dur, kind, name, stream, queue, rank) in enumerate(zip(*columns, strict=True)):
            times = f'"ts": {micros_text(start)}, "dur": {micros_text(dur)}'
            label = names[name] if name != UNKNOWN else '""'
            on_device = kind <= Kind.WAIT or stream != UNKNOWN
            pid, tid = (pids[at], stream) if on_device else (HOST_PID + rank, 0)
            category = "gpu_user_annotation" if kind == Kind.ANNOTATION and on_device else _CATEGORY[Kind(kind)]
            yield (
                f'{{"ph": "X", "cat": "{category}", "name": {label}, "pid": {pid}, "tid": {tid}, {times}, '
                f'"args": {{{extras[at]}}}}}'
            )
            if queue != UNKNOWN and kind <= Kind.MEMSET:
                yield (
                    f'{{"ph": "X", "cat": "hw_queue", "name": {label}, "pid": {QUEUE_PID + rank}, "tid": {queue}, '
                    f'{times}, "args": {{}}}}'
                )


def _extras(timeline: Timeline, devices: NDArray[np.int64], part: slice) -> list[str]:
    """The ``args`` text of every row in ``part``: each known id under the name that torch's exporters give it.

    ``External id`` only has to set annotations apart from launches: other tools match rows by it.
    """
    correlation = timeline.correlation[part]
    external = np.where(correlation == UNKNOWN, 0, correlation)
    annotation = timeline.kind[part] == int(Kind.ANNOTATION)
    external[annotation] = _ANNOTATION_IDS + part.start + np.flatnonzero(annotation)
    columns = [
        ('"External id": ', external.tolist(), True),
        ('"device": ', devices[part].tolist(), True),
        ('"at": ', timeline.device[part].tolist(), False),
        ('"stream": ', _lane(timeline)[part].tolist(), False),
        ('"hsa_queue": ', timeline.queue[part].tolist(), False),
        ('"correlation": ', correlation.tolist(), False),
        ('"queued_ns": ', timeline.queued_ns[part].tolist(), False),
        ('"step": ', timeline.step[part].tolist(), False),
        ('"layer": ', timeline.layer[part].tolist(), False),
        ('"op": ', timeline.op[part].tolist(), False),
        ('"rank": ', timeline.rank[part].tolist(), True),
    ]
    return [
        ", ".join(f"{key}{values[at]}" for key, values, always in columns if always or values[at] != UNKNOWN)
        for at in range(len(correlation))
    ]


def _depth(timeline: Timeline) -> Iterator[str]:
    if not bool((timeline.queue != UNKNOWN).any()):
        return
    depth = occupancy_bins(timeline, _DEPTH_CELLS)
    for lane, label in enumerate(depth.queues):
        name = _quoted(f"queue {label} packets")
        for at, (waiting, running) in enumerate(
            zip(depth.waiting[lane].tolist(), depth.running[lane].tolist(), strict=True)
        ):
            when = micros_text(int(depth.edges_ns[at]))
            yield (
                f'{{"ph": "C", "cat": "hw_queue", "name": {name}, "pid": {DEPTH_PID}, "ts": {when}, '
                f'"args": {{"waiting": {waiting}, "running": {running}}}}}'
            )
