"""Which kind of trace a file is, from its first bytes."""

from __future__ import annotations

import re
from pathlib import Path

from dsv4lab.errors import TraceError
from dsv4lab.trace.load.source import GZIP_MAGIC, Source

_PEEK = 1 << 16
_SQLITE = b"SQLite format 3\x00"
_ROCPROF_JSON = re.compile(rb"^[\s{]{0,64}.{0,8}rocprofiler-sdk-tool", re.DOTALL)
_CSV_HEADER = re.compile(rb'^(?:\xef\xbb\xbf)?"?[A-Za-z_]+"?(?:,"?[A-Za-z_0-9 -]+"?){4,}')
TAKES = "Kineto or Chrome JSON(.gz), rocprofv3 CSV, JSON, rocpd or .pftrace, or an Nsight Systems SQLite export"


def peek(path: Path) -> bytes:
    """The first plain bytes of ``path``; raises ``TraceError`` if it cannot be read or is empty."""
    for chunk in Source(path, _PEEK):
        return chunk[:_PEEK]
    if path.stat().st_size:
        raise TraceError(f"{path}: the compressed data is damaged from its start: nothing to load")
    raise TraceError(f"{path}: empty file; a trace is {TAKES}")


def detect(path: Path) -> str:
    """``"kineto"``, ``"rocprofv3 csv"``, ``"rocprofv3 json"``, ``"pftrace"`` or ``"sqlite"``.

    Raises ``TraceError`` for anything else.
    """
    if path.is_dir():
        raise TraceError(f"{path}: is a directory, expected a file")
    try:
        start = peek(path)
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    if start.startswith(_SQLITE):
        return "sqlite"
    if _ROCPROF_JSON.match(start):
        return "rocprofv3 json"
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] in (b"{", b"["):
        return "kineto"
    if _CSV_HEADER.match(start):
        return "rocprofv3 csv"
    if _is_perfetto(start):
        return "pftrace"
    if start[:2] == GZIP_MAGIC:
        raise TraceError(f"{path}: compressed twice: decompress it once")
    raise TraceError(f"{path}: not a trace that dsv4lab reads; it takes {TAKES}")


def _is_perfetto(start: bytes) -> bool:
    """A Perfetto file is a sequence of field 1, wire type 2, each with a length that stays in bounds."""
    at, packets = 0, 0
    while at < len(start) - 12 and packets < 8:
        if start[at] != 0x0A:
            return False
        at, size, shift = at + 1, 0, 0
        while start[at] & 0x80 and shift < 28:
            size |= (start[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
        size |= start[at] << shift
        at, packets = at + 1 + size, packets + 1
    return packets >= 2
