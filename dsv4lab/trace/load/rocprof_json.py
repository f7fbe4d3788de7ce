"""The JSON output of rocprofv3."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dsv4lab.errors import TraceError
from dsv4lab.timeline.timeline import Kind, Timeline
from dsv4lab.trace.load.report import LoadReport
from dsv4lab.trace.load.source import Source, read_ahead
from dsv4lab.trace.load.table import RowTable


class _Handle(msgspec.Struct, gc=False, frozen=True):
    handle: int | None = None


class _Correlation(msgspec.Struct, gc=False, frozen=True):
    internal: int | None = None


_NO_HANDLE, _NO_CORRELATION = _Handle(), _Correlation()


class _Info(msgspec.Struct, gc=False):
    agent_id: _Handle = _NO_HANDLE
    queue_id: _Handle = _NO_HANDLE
    kernel_id: int = -1


class _Record(msgspec.Struct, gc=False):
    start_timestamp: int
    end_timestamp: int
    kind: int = 0
    operation: int = 0
    correlation_id: _Correlation = _NO_CORRELATION
    stream_id: _Handle = _NO_HANDLE
    dst_agent_id: _Handle = _NO_HANDLE
    src_agent_id: _Handle = _NO_HANDLE
    dispatch_info: _Info | None = None


class _Symbol(msgspec.Struct, gc=False):
    kernel_id: int = -1
    kernel_name: str = ""
    formatted_kernel_name: str = ""


class _Agent(msgspec.Struct, gc=False):
    id: _Handle = _NO_HANDLE
    type: int = 0
    name: str = ""
    product_name: str = ""


class _Operations(msgspec.Struct, gc=False):
    kind: str = ""
    operations: list[str] = []


class _Text(msgspec.Struct, gc=False):
    key: int = -1
    value: str = ""


class _Strings(msgspec.Struct, gc=False):
    buffer_records: list[_Operations] = []
    marker_api: list[_Text] = []


class _Buffers(msgspec.Struct, gc=False):
    kernel_dispatch: list[_Record] = []
    memory_copy: list[_Record] = []
    hip_api: list[_Record] = []
    marker_api: list[_Record] = []


class _Tool(msgspec.Struct, gc=False):
    agents: list[_Agent] = []
    kernel_symbols: list[_Symbol] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    buffer_records: _Buffers = msgspec.field(default_factory=_Buffers)


class _File(msgspec.Struct, gc=False):
    tools: list[_Tool] = msgspec.field(name="rocprofiler-sdk-tool")


_GPU = 2


def read_rocprof_json(path: Path, progress: Callable[[int], None] | None = None) -> tuple[Timeline, LoadReport]:
    """Load a ``*_results.json``. Raises ``TraceError`` if it is damaged: it is one object, not a list of events."""
    report = LoadReport(file=path.name, format="rocprofv3 json", exporter="rocprofv3")
    source = Source(path)
    parts = []
    for chunk in read_ahead(iter(source)):
        parts.append(chunk)
        if progress is not None:
            progress(source.read_bytes)
    report.plain_bytes = source.plain_bytes
    if source.broken is not None:
        raise TraceError(f"{path}: {source.broken}: a rocprofv3 JSON file has to be whole")
    try:
        data = msgspec.json.decode(b"".join(parts), type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: damaged rocprofv3 JSON: {error}") from None
    table = RowTable(report)
    gpus: list[str] = []
    for process, tool in enumerate(data.tools):
        gpus += _add(tool, process if len(data.tools) > 1 else 0, table)
    return table.timeline(path, {"platform": "rocm", "gpus": gpus}), report


def _add(tool: _Tool, rank: int, table: RowTable) -> list[str]:
    """Add one process; returns the names of its GPUs."""
    agents = [agent for agent in tool.agents if agent.type == _GPU]
    device = {agent.id.handle: at for at, agent in enumerate(agents)}
    symbols = {s.kernel_id: s.formatted_kernel_name or s.kernel_name for s in tool.kernel_symbols}
    records = tool.buffer_records
    infos = [r.dispatch_info or _Info() for r in records.kernel_dispatch]
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


def _extend(table: RowTable, kind: Kind, records: list[_Record], rank: int, **columns: Any) -> None:
    table.extend(
        kind,
        start=[r.start_timestamp for r in records],
        end=[r.end_timestamp for r in records],
        stream=[r.stream_id.handle for r in records] if kind <= Kind.MEMCPY else None,
        correlation=[r.correlation_id.internal for r in records],
        rank=rank,
        **columns,
    )


def _operations(tool: _Tool, records: list[_Record]) -> list[str]:
    tables = [entry.operations for entry in tool.strings.buffer_records]

    def name(kind: int, operation: int) -> str:
        known = 0 <= kind < len(tables) and 0 <= operation < len(tables[kind])
        return tables[kind][operation] if known else f"kind {kind} operation {operation}"

    return [name(r.kind, r.operation) for r in records]
