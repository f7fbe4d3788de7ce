"""A growing table of rows for the loaders whose sources give one record at a time, already in nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import TraceError
from dsv4lab.timeline.timeline import UNKNOWN, Kind, Timeline
from dsv4lab.trace.load.assemble import by_device, finish, join_launches
from dsv4lab.trace.load.labels import Labels
from dsv4lab.trace.load.report import LoadReport

_LIMIT = 2**62
_ID_LIMIT = 2**48  # correlation ids above belong to no known exporter; ranks are told apart by the bits from there


class RowTable:
    """Columns as lists; ids of streams, queues, devices and processes are opaque keys, ``None`` where not known."""

    def __init__(self, report: LoadReport) -> None:
        self.report = report
        self.start: list[int] = []
        self.end: list[int] = []
        self.kind: list[int] = []
        self.correlation: list[int] = []
        self.name: list[int] = []
        self.stream: list[int] = []
        self.queue: list[int] = []
        self.device: list[int] = []
        self.rank: list[int] = []
        self.names, self.streams, self.queues, self.devices = Labels(), Labels(), Labels(), Labels()

    def extend(
        self,
        kind: Kind,
        *,
        start: Sequence[int],
        end: Sequence[int],
        name: Sequence[str],
        stream: Sequence[Any] | None = None,
        queue: Sequence[Any] | None = None,
        device: Sequence[Any] | None = None,
        correlation: Sequence[int | None] | None = None,
        rank: int = 0,
    ) -> None:
        """Add rows of one kind; sequences of equal length, ``None`` for a column that the source lacks."""
        size = len(start)
        nothing: Sequence[Any] = [None] * size
        self.start += start
        self.end += end
        self.kind += [int(kind)] * size
        self.rank += [rank] * size
        self.name += self.names.column(name)
        self.stream += self.streams.column(nothing if stream is None else stream)
        self.queue += self.queues.column(nothing if queue is None else queue)
        self.device += self.devices.column(nothing if device is None else device)
        apart = rank << 48
        self.correlation += [
            UNKNOWN if c is None or not 0 <= c < _ID_LIMIT else c + apart
            for c in (nothing if correlation is None else correlation)
        ]

    def timeline(self, path: Any, meta: Mapping[str, Any], warnings: Sequence[str] = ()) -> Timeline:
        """The checked timeline. Raises ``TraceError`` if a time does not fit 62 bits."""
        try:
            start, end = np.array(self.start, np.int64), np.array(self.end, np.int64)
        except OverflowError:
            raise TraceError(f"{path}: holds a time beyond 64 bits of nanoseconds") from None
        if len(start) and max(int(np.abs(start).max()), int(np.abs(end).max())) >= _LIMIT:
            raise TraceError(f"{path}: holds a time beyond 62 bits of nanoseconds")
        self.report.findings["negative duration, taken as 0"] += int((end < start).sum())
        columns: dict[str, NDArray[Any]] = {
            "start_ns": start,
            "dur_ns": np.maximum(end - start, 0),
            "kind": np.array(self.kind, np.int8),
            "name": np.array(self.name, np.int32),
            "stream": np.array(self.stream, np.int32),
            "queue": np.array(self.queue, np.int32),
            "device": np.array(self.device, np.int32),
            "rank": np.array(self.rank, np.int32),
            "correlation": np.array(self.correlation, np.int64),
            "queued_ns": np.full(len(start), UNKNOWN, np.int64),
            "external": np.full(len(start), UNKNOWN, np.int64),
        }
        none = np.empty(0, np.int64)
        join_launches(columns, none, none.astype(np.int32), self.report)
        devices = [str(d) for d in self.devices.keys]
        columns["stream"], streams = by_device(columns["stream"], columns["device"], self.streams.texts(), devices)
        columns["queue"], queues = by_device(columns["queue"], columns["device"], self.queues.texts(), devices)
        gpu = columns["kind"] <= int(Kind.MEMSET)
        self.report.rows = int(gpu.sum())
        self.report.findings["zero duration"] += int((gpu & (columns["dur_ns"] == 0)).sum())
        self.report.events = self.report.events or len(start)
        return finish(
            columns,
            self.report,
            names=self.names.texts(),
            streams=streams,
            queues=queues,
            main_stream=None,
            meta={"devices": devices, "format": self.report.format, **meta},
            warnings=warnings,
        )
