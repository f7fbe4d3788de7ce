"""rocpd, the SQLite format of the ROCm profilers: views with plain names over tables with a GUID suffix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsv4lab.timeline.timeline import Kind, Timeline
from dsv4lab.trace.load.report import LoadReport
from dsv4lab.trace.load.sqlite import Database, whole
from dsv4lab.trace.load.table import RowTable

_DISPATCH = "rocpd_kernel_dispatch"
Row = tuple[Any, ...]


def read_rocpd(path: Path, database: Database) -> tuple[Timeline, LoadReport]:
    """Load a rocpd file. Where it holds several processes (table suffixes), each is a rank of its own."""
    report = LoadReport(file=path.name, format="rocpd", exporter="rocpd")
    report.plain_bytes = path.stat().st_size
    suffixes = sorted(t.removeprefix(_DISPATCH) for t in database.tables if t.startswith(_DISPATCH) and t != _DISPATCH)
    table = RowTable(report)
    gpus: list[str] = []
    for rank, suffix in enumerate(suffixes or [""]):
        gpus += _add(database, suffix, rank, table)
    database.tell(report)
    return table.timeline(path, {"platform": "rocm", "gpus": gpus}), report


def _add(database: Database, suffix: str, rank: int, table: RowTable) -> list[str]:
    """Add the tables of one suffix; returns the names of its GPUs."""

    def read(name: str, *columns: str) -> list[Row]:
        full = name + suffix
        return list(database.read(full, list(columns))) if full in database.tables else []

    agents = [(key, name) for key, kind, name in read("rocpd_info_agent", "id", "type", "name") if kind == "GPU"]
    device = {key: at for at, (key, _) in enumerate(agents)}
    strings: dict[Any, Any] = dict(read("rocpd_string", "id", "string"))
    symbols = {
        key: shown or name for key, shown, name in read("rocpd_info_kernel_symbol", "id", "display_name", "kernel_name")
    }
    ids = {key: stack or other for key, stack, other in read("rocpd_event", "id", "stack_id", "correlation_id")}
    kernels = read(_DISPATCH, "start", "end", "kernel_id", "stream_id", "queue_id", "agent_id", "event_id")
    named = [
        (s, e, symbols.get(k) or f"kernel {k}", stream, q, device.get(a), ids.get(v))
        for s, e, k, stream, q, a, v in kernels
    ]
    _extend(table, Kind.KERNEL, named, rank)
    copies = read(
        "rocpd_memory_copy",
        "start",
        "end",
        "name_id",
        "stream_id",
        "queue_id",
        "dst_agent_id",
        "src_agent_id",
        "event_id",
    )
    moved = [
        (s, e, strings.get(n) or "copy", stream, q, device.get(to, device.get(by)), ids.get(v))
        for s, e, n, stream, q, to, by, v in copies
    ]
    _extend(table, Kind.MEMCPY, moved, rank)
    launched = {row[6] for row in (*named, *moved) if row[6] is not None}
    regions = [
        (s, e, strings.get(n) or "region", ids.get(v))
        for s, e, n, v in read("rocpd_region", "start", "end", "name_id", "event_id")
    ]
    calls = [(s, e, n, None, None, None, c) for s, e, n, c in regions if c in launched]
    _extend(table, Kind.HOST, calls, rank)
    marks = [
        (s, e, n, None, None, None, None)
        for s, e, n, c in regions
        if c not in launched and not n.startswith(("hip", "hsa"))
    ]
    _extend(table, Kind.ANNOTATION, marks, rank)
    return [str(name) for _, name in agents]


def _extend(table: RowTable, kind: Kind, rows: list[Row], rank: int) -> None:
    """Add rows of ``(start, end, name, stream, queue, device, correlation)``; those without times are lost."""
    good = [row for row in rows if whole(row[0]) is not None and whole(row[1]) is not None]
    table.report.lost_events += len(rows) - len(good)
    start, end, name, stream, queue, device, correlation = ([row[at] for row in good] for at in range(7))
    on_device = kind <= Kind.MEMSET
    table.extend(
        kind,
        start=start,
        end=end,
        name=[str(n) for n in name],
        stream=stream if on_device else None,
        queue=queue if on_device else None,
        device=device if on_device else None,
        correlation=[whole(c) for c in correlation],
        rank=rank,
    )
