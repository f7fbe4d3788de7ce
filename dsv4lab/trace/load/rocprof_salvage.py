"""A damaged rocprofv3 JSON file, record by record: nothing complete is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from dsv4lab.trace.load.events import ERRORS
from dsv4lab.trace.load.repair import mended
from dsv4lab.trace.load.report import LoadReport
from dsv4lab.trace.load.rocprof_records import Agent, Operations, Record, Symbol, Text, Tool
from dsv4lab.trace.load.salvage import object_end

_PROCESS = re.compile(rb'\{\s*"metadata"\s*:\s*\{')
_SECTION = re.compile(
    rb'"(agents|counters|strings|callback_records|buffer_records|code_objects|kernel_symbols|summary|'
    rb"host_functions|[a-z_]+_filenames|pc_sample_\w+|kernel_dispatch|memory_copy|memory_allocation|scratch_memory|"
    rb'[a-z]+_api|counter_collection)"\s*:\s*(?=[\[{])'
)
_HEAD = 64
_CLOSE = re.compile(rb"\}\s*\]")
_ENDS = re.compile(rb"\}\s*\]\s*\}\s*$")
_RECORD = (re.compile(rb'\{\s*"size"\s*:\s*\d+\s*,\s*"kind"\s*:'), Record)
_SHAPES: dict[str, tuple[re.Pattern[bytes], type[Any]]] = {
    "agents": (re.compile(rb'\{\s*"size"\s*:\s*\d+\s*,\s*"id"\s*:'), Agent),
    "kernel_symbols": (re.compile(rb'\{\s*"size"\s*:\s*\d+\s*,\s*"kernel_id"\s*:'), Symbol),
    "operations": (re.compile(rb'\{\s*"kind"\s*:\s*"'), Operations),
    "texts": (re.compile(rb'\{\s*"key"\s*:'), Text),
    **dict.fromkeys(("kernel_dispatch", "memory_copy", "hip_api", "marker_api"), _RECORD),
}
"""How an element of each list begins, and what it is."""


def salvage_tools(text: bytes, report: LoadReport) -> list[Tool]:
    """The processes in ``text`` with every element that reads, repaired where it takes that.

    Repairs and losses are counted in ``report``; a file that stops early is ``truncated``.
    """
    report.truncated |= _ENDS.search(text, max(0, len(text) - 64)) is None
    starts = [m.start() for m in _PROCESS.finditer(text)] or [0]
    bounds = list(zip(starts, [*starts[1:], len(text)], strict=True))
    tools = [_tool(text, a, b, report) for a, b in bounds]
    if not report.repairs and not report.lost_events and not report.truncated:
        report.repairs["damage between records"] += 1
    return tools


def _tool(text: bytes, begin: int, end: int, report: LoadReport) -> Tool:
    """One process, between ``begin`` and ``end``."""
    tool = Tool()
    lists: dict[str, list[Any]] = {
        "agents": tool.agents,
        "kernel_symbols": tool.kernel_symbols,
        "operations": tool.strings.buffer_records,
        "texts": tool.strings.marker_api,
        **{name: getattr(tool.buffer_records, name) for name in tool.buffer_records.__struct_fields__},
    }
    found = [(m[1].decode(), m.start(), m.end()) for m in _SECTION.finditer(text, begin, end)]
    stops = [*(start for _, start, _ in found[1:]), end]
    for (section, _, opens), stop in zip(found, stops, strict=True):
        name = _list_of(section, text[opens : opens + _HEAD])
        if name in lists:
            lists[name] += _elements(
                text[opens:stop], *_SHAPES[name], report, final=report.truncated and stop == len(text)
            )
    return tool


def _list_of(section: str, body: bytes) -> str:
    """Names and records share two section names; names of operations and texts of marks have their own shapes."""
    if section == "buffer_records" and body[:1] == b"[":
        return "operations"
    return "texts" if section == "marker_api" and _SHAPES["texts"][0].match(body[1:].lstrip()) else section


def _elements(
    body: bytes, begins: re.Pattern[bytes], kind: type[Any], report: LoadReport, *, final: bool
) -> Iterator[Any]:
    """The elements of a list; ``final`` says that the file stops inside the list."""
    decode = msgspec.json.Decoder(kind).decode

    def read(text: bytes) -> Any:
        try:
            return decode(text)
        except ERRORS:
            return None

    starts = [m.start() for m in begins.finditer(body)]
    for start, end in zip(starts, [*starts[1:], len(body)], strict=False):
        for piece in _objects(body[start:end]):
            found = mended(piece, read)
            if found is not None:
                report.repairs.update(found[1])
                yield found[0]
            elif final and end == len(body):
                report.lost_bytes += len(piece)
            else:
                report.lost_events += 1


def _objects(text: bytes) -> Iterator[bytes]:
    """The objects that follow each other in ``text``: one, or more where the start of the next was not recognised."""
    at = 0
    while text[at : at + 1] == b"{":
        end = object_end(text, at)
        if end is None:
            close = _CLOSE.search(text, at)
            yield text[at : close.start() + 1] if close else text[at:]
            return
        yield text[at:end]
        at = len(text) - len(text[end:].lstrip(b" \t\r\n,"))
