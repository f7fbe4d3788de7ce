"""Kineto and Chrome JSON, from CUDA and ROCm, old and new, into a :class:`Timeline`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import TraceError
from dsv4lab.timeline.timeline import UNKNOWN, Kind, Timeline
from dsv4lab.trace.load import share
from dsv4lab.trace.load.assemble import (
    OLD_QUEUES,
    SIMULATED,
    by_device,
    device_properties,
    finish,
    join_launches,
    platform_of,
    rank_of,
)
from dsv4lab.trace.load.kineto_rows import KinetoRows
from dsv4lab.trace.load.labels import by_appearance
from dsv4lab.trace.load.own import OWN_KEY, OWN_META, own_labels, remap
from dsv4lab.trace.load.pieces import EventReader
from dsv4lab.trace.load.report import LoadReport
from dsv4lab.trace.load.source import Source, read_ahead


def read_kineto(path: Path, progress: Callable[[int], None] | None = None) -> tuple[Timeline, LoadReport]:
    """Load a Kineto or Chrome trace; a large one with the help of a second process.

    ``progress`` is called with the number of file bytes read so far. Raises ``TraceError`` if there is no event to be
    had.
    """
    if share.is_worth_it(path):
        found = _read_shared(path, progress)
        if found is not None:
            return found
    report = LoadReport(file=path.name, format="kineto")
    rows = KinetoRows(report)
    source, reader = _read(path, rows, report, progress)
    return _finished(path, rows, report, source, reader)


def _read_shared(path: Path, progress: Callable[[int], None] | None) -> tuple[Timeline, LoadReport] | None:
    """Two processes; ``None`` if they do not get on with this file."""
    report = LoadReport(file=path.name, format="kineto")
    rows = KinetoRows(report)
    helper = share.Helper(path)
    try:
        source, reader = _read(path, rows, report, progress, share.PROCESSES)
        other = None if reader.ended_early else helper.result()
    finally:
        helper.close()
    if other is None:
        return None
    share.merge(rows, report, other)
    return _finished(path, rows, report, source, reader)


def _read(
    path: Path, rows: KinetoRows, report: LoadReport, progress: Callable[[int], None] | None, of: int = 1
) -> tuple[Source, EventReader]:
    source = Source(path)
    reader = EventReader(read_ahead(iter(source)), report, path, of=of)
    for events, codes in reader:
        rows.own = OWN_KEY in reader.header
        rows.add(events, codes, reader.piece)
        if progress is not None:
            progress(source.read_bytes)
    return source, reader


def _finished(
    path: Path, rows: KinetoRows, report: LoadReport, source: Source, reader: EventReader
) -> tuple[Timeline, LoadReport]:
    report.plain_bytes = source.plain_bytes
    if source.broken is not None:
        report.truncated = True
        report.findings[source.broken] += 1
    if report.truncated and not report.events:
        raise TraceError(f"{path}: truncated before the first complete event: nothing to load")
    header = {**reader.tail, **reader.header}
    return _timeline(path, header, rows, report), report


def _timeline(path: Path, header: dict[str, Any], rows: KinetoRows, report: LoadReport) -> Timeline:
    columns = rows.columns()
    external, op_name, _ = rows.ops()
    names, (columns["name"], op_name) = by_appearance(rows.names.keys, columns["name"], op_name)
    keys = {}
    for column, found in (("stream", rows.streams), ("queue", rows.queues), ("device", rows.devices)):
        keys[column], (columns[column],) = by_appearance(found.keys, columns[column])
    host = np.unique(columns["name"][columns["kind"] == int(Kind.HOST)])
    platform = platform_of(header, [names[i] for i in host[:64] if i != UNKNOWN])
    rank, world = rank_of(header, path)
    own = own_labels(header) if rows.own else None
    warnings = []
    gpu = columns["kind"] <= int(Kind.MEMSET)
    if platform == "rocm" and not keys["queue"] and bool((columns["stream"][gpu] != UNKNOWN).any()):
        columns["queue"] = np.where(gpu, columns["stream"], UNKNOWN).astype(np.int32)
        keys["queue"] = keys["stream"]
        warnings.append(f"{report.file}: {OLD_QUEUES}")
    report.exporter = _exporter(header, platform, bool(keys["stream"]), bool(keys["queue"]), bool(warnings))
    if platform == "simulated":
        warnings.append(f"{report.file}: {SIMULATED}")
    written_op, written_device = columns["op"], columns.pop("at")
    join_launches(columns, external, op_name, report)
    report.rows = int(gpu.sum())
    meta = _meta(header, platform, rank, world, [str(d) for d in keys["device"]])
    if own is not None:
        labels = remap(columns, own, keys["stream"], keys["queue"], names)
        columns["op"] = np.where(written_op < len(own["names"]), written_op, UNKNOWN).astype(np.int32)
        columns["device"] = written_device
    else:
        columns["rank"] = np.full(len(gpu), rank, np.int32)
        labels = _labels(columns, keys, names)
    return finish(columns, report, **labels, meta=meta, warnings=warnings)


def _labels(columns: dict[str, NDArray[Any]], keys: dict[str, list[Any]], names: list[str]) -> dict[str, Any]:
    texts = {column: [str(key) for key in found] for column, found in keys.items()}
    device = columns["device"]
    columns["stream"], streams = by_device(columns["stream"], device, texts["stream"], texts["device"])
    columns["queue"], queues = by_device(columns["queue"], device, texts["queue"], texts["device"])
    return {"names": names, "streams": streams, "queues": queues, "main_stream": None}


def _exporter(header: dict[str, Any], platform: str, streams: bool, queues: bool, old: bool) -> str:
    if isinstance(header.get("dsv4lab"), dict):
        return "dsv4lab"
    if platform == "rocm" and not queues:
        return "kineto rocm, neither streams nor queues"
    if platform == "rocm" and not streams:
        return "kineto rocm, hardware queues without streams"
    if platform == "rocm":
        return "kineto rocm, stream is the hardware queue" if old else "kineto rocm, with hardware queues"
    return f"kineto {platform}"


def _meta(header: dict[str, Any], platform: str, rank: int, world: int | None, devices: list[str]) -> dict[str, Any]:
    own = header.get("dsv4lab")
    base = header.get("baseTimeNanoseconds")
    return {
        "format": "kineto",
        "platform": platform,
        **({"simulated": True} if platform == "simulated" else {}),
        "rank": rank,
        "world_size": world,
        "devices": own["devices"] if isinstance(own, dict) and isinstance(own.get("devices"), list) else devices,
        "gpus": [str(d.get("name", "")) for d in device_properties(header)],
        "base_time_ns": base if isinstance(base, int) else None,
        **{key: own[key] for key in OWN_META if isinstance(own, dict) and isinstance(own.get(key), dict)},
    }
