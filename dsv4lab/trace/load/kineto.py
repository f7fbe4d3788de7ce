"""Kineto and Chrome JSON, from CUDA and ROCm, old and new, into a :class:`Timeline`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import TraceError
from dsv4lab.timeline.timeline import UNKNOWN, Kind, Timeline
from dsv4lab.trace.load.assemble import (
    OLD_QUEUES,
    by_device,
    device_properties,
    finish,
    join_launches,
    platform_of,
    rank_of,
)
from dsv4lab.trace.load.events import Args, Event, IdValue
from dsv4lab.trace.load.numbers import Ints, micros, micros_column
from dsv4lab.trace.load.own import own_labels, remap
from dsv4lab.trace.load.pieces import EventReader
from dsv4lab.trace.load.report import LoadReport
from dsv4lab.trace.load.source import Source, read_ahead

KINDS: dict[str | None, Kind] = {
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "Memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "Memset": Kind.MEMSET,
    "cuda_sync": Kind.WAIT,
    "cuda_runtime": Kind.HOST,
    "cuda_driver": Kind.HOST,
    "Runtime": Kind.HOST,
    "user_annotation": Kind.ANNOTATION,
    "gpu_user_annotation": Kind.ANNOTATION,
}
CPU_OPS = ("cpu_op", "Operator", "operator")
_NO_ARGS = Args()


class Labels:
    """Distinct keys in order of appearance, as small ids."""

    def __init__(self) -> None:
        self.ids: dict[Any, int] = {}

    def column(self, keys: Iterable[Any]) -> list[int]:
        """The id of every key; ``None`` is ``UNKNOWN``."""
        ids = self.ids
        return [UNKNOWN if k is None else ids[k] if k in ids else ids.setdefault(k, len(ids)) for k in keys]


class KinetoRows:
    """Collects rows piece by piece, as numpy columns."""

    def __init__(self, report: LoadReport) -> None:
        self.report = report
        self.names = Labels()
        self.streams = Labels()
        self.queues = Labels()
        self.devices = Labels()
        self.op_external: list[int] = []
        self.op_name: list[int] = []
        self.parts: dict[str, list[NDArray[Any]]] = {}

    def add(self, events: list[Event]) -> None:
        """Take the rows of interest out of ``events``."""
        self.report.events += len(events)
        rows = [e for e in events if e.cat in KINDS and e.ph == "X" and not (e.args and e.args.derived)]
        self._add_ops([e for e in events if e.cat in CPU_OPS and e.ph == "X"])
        if not rows:
            return
        start, ok = self._times([e.ts for e in rows])
        if not ok.all():
            self.report.lost_events += int((~ok).sum())
            self.report.findings["no start time"] += int((~ok).sum())
            rows = [e for e, good in zip(rows, ok, strict=True) if good]
            start = start[ok]
        args = [e.args or _NO_ARGS for e in rows]
        self._put("start_ns", start)
        self._put("dur_ns", self._durations(rows))
        self._put("kind", np.array([KINDS[e.cat] for e in rows], np.int8))
        self._put("name", np.array(self.names.column([bytes(e.name) or b'""' for e in rows]), np.int32))
        self._put("stream", np.array(self.streams.column(self._keys([a.stream for a in args])), np.int32))
        queues = [a.queue if a.hsa_queue is None else a.hsa_queue for a in args]
        self._put("queue", np.array(self.queues.column(self._keys(queues)), np.int32))
        self._put("device", np.array(self.devices.column(self._keys([a.device for a in args])), np.int32))
        self._put("correlation", self._numbers([a.correlation for a in args]))
        self._put("external", self._numbers([a.external for a in args]))
        self._put("queued_ns", self._numbers([a.queued_ns for a in args]))
        for name in ("step", "layer", "op", "rank", "at"):
            self._put(name, self._small([getattr(a, name) for a in args]))

    def _put(self, column: str, values: NDArray[Any]) -> None:
        self.parts.setdefault(column, []).append(values)

    def _add_ops(self, ops: list[Event]) -> None:
        self.report.findings["cpu rows with a stream"] += sum(1 for e in ops if e.args and e.args.stream is not None)
        owned = [e for e in ops if e.args is not None and isinstance(e.args.external, int)]
        self.op_external += [e.args.external for e in owned]  # type: ignore[union-attr, misc]
        self.op_name += self.names.column([bytes(e.name) or b'""' for e in owned])

    def _times(self, raws: list[msgspec.Raw]) -> tuple[Ints, NDArray[np.bool_]]:
        texts = [bytes(r) for r in raws]
        quick = micros_column(texts)
        if quick is not None:
            return quick, np.ones(len(texts), np.bool_)
        values = [micros(t) for t in texts]
        self.report.repairs["number as text"] += sum(1 for t in texts if t[:1] == b'"')
        ok = np.array([v is not None for v in values], np.bool_)
        return np.array([0 if v is None else v for v in values], np.int64), ok

    def _durations(self, rows: list[Event]) -> Ints:
        values, ok = self._times([e.dur for e in rows])
        gpu = np.array([KINDS[e.cat] <= Kind.MEMSET for e in rows], np.bool_)
        self.report.findings["no duration"] += int((~ok).sum())
        negative = ok & (values < 0)
        self.report.findings["negative duration, taken as 0"] += int(negative.sum())
        self.report.findings["zero duration"] += int((gpu & ok & (values == 0)).sum())
        values[~ok | negative] = 0
        return values

    def _keys(self, values: list[IdValue]) -> list[IdValue]:
        if not any(isinstance(v, str | float | bool) for v in values):
            return values
        return [self._key(v) for v in values]

    def _key(self, value: IdValue) -> IdValue:
        if isinstance(value, str):
            self.report.repairs["number as text"] += 1
            digits = value.strip()
            return int(digits) if digits.lstrip("-").isdecimal() and len(digits) < 20 else value
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return value

    def _numbers(self, values: list[IdValue]) -> Ints:
        good = [v if isinstance(v, int) and -(2**63) <= v < 2**63 else self._number(v) for v in values]
        return np.array(good, np.int64)

    def _small(self, values: list[IdValue]) -> NDArray[np.int32]:
        """Numbers of our own exporter, within 31 bits."""
        good = [v if isinstance(v, int) and 0 <= v < 2**31 else UNKNOWN for v in values]
        return np.array(good, np.int32)

    def _number(self, value: IdValue) -> int:
        if value is None:
            return UNKNOWN
        key = self._key(value)
        return key if isinstance(key, int) and -(2**63) <= key < 2**63 else UNKNOWN

    def columns(self) -> dict[str, NDArray[Any]]:
        """All columns, pieces joined."""
        out = {name: np.concatenate(parts) for name, parts in self.parts.items()}
        self.parts.clear()
        return out or {name: np.empty(0, dtype) for name, dtype in _COLUMNS.items()}


_COLUMNS: dict[str, type] = {
    "start_ns": np.int64,
    "dur_ns": np.int64,
    "kind": np.int8,
    "name": np.int32,
    "stream": np.int32,
    "queue": np.int32,
    "device": np.int32,
    "correlation": np.int64,
    "external": np.int64,
    "queued_ns": np.int64,
    "step": np.int32,
    "layer": np.int32,
    "op": np.int32,
    "rank": np.int32,
    "at": np.int32,
}


def decode_name(raw: bytes, report: LoadReport) -> str:
    """The text of a JSON string literal, invalid bytes replaced."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        report.repairs["invalid utf-8"] += 1
        value = raw.strip(b'"').decode("utf-8", "replace")
    return value if isinstance(value, str) else str(value)


