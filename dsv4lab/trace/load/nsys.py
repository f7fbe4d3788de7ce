"""The SQLite export of Nsight Systems (``nsys export --type sqlite``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsv4lab.timeline.timeline import Kind, Timeline
from dsv4lab.trace.load.report import LoadReport
from dsv4lab.trace.load.rocpd import Row
from dsv4lab.trace.load.sqlite import Database, whole
from dsv4lab.trace.load.table import RowTable

_CUPTI = "CUPTI_ACTIVITY_KIND_"
_COPIES = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
_RANGES = (59, 60)  # NVTX push/pop and start/end ranges
_PLACE = ("start", "end", "streamId", "deviceId", "correlationId", "globalPid")


def read_nsys(path: Path, database: Database) -> tuple[Timeline, LoadReport]:
    """Load an Nsight Systems export: kernels, copies, fills, graph launches, runtime calls and NVTX ranges.

    Correlation ids repeat between processes, so they are joined within one. A graph that was traced as a whole is one
    kernel row named after its graph.
    """
    report = LoadReport(file=path.name, format="nsys sqlite", exporter="nsys")
    report.plain_bytes = path.stat().st_size
    reader = _Reader(database, RowTable(report))
    reader.add_gpu("KERNEL", Kind.KERNEL, ("demangledName", "shortName", "mangledName"))
    reader.add_gpu("GRAPH_TRACE", Kind.KERNEL, ("graphId",))
    reader.add_gpu("MEMCPY", Kind.MEMCPY, ("copyKind",))
    reader.add_gpu("MEMSET", Kind.MEMSET, ())
    reader.add_calls()
    reader.add_ranges()
    gpus = [str(name) for (name,) in reader.read("TARGET_INFO_GPU", "name")]
    database.tell(report)
    return reader.table.timeline(path, {"platform": "cuda", "gpus": gpus}), report


class _Reader:
    def __init__(self, database: Database, table: RowTable) -> None:
        self.database = database
        self.table = table
        self.strings: dict[Any, Any] = dict(self.read("StringIds", "id", "value"))
        self.processes: dict[int, int] = {}

    def read(self, name: str, *columns: str) -> list[Row]:
        return list(self.database.read(name, list(columns))) if name in self.database.tables else []

    def key(self, correlation: Any, process: Any) -> int | None:
        """A correlation id made unique across processes (``globalPid`` and ``globalTid`` share their upper bits)."""
        if whole(correlation) is None:
            return None
        group = (whole(process) or 0) >> 24
        return int(correlation) + (self.processes.setdefault(group, len(self.processes)) << 40)

    def add_gpu(self, what: str, kind: Kind, name_columns: tuple[str, ...]) -> None:
        rows = self.read(_CUPTI + what, *_PLACE, *name_columns)
        good = [row for row in rows if whole(row[0]) is not None and whole(row[1]) is not None]
        self.table.report.lost_events += len(rows) - len(good)
        self.table.extend(
            kind,
            start=[row[0] for row in good],
            end=[row[1] for row in good],
            name=[self._name(what, row[len(_PLACE) :]) for row in good],
            stream=[row[2] for row in good],
            device=[row[3] for row in good],
            correlation=[self.key(row[4], row[5]) for row in good],
        )

    def _name(self, what: str, values: Row) -> str:
        if what == "MEMCPY":
            return f"Memcpy {_COPIES.get(values[0], values[0])}"
        if what == "MEMSET":
            return "Memset"
        if what == "GRAPH_TRACE":
            return f"graph {values[0]}"
        return next((str(self.strings[v]) for v in values if v in self.strings), "kernel")

    def add_calls(self) -> None:
        rows = [
            r
            for r in self.read(_CUPTI + "RUNTIME", "start", "end", "nameId", "correlationId", "globalTid")
            if whole(r[0]) and whole(r[1])
        ]
        self.table.extend(
            Kind.HOST,
            start=[row[0] for row in rows],
            end=[row[1] for row in rows],
            name=[str(self.strings.get(row[2], "call")) for row in rows],
            correlation=[self.key(row[3], row[4]) for row in rows],
        )

    def add_ranges(self) -> None:
        rows = self.read("NVTX_EVENTS", "start", "end", "eventType", "text", "textId")
        rows = [r for r in rows if whole(r[0]) is not None and whole(r[1]) is not None and r[2] in _RANGES]
        self.table.extend(
            Kind.ANNOTATION,
            start=[row[0] for row in rows],
            end=[row[1] for row in rows],
            name=[str(row[3] or self.strings.get(row[4], "range")) for row in rows],
        )
