"""What of rocprofv3's JSON the timeline needs, as msgspec reads it."""

from __future__ import annotations

import msgspec


class Handle(msgspec.Struct, gc=False, frozen=True):
    """An id of the runtime."""

    handle: int | None = None


class Correlation(msgspec.Struct, gc=False, frozen=True):
    """The launch that a record belongs to."""

    internal: int | None = None


NO_HANDLE, NO_CORRELATION = Handle(), Correlation()


class Info(msgspec.Struct, gc=False):
    """Where a kernel was dispatched."""

    agent_id: Handle = NO_HANDLE
    queue_id: Handle = NO_HANDLE
    kernel_id: int = -1


class Record(msgspec.Struct, gc=False):
    """One kernel, copy, call or mark; times in ns."""

    start_timestamp: int
    end_timestamp: int
    kind: int = 0
    operation: int = 0
    correlation_id: Correlation = NO_CORRELATION
    stream_id: Handle = NO_HANDLE
    dst_agent_id: Handle = NO_HANDLE
    src_agent_id: Handle = NO_HANDLE
    dispatch_info: Info | None = None


class Symbol(msgspec.Struct, gc=False):
    """A kernel."""

    kernel_id: int = -1
    kernel_name: str = ""
    formatted_kernel_name: str = ""


class Agent(msgspec.Struct, gc=False):
    """A processor; GPUs have type 2."""

    id: Handle = NO_HANDLE
    type: int = 0
    name: str = ""
    product_name: str = ""


class Operations(msgspec.Struct, gc=False):
    """Names of the operations of one kind of record."""

    kind: str = ""
    operations: list[str] = []


class Text(msgspec.Struct, gc=False):
    """The text of a mark."""

    key: int = -1
    value: str = ""


class Strings(msgspec.Struct, gc=False):
    """Names."""

    buffer_records: list[Operations] = []
    marker_api: list[Text] = []


class Buffers(msgspec.Struct, gc=False):
    """Records by kind."""

    kernel_dispatch: list[Record] = []
    memory_copy: list[Record] = []
    hip_api: list[Record] = []
    marker_api: list[Record] = []


class Tool(msgspec.Struct, gc=False):
    """One process."""

    agents: list[Agent] = []
    kernel_symbols: list[Symbol] = []
    strings: Strings = msgspec.field(default_factory=Strings)
    buffer_records: Buffers = msgspec.field(default_factory=Buffers)


class File(msgspec.Struct, gc=False):
    """A whole file."""

    tools: list[Tool] = msgspec.field(name="rocprofiler-sdk-tool")