def read_kineto(path: Path, progress: Callable[[int], None] | None = None) -> tuple[Timeline, LoadReport]:
    """Load a Kineto or Chrome trace.

    ``progress`` is called with the number of file bytes read so far. Raises ``TraceError`` if there is no event to be
    had.
    """
    report = LoadReport(file=path.name, format="kineto")
    source = Source(path)
    reader = EventReader(read_ahead(iter(source)), report, path)
    rows = KinetoRows(report)
    for events in reader:
        rows.add(events)
        if progress is not None:
            progress(source.read_bytes)
    report.plain_bytes = source.plain_bytes
    if source.broken is not None:
        report.truncated = True
        report.findings[source.broken] += 1
    if report.truncated and not report.events:
        raise TraceError(f"{path}: truncated before the first complete event: nothing to load")
    header = {**reader.tail, **reader.header}
    return _timeline(header, rows, report), report


def _timeline(header: dict[str, Any], rows: KinetoRows, report: LoadReport) -> Timeline:
    columns = rows.columns()
    names = [decode_name(raw, report) for raw in rows.names.ids]
    host = np.unique(columns["name"][columns["kind"] == int(Kind.HOST)])
    platform = platform_of(header, [names[i] for i in host[:64] if i != UNKNOWN])
    rank, world = rank_of(header, report.file)
    own = own_labels(header)
    warnings = []
    queues: list[IdValue] = list(rows.queues.ids)
    gpu = columns["kind"] <= int(Kind.MEMSET)
    if platform == "rocm" and not queues and bool((columns["stream"][gpu] != UNKNOWN).any()):
        columns["queue"] = np.where(gpu, columns["stream"], UNKNOWN).astype(np.int32)
        queues = list(rows.streams.ids)
        warnings.append(f"{report.file}: {OLD_QUEUES}")
    report.exporter = _exporter(header, platform, queues, bool(warnings))
    written_op, written_device = columns["op"], columns.pop("at")
    join_launches(columns, np.array(rows.op_external, np.int64), np.array(rows.op_name, np.int32), report)
    report.rows = int(gpu.sum())
    meta = _meta(header, platform, rank, world, [str(d) for d in rows.devices.ids])
    if own is not None:
        labels = remap(columns, own, rows.streams.ids, rows.queues.ids, names)
        columns["op"] = np.where(written_op < len(own["names"]), written_op, UNKNOWN).astype(np.int32)
        columns["device"] = written_device
    else:
        columns["rank"] = np.full(len(gpu), rank, np.int32)
        labels = _labels(columns, rows, queues, names)
    report.findings, report.repairs = +report.findings, +report.repairs
    meta["load_report"] = report.to_json()
    return finish(columns, **labels, meta=meta, warnings=[*warnings, *report.warnings()])


