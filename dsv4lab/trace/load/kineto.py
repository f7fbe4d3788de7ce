"""Kineto and Chrome JSON, from CUDA and ROCm, old and new, into a :class:`Timeline`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from types import NoneType
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
from dsv4lab.trace.load.events import OP, IdValue, OwnArgs
from dsv4lab.trace.load.labels import Labels
from dsv4lab.trace.load.numbers import Ints, micros, micros_column
from dsv4lab.trace.load.own import OWN_KEY, own_labels, remap
from dsv4lab.trace.load.pieces import EventReader
from dsv4lab.trace.load.report import LoadReport
from dsv4lab.trace.load.source import Source, read_ahead

_BATCH = 4096
_OWN = ("step", "layer", "op", "rank", "at")
_NO_ARGS = OwnArgs()
_PLACE = attrgetter("stream", "queue", "hsa_queue", "device", "correlation", "external")
_OP_IDS = attrgetter("stream", "external")
_NAME, _TS, _DUR, _ARGS, _PH = (attrgetter(name) for name in ("name", "ts", "dur", "args", "ph"))


class KinetoRows:
    """Collects rows batch by batch, as numpy columns. ``own`` says that the file is one of ours."""

    def __init__(self, report: LoadReport) -> None:
        self.report = report
        self.own = False
        self.names = Labels()
        self.streams = Labels()
        self.queues = Labels()
        self.devices = Labels()
        self.op_external: list[Ints] = []
        self.op_name: list[NDArray[np.int32]] = []
        self.parts: dict[str, list[NDArray[Any]]] = {name: [] for name in _COLUMNS}
        self._rows: list[Any] = []
        self._codes: list[NDArray[np.int8]] = []

    def add(self, events: list[Any], codes: bytes) -> None:
        """Take the rows of interest out of ``events``."""
        self.report.events += len(events)
        code = np.frombuffer(codes, np.int8)
        self._add_ops(list(map(events.__getitem__, np.flatnonzero(code == OP).tolist())))
        code, rows = self._complete(code, events)
        self._rows += rows
        self._codes.append(code)
        if len(self._rows) >= _BATCH:
            self.flush()

    def _complete(self, code: NDArray[np.int8], events: list[Any]) -> tuple[NDArray[np.int8], list[Any]]:
        """Rows that are whole slices, without those that our exporter derived."""
        at = np.flatnonzero(code < OP)
        rows = list(map(events.__getitem__, at.tolist()))
        if set(map(_PH, rows)) <= {"X"} and not self.own:
            return code[at], rows
        good = [e.ph == "X" and not (self.own and e.args is not None and e.args.derived) for e in rows]
        return code[at][np.array(good, np.bool_)], [e for e, g in zip(rows, good, strict=True) if g]

    def flush(self) -> None:
        """Turn the rows held so far into columns."""
        rows, kind = self._rows, np.concatenate(self._codes) if self._codes else np.empty(0, np.int8)
        self._rows, self._codes = [], []
        if not rows:
            return
        start, ok = self._times(list(map(_TS, rows)))
        if not ok.all():
            self.report.lost_events += int((~ok).sum())
            self.report.findings["no start time"] += int((~ok).sum())
            rows, kind, start = [e for e, good in zip(rows, ok, strict=True) if good], kind[ok], start[ok]
        args = self._args(rows)
        stream, queue, hsa_queue, device, correlation, external = zip(*map(_PLACE, args), strict=True)
        self._put("start_ns", start)
        self._put("dur_ns", self._durations(list(map(_DUR, rows)), kind))
        self._put("kind", kind)
        self._put("name", self._names(rows))
        self._put("stream", self._lanes(self.streams, stream))
        named = queue if set(hsa_queue) == {None} else self._either(hsa_queue, queue)
        self._put("queue", self._lanes(self.queues, named))
        self._put("device", self._lanes(self.devices, device))
        self._put("correlation", self._numbers(correlation))
        self._put("external", self._numbers(external))
        if self.own:
            self._put("queued_ns", self._numbers([a.queued_ns for a in args]))
            for name in _OWN:
                self._put(name, self._small([getattr(a, name) for a in args]))

    @staticmethod
    def _args(events: list[Any]) -> list[Any]:
        args = list(map(_ARGS, events))
        return [a or _NO_ARGS for a in args] if None in args else args

    @staticmethod
    def _either(first: Sequence[IdValue], second: Sequence[IdValue]) -> list[IdValue]:
        return [b if a is None else a for a, b in zip(first, second, strict=True)]

    def _put(self, column: str, values: NDArray[Any]) -> None:
        self.parts[column].append(values)

    def _names(self, rows: list[Any]) -> NDArray[np.int32]:
        return np.array(self.names.column(map(bytes, map(_NAME, rows))), np.int32)

    def _lanes(self, labels: Labels, values: Sequence[IdValue]) -> NDArray[np.int32]:
        return np.array(labels.column(self._keys(values)), np.int32)

    def _add_ops(self, ops: list[Any]) -> None:
        if not ops:
            return
        stream, external = zip(*map(_OP_IDS, self._args(ops)), strict=True)
        self.report.findings["cpu rows with a stream"] += len(stream) - stream.count(None)
        self.op_external.append(self._numbers(external))
        self.op_name.append(self._names(ops))

    def _times(self, raws: list[msgspec.Raw]) -> tuple[Ints, NDArray[np.bool_]]:
        quick = micros_column(raws)
        if quick is not None:
            return quick, np.ones(len(raws), np.bool_)
        texts = [bytes(raw) for raw in raws]
        values = [micros(t) for t in texts]
        self.report.repairs["number as text"] += sum(1 for t in texts if t[:1] == b'"')
        ok = np.array([v is not None for v in values], np.bool_)
        return np.array([0 if v is None else v for v in values], np.int64), ok

    def _durations(self, raws: list[msgspec.Raw], kind: NDArray[np.int8]) -> Ints:
        values, ok = self._times(raws)
        gpu = kind <= int(Kind.MEMSET)
        negative = ok & (values < 0)
        self.report.findings["no duration"] += int((~ok).sum())
        self.report.findings["negative duration, taken as 0"] += int(negative.sum())
        self.report.findings["zero duration"] += int((gpu & ok & (values == 0)).sum())
        values[~ok | negative] = 0
        return values

    def _keys(self, values: Sequence[IdValue]) -> Sequence[IdValue]:
        if set(map(type, values)) <= {int, NoneType}:
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

    def _numbers(self, values: Sequence[IdValue]) -> Ints:
        plain = values if None not in values else [UNKNOWN if v is None else v for v in values]
        if set(map(type, plain)) <= {int}:
            try:
                return np.array(plain, np.int64)
            except OverflowError:
                pass
        return np.array([self._number(v) for v in plain], np.int64)

    def _small(self, values: list[IdValue]) -> NDArray[np.int32]:
        """Numbers of our own exporter, within 31 bits."""
        good = [v if isinstance(v, int) and 0 <= v < 2**31 else UNKNOWN for v in values]
        return np.array(good, np.int32)

    def _number(self, value: IdValue) -> int:
        key = self._key(value)
        return key if isinstance(key, int) and -(2**63) <= key < 2**63 else UNKNOWN

    def columns(self) -> dict[str, NDArray[Any]]:
        """All columns, batches joined; those that only our own files have are filled."""
        self.flush()
        size = sum(map(len, self.parts["start_ns"]))
        out: dict[str, NDArray[Any]] = {}
        for name, dtype in _COLUMNS.items():
            parts = self.parts.pop(name)
            out[name] = np.concatenate(parts) if parts else np.full(size, UNKNOWN, dtype)
        return out

    def ops(self) -> tuple[Ints, NDArray[np.int32]]:
        """External ids and name ids of all operators."""
        if not self.op_external:
            return np.empty(0, np.int64), np.empty(0, np.int32)
        return np.concatenate(self.op_external), np.concatenate(self.op_name)


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
    if not raw:
        return ""
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
    for events, codes in reader:
        rows.own = OWN_KEY in reader.header
        rows.add(events, codes)
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
    names = [decode_name(raw, report) for raw in rows.names.keys]
    host = np.unique(columns["name"][columns["kind"] == int(Kind.HOST)])
    platform = platform_of(header, [names[i] for i in host[:64] if i != UNKNOWN])
    rank, world = rank_of(header, report.file)
    own = own_labels(header) if rows.own else None
    warnings = []
    queues: list[IdValue] = list(rows.queues.keys)
    gpu = columns["kind"] <= int(Kind.MEMSET)
    if platform == "rocm" and not queues and bool((columns["stream"][gpu] != UNKNOWN).any()):
        columns["queue"] = np.where(gpu, columns["stream"], UNKNOWN).astype(np.int32)
        queues = list(rows.streams.keys)
        warnings.append(f"{report.file}: {OLD_QUEUES}")
    report.exporter = _exporter(header, platform, bool(rows.streams.keys), bool(queues), bool(warnings))
    written_op, written_device = columns["op"], columns.pop("at")
    join_launches(columns, *rows.ops(), report)
    report.rows = int(gpu.sum())
    meta = _meta(header, platform, rank, world, [str(d) for d in rows.devices.keys])
    if own is not None:
        labels = remap(columns, own, rows.streams.keys, rows.queues.keys, names)
        columns["op"] = np.where(written_op < len(own["names"]), written_op, UNKNOWN).astype(np.int32)
        columns["device"] = written_device
    else:
        columns["rank"] = np.full(len(gpu), rank, np.int32)
        labels = _labels(columns, rows, queues, names)
    return finish(columns, report, **labels, meta=meta, warnings=warnings)


def _labels(
    columns: dict[str, NDArray[Any]], rows: KinetoRows, queues: list[IdValue], names: list[str]
) -> dict[str, Any]:
    devices = [str(d) for d in rows.devices.keys]
    stream, streams = by_device(columns["stream"], columns["device"], [str(s) for s in rows.streams.keys], devices)
    queue, queue_names = by_device(columns["queue"], columns["device"], [str(q) for q in queues], devices)
    columns["stream"], columns["queue"] = stream, queue
    return {"names": names, "streams": streams, "queues": queue_names, "main_stream": None}


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
        "rank": rank,
        "world_size": world,
        "devices": own["devices"] if isinstance(own, dict) and isinstance(own.get("devices"), list) else devices,
        "gpus": [str(d.get("name", "")) for d in device_properties(header)],
        "base_time_ns": base if isinstance(base, int) else None,
        **({"dsv4lab": own} if isinstance(own, dict) else {}),
    }
