"""The JSON output of rocprofv3."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dsv4lab.errors import TraceError
from dsv4lab.timeline.timeline import Kind, Timeline
from dsv4lab.trace.load.events import ERRORS
from dsv4lab.trace.load.report import LoadReport
from dsv4lab.trace.load.rocprof_records import File, Info, Record, Tool
from dsv4lab.trace.load.rocprof_salvage import salvage_tools
from dsv4lab.trace.load.source import read_whole
from dsv4lab.trace.load.table import RowTable

_GPU = 2


def read_rocprof_json(path: Path, progress: Callable[[int], None] | None = None) -> tuple[Timeline, LoadReport]:
    """Load a ``*_results.json``; of a damaged one, every record that is whole.

    Raises ``TraceError`` if there is none.
    """
    report = LoadReport(file=path.name, format="rocprofv3 json", exporter="rocprofv3")
    text = read_whole(path, report, progress)
    try:
        tools = msgspec.json.decode(text, type=File).tools
    except ERRORS as error:
        tools = salvage_tools(text, report)
        if not any(records for tool in tools for records in msgspec.structs.astuple(tool.buffer_records)):
            raise TraceError(f"{path}: damaged rocprofv3 JSON, no record to be had: {error}") from None
    table = RowTable(report)
    gpus: list[str] = []
    for process, tool in enumerate(tools):
        gpus += _add(tool, process if len(tools) > 1 else 0, table)
    return table.timeline(path, {"platform": "rocm", "gpus": gpus}), report


def _add(tool: Tool, rank: int, table: RowTable) -> list[str]:
    """Add one process; returns the names of its GPUs."""
    agents = [agent for agent in tool.agents if agent.type == _GPU]
    device = {agent.id.handle: at for at, agent in enumerate(agents)}
    symbols = {s.kernel_id: s.formatted_kernel_name or s.kernel_name for s in tool.kernel_symbols}
    records = tool.buffer_records
    infos = [r.dispatch_info or Info() for r in records.kernel_dispatch]
    _extend(
        table,
        Kind.KERNEL,
        records.kernel_dispatch,
        rank,
        name=[symbols.get(info.kernel_id) or f"kernel {info.kernel_id}" for info in infos],
        queue=[info.queue_id.handle for info in infos],
        device=[device.get(info.agent_id.handle) for info in infos],
    )
    copies = records.memory_copy
    where = [device.get(r.dst_agent_id.handle, device.get(r.src_agent_id.handle)) for r in copies]
    _extend(table, Kind.MEMCPY, copies, rank, name=_operations(tool, copies), device=where)
    launched = {r.correlation_id.internal for r in (*records.kernel_dispatch, *copies)}
    calls = [r for r in records.hip_api if r.correlation_id.internal in launched]
    _extend(table, Kind.HOST, calls, rank, name=_operations(tool, calls))
    texts = {text.key: text.value for text in tool.strings.marker_api}
    marks = [r for r in records.marker_api if r.correlation_id.internal in texts]
    _extend(table, Kind.ANNOTATION, marks, rank, name=[texts[m.correlation_id.internal or 0] for m in marks])
    return [agent.product_name or agent.name for agent in agents]


def _extend(table: RowTable, kind: Kind, records: list[Record], rank: int, **columns: Any) -> None:
    table.extend(
        kind,
        start=[r.start_timestamp for r in records],
        end=[r.end_timestamp for r in records],
        stream=[r.stream_id.handle for r in records] if kind <= Kind.MEMCPY else None,
        correlation=[r.correlation_id.internal for r in records],
        rank=rank,
        **columns,
    )


def _operations(tool: Tool, records: list[Record]) -> list[str]:
    tables = [entry.operations for entry in tool.strings.buffer_records]

    def name(kind: int, operation: int) -> str:
        known = 0 <= kind < len(tables) and 0 <= operation < len(tables[kind])
        return tables[kind][operation] if known else f"kind {kind} operation {operation}"

    return [name(r.kind, r.operation) for r in records]
