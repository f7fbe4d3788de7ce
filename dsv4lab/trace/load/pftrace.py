"""Perfetto traces that rocprofv3 wrote, and our own."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import TraceError
from dsv4lab.timeline.timeline import COLUMNS, UNKNOWN, Kind, Timeline
from dsv4lab.trace.load.assemble import finish
from dsv4lab.trace.load.own import OWN_KEY, own_labels
from dsv4lab.trace.load.perfetto import PerfettoReader, Slice
from dsv4lab.trace.load.report import LoadReport
from dsv4lab.trace.load.source import read_whole
from dsv4lab.trace.load.table import RowTable

OWN_ROW, OWN_COPY = "dsv4lab.row", "dsv4lab.queue"
"""Categories of our exporter: a row, and the same row once more on the track of its queue."""
SMOOTHED = "rocprofv3 moves the ends of kernels that overlap on a queue when it writes .pftrace: json or csv keep them"
_KINDS = {
    "kernel_dispatch": Kind.KERNEL,
    "memory_copy": Kind.MEMCPY,
    "hip_api": Kind.HOST,
    "hsa_api": Kind.HOST,
    "rccl_api": Kind.HOST,
    "marker_api": Kind.ANNOTATION,
}
_STREAM = re.compile(r"STREAM \[(\d+)\]")
_GPU = re.compile(r"\[(\d+)\] (?:STREAM|QUEUE|THREAD) \[\d+\] (?!\(?CPU)")
_DTYPES = {name: getattr(Timeline.empty(), name).dtype for name in COLUMNS}
_LIMIT = 2**62


def read_pftrace(path: Path, progress: Callable[[int], None] | None = None) -> tuple[Timeline, LoadReport]:
    """Load a Perfetto trace. Raises ``TraceError`` if it holds no slice that rocprofv3 or this package writes."""
    report = LoadReport(file=path.name, format="pftrace", exporter="perfetto")
    data = read_whole(path, report, progress)
    slices: list[Slice] = []
    header: dict[str, Any] | None = None
    for found in PerfettoReader(data, report):
        if found.category == OWN_KEY:
            header = _header(found)
        elif max(abs(found.start), abs(found.end)) >= _LIMIT:
            report.lost_events += 1
            report.findings["times beyond 62 bits"] += 1
        elif found.category != OWN_COPY:
            slices.append(found)
    own = None if header is None else own_labels(header)
    if header is not None and own is not None:
        return _own(slices, header, own, report), report
    if not any(s.category in _KINDS for s in slices):
        raise TraceError(
            f"{path}: a Perfetto trace without slices of rocprofv3 (kernel_dispatch, memory_copy, ...): "
            "rocprofv3's json, csv and rocpd load too"
        )
    return _rocprof(path, slices, report), report


def _header(found: Slice) -> dict[str, Any] | None:
    try:
        header = msgspec.json.decode(str(found.notes.get("header", "")))
    except msgspec.DecodeError:
        return None
    return header if isinstance(header, dict) else None


def _own(slices: list[Slice], header: dict[str, Any], own: dict[str, Any], report: LoadReport) -> Timeline:
    """The rows in the order in which they were exported."""
    report.exporter = "dsv4lab"
    rows = [s for s in slices if s.category == OWN_ROW]
    rows.sort(key=lambda s: _number(s, "row"))
    report.events = len(rows)
    columns: dict[str, NDArray[Any]] = {}
    for name, dtype in _DTYPES.items():
        limit = np.iinfo(dtype).max
        values = (_number(s, name) for s in rows)
        columns[name] = np.array([v if v <= limit else UNKNOWN for v in values], dtype)
    columns["start_ns"] = np.array([s.start for s in rows], np.int64)
    columns["dur_ns"] = np.array([max(s.end - s.start, 0) for s in rows], np.int64)
    columns["kind"] = np.clip(columns["kind"], 0, max(Kind)).astype(np.int8)
    columns["rank"] = np.maximum(columns["rank"], 0)
    for name, labels in (("stream", "streams"), ("queue", "queues"), ("name", "names"), ("op", "names")):
        columns[name] = np.where(columns[name] < len(own[labels]), columns[name], UNKNOWN).astype(np.int32)
    report.rows = int((columns["kind"] <= int(Kind.MEMSET)).sum())
    found = header.get("meta")
    meta = {"format": "pftrace", **(found if isinstance(found, dict) else {})}
    return finish(columns, report, **own, meta=meta, warnings=())


def _number(found: Slice, key: str) -> int:
    value = found.notes.get(key, UNKNOWN)
    return value if isinstance(value, int) and value >= UNKNOWN else UNKNOWN


def _rocprof(path: Path, slices: list[Slice], report: LoadReport) -> Timeline:
    report.exporter = "rocprofv3"
    table = RowTable(report)
    for kind in (Kind.KERNEL, Kind.MEMCPY, Kind.HOST, Kind.ANNOTATION):
        rows = [s for s in slices if _KINDS.get(s.category) == kind]
        placed = kind <= Kind.MEMCPY
        table.extend(
            kind,
            start=[s.start for s in rows],
            end=[s.end for s in rows],
            name=[s.name for s in rows],
            stream=[_in_track(_STREAM, s) for s in rows] if placed else None,
            queue=[s.notes.get("queue") for s in rows] if kind == Kind.KERNEL else None,
            device=[_in_track(_GPU, s) for s in rows] if placed else None,
            correlation=[_number(s, "corr_id") for s in rows],
        )
    return table.timeline(path, {"platform": "rocm"}, (f"{report.file}: {SMOOTHED}",))


def _in_track(pattern: re.Pattern[str], found: Slice) -> int | None:
    match = pattern.search(found.track)
    return int(match[1]) if match else None
