"""Kernel, copy and API traces that rocprofv3 (and rocprof before it) writes as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from dsv4lab.errors import TraceError
from dsv4lab.timeline.timeline import Kind, Timeline
from dsv4lab.trace.load.report import LoadReport
from dsv4lab.trace.load.source import Source
from dsv4lab.trace.load.table import RowTable

_NAMES: dict[str, tuple[str, ...]] = {
    "start": ("start_timestamp", "beginns"),
    "end": ("end_timestamp", "endns"),
    "name": ("kernel_name", "kernelname", "name", "function", "direction", "kind"),
    "stream": ("stream_id", "stream"),
    "queue": ("queue_id", "queue-id"),
    "device": ("agent_id", "gpu-id", "device-id"),
    "correlation": ("correlation_id", "dispatch_id"),
}
_SIBLINGS = (("_memory_copy_trace.csv", Kind.MEMCPY), ("_hip_api_trace.csv", Kind.HOST))
_KERNELS = "_kernel_trace.csv"


def read_rocprof_csv(path: Path) -> tuple[Timeline, LoadReport]:
    """Load a ``*_kernel_trace.csv`` with the ``_memory_copy_trace`` and ``_hip_api_trace`` files beside it, if any.

    Rows that cannot be read are counted as lost. Raises ``TraceError`` if the file lacks the columns of a trace.
    """
    report = LoadReport(file=path.name, format="rocprofv3 csv", exporter="rocprofv3")
    table = RowTable(report)
    _read_one(path, _kind_of(path), table)
    if path.name.endswith(_KERNELS):
        for suffix, kind in _SIBLINGS:
            beside = path.with_name(path.name.removesuffix(_KERNELS) + suffix)
            if beside.is_file():
                _read_one(beside, kind, table)
                report.findings[f"read {suffix.strip('_')} beside it"] += 1
    return table.timeline(path, {"platform": "rocm"}), report


def _kind_of(path: Path) -> Kind:
    return next((kind for suffix, kind in _SIBLINGS if path.name.endswith(suffix)), Kind.KERNEL)


def _read_one(path: Path, kind: Kind, table: RowTable) -> None:
    source = Source(path)
    text = b"".join(source).decode("utf-8-sig", "replace")
    table.report.plain_bytes += source.plain_bytes
    table.report.truncated |= source.broken is not None
    rows = csv.reader(io.StringIO(text, newline=""))
    place = _columns(path, next(rows, []))
    keep = list(_whole(rows, place, table.report))

    def column(name: str) -> list[str | None] | None:
        at = place.get(name)
        return None if at is None else [fields[at] or None for fields in keep]

    device, correlation = column("device"), column("correlation")
    start, end = place["start"], place["end"]
    table.extend(
        kind,
        start=[int(fields[start]) for fields in keep],
        end=[int(fields[end]) for fields in keep],
        name=[fields[place["name"]] for fields in keep],
        stream=column("stream"),
        queue=column("queue"),
        device=None if device is None else [d and d.removeprefix("Agent ") for d in device],
        correlation=None if correlation is None else [int(c) if c and c.isdecimal() else None for c in correlation],
    )


def _columns(path: Path, header: list[str]) -> dict[str, int]:
    found = {title.strip().lower(): at for at, title in enumerate(header)}
    place = {key: found[name] for key, names in _NAMES.items() for name in reversed(names) if name in found}
    missing = [_NAMES[key][0] for key in ("start", "end", "name") if key not in place]
    if missing:
        raise TraceError(f"{path}: not a rocprofv3 trace: it has no column {', '.join(missing)}")
    return place


def _whole(rows: Iterator[list[str]], place: dict[str, int], report: LoadReport) -> Iterator[list[str]]:
    """The rows with all columns and whole numbers for times; the others are counted."""
    need = max(place.values()) + 1
    try:
        for fields in rows:
            if not fields:
                continue
            good = len(fields) >= need and all(_is_time(fields[place[key]]) for key in ("start", "end"))
            report.events += 1
            if good:
                yield fields
            else:
                report.lost_events += 1
    except csv.Error:
        report.lost_events += 1


def _is_time(text: str) -> bool:
    return len(text) < 20 and text.isascii() and text.isdigit()
