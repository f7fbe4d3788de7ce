"""Rows of a Kineto file, taken out of its events batch by batch, as numpy columns."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from types import NoneType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.intervals import is_sorted
from dsv4lab.timeline.timeline import UNKNOWN, Ints, Kind
from dsv4lab.trace.load.events import OP, IdValue, OwnArgs
from dsv4lab.trace.load.labels import Labels
from dsv4lab.trace.load.numbers import micros, micros_column
from dsv4lab.trace.load.report import LoadReport

_BATCH = 1024
_OWN = ("step", "layer", "op", "rank", "at")
_NO_ARGS = OwnArgs()
_PLACE = attrgetter("stream", "queue", "hsa_queue", "device", "correlation", "external")
_OP_IDS = attrgetter("stream", "external")
_NAME, _TS, _DUR, _ARGS, _PH = (attrgetter(name) for name in ("name", "ts", "dur", "args", "ph"))


COLUMN_TYPES: dict[str, type] = {
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
    "piece": np.int32,
}
"""Columns of the rows; ``piece`` is the number of the piece that a row came from."""


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
        self.op_piece: list[NDArray[np.int32]] = []
        self.parts: dict[str, list[NDArray[Any]]] = {name: [] for name in COLUMN_TYPES}
        self._rows: list[Any] = []
        self._codes: list[NDArray[np.int8]] = []
        self._pieces: list[NDArray[np.int32]] = []

    def add(self, events: list[Any], codes: bytes, piece: int) -> None:
        """Take the rows of interest out of the ``events`` of a ``piece``."""
        self.report.events += len(events)
        code = np.frombuffer(codes, np.int8)
        self._add_ops(list(map(events.__getitem__, np.flatnonzero(code == OP).tolist())), piece)
        code, rows = self._complete(code, events)
        self._rows += rows
        self._codes.append(code)
        self._pieces.append(np.full(len(rows), piece, np.int32))
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
        rows = self._rows
        if not rows:
            return
        kind, piece = np.concatenate(self._codes), np.concatenate(self._pieces)
        self._rows, self._codes, self._pieces = [], [], []
        start, ok = self._times(list(map(_TS, rows)))
        if not ok.all():
            self.report.lost_events += int((~ok).sum())
            self.report.findings["no start time"] += int((~ok).sum())
            rows = [e for e, good in zip(rows, ok, strict=True) if good]
            kind, piece, start = kind[ok], piece[ok], start[ok]
        if not rows:
            return
        args = self._args(rows)
        stream, queue, hsa_queue, device, correlation, external = zip(*map(_PLACE, args), strict=True)
        self._put("start_ns", start)
        self._put("dur_ns", self._durations(list(map(_DUR, rows)), kind))
        self._put("kind", kind)
        self._put("piece", piece)
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
        return [a or _NO_ARGS for a in args] if NoneType in set(map(type, args)) else args

    @staticmethod
    def _either(first: Sequence[IdValue], second: Sequence[IdValue]) -> list[IdValue]:
        return [b if a is None else a for a, b in zip(first, second, strict=True)]

    def _put(self, column: str, values: NDArray[Any]) -> None:
        self.parts[column].append(values)

    def _names(self, rows: list[Any]) -> NDArray[np.int32]:
        return np.array(self.names.column(map(_NAME, rows)), np.int32)

    def _lanes(self, labels: Labels, values: Sequence[IdValue]) -> NDArray[np.int32]:
        return np.array(labels.column(self._keys(values)), np.int32)

    def _add_ops(self, ops: list[Any], piece: int) -> None:
        if not ops:
            return
        stream, external = zip(*map(_OP_IDS, self._args(ops)), strict=True)
        self.report.findings["cpu rows with a stream"] += len(stream) - stream.count(None)
        self.op_external.append(self._numbers(external))
        self.op_name.append(self._names(ops))
        self.op_piece.append(np.full(len(ops), piece, np.int32))

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

    def raw_columns(self) -> dict[str, NDArray[Any]]:
        """All columns, batches joined; those that only our own files have are filled."""
        self.flush()
        size = sum(map(len, self.parts["start_ns"]))
        out: dict[str, NDArray[Any]] = {}
        for name, dtype in COLUMN_TYPES.items():
            parts = self.parts[name]
            out[name] = np.concatenate(parts) if parts else np.full(size, UNKNOWN, dtype)
            parts.clear()
        return out

    def columns(self) -> dict[str, NDArray[Any]]:
        """:meth:`raw_columns` in the order of the file, without ``piece``."""
        out = self.raw_columns()
        piece = out.pop("piece")
        if is_sorted(piece):
            return out
        order = np.argsort(piece, kind="stable")
        return {name: values[order] for name, values in out.items()}

    def ops(self) -> tuple[Ints, NDArray[np.int32], NDArray[np.int32]]:
        """External ids, name ids and pieces of all operators, in the order of the file."""
        if not self.op_external:
            return np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32)
        external = np.concatenate(self.op_external)
        name, piece = np.concatenate(self.op_name), np.concatenate(self.op_piece)
        if is_sorted(piece):
            return external, name, piece
        order = np.argsort(piece, kind="stable")
        return external[order], name[order], piece[order]

    def take(
        self,
        columns: dict[str, NDArray[Any]],
        external: Ints,
        name: NDArray[np.int32],
        piece: NDArray[np.int32],
    ) -> None:
        """Add rows and operators that another reader of the same file found, in this one's ids."""
        self.flush()
        own = self.raw_columns()
        for column, values in columns.items():
            self.parts[column] += [own[column], values]
        self.op_external.append(external)
        self.op_name.append(name)
        self.op_piece.append(piece)