def _labels(
    columns: dict[str, NDArray[Any]], rows: KinetoRows, queues: list[IdValue], names: list[str]
) -> dict[str, Any]:
    devices = [str(d) for d in rows.devices.ids]
    stream, streams = by_device(columns["stream"], columns["device"], [str(s) for s in rows.streams.ids], devices)
    queue, queue_names = by_device(columns["queue"], columns["device"], [str(q) for q in queues], devices)
    columns["stream"], columns["queue"] = stream, queue
    return {"names": names, "streams": streams, "queues": queue_names, "main_stream": None}


def _exporter(header: dict[str, Any], platform: str, queues: list[IdValue], old: bool) -> str:
    if isinstance(header.get("dsv4lab"), dict):
        return "dsv4lab"
    if platform == "rocm":
        return "kineto rocm, stream is the hardware queue" if old else "kineto rocm, with hardware queues"
    return f"kineto {platform}"


def _meta(header: dict[str, Any], platform: str, rank: int, world: int | None, devices: list[str]) -> dict[str, Any]:
    own = header.get("dsv4lab")
    base = header.get("baseTimeNanoseconds")
    return {
        "format": "kineto",
        "platform": platform,
        "rank": rank,
        "world_size": world,
        "devices": own["devices"] if isinstance(own, dict) and isinstance(own.get("devices"), list) else devices,
        "gpus": [str(d.get("name", "")) for d in device_properties(header)],
        "base_time_ns": base if isinstance(base, int) else None,
        **({"dsv4lab": own} if isinstance(own, dict) else {}),
    }
