"""From chunks of a Chrome-style trace file to lists of events: cut at event boundaries, repaired where broken."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dsv4lab.errors import TraceError
from dsv4lab.trace.load.events import ERRORS, EventDecoder, plain_codes
from dsv4lab.trace.load.report import LoadReport
from dsv4lab.trace.load.salvage import CUT, FIRST_KEYS, object_end, salvage

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE_ARRAY = re.compile(rb"\[\s*(?=\{\s*" + FIRST_KEYS + rb")")
_KEY = re.compile(rb'"(\w{1,64})"\s*:\s*', re.ASCII)
_SCALAR = re.compile(rb'"(?:[^"\\]|\\.)*"|[-0-9.eE+]+|true|false|null')
_HEADER_LIMIT = 64 << 20
_KEY_REACH = 256
_TAIL_LIMIT = 64 << 20
_LOOK_BACK = (1 << 16, 1 << 20, 1 << 62)


def last_cut(data: bytes) -> tuple[int, int] | None:
    """``(end of an event, start of the next)`` nearest to the end of ``data``."""
    for window in _LOOK_BACK:
        last = deque(CUT.finditer(data, max(0, len(data) - window)), maxlen=1)
        if last:
            return last[0].start() + 1, last[0].end()
        if window >= len(data):
            break
    return None


Events = tuple[list[Any], bytes]
"""Events and a code for each (see :mod:`dsv4lab.trace.load.events`)."""


class EventReader:
    """Iterates over :data:`Events`; ``header`` and ``tail`` hold the keys around ``traceEvents``.

    ``share`` of ``of`` readers decodes every ``of``-th piece, the first of them the end of the file too; ``piece`` is
    the number of the last one yielded. ``ended_early`` tells that the events ended before the last piece: readers that
    share a file then do not agree where.
    """

    def __init__(self, chunks: Iterable[bytes], report: LoadReport, path: Path, share: int = 0, of: int = 1) -> None:
        self._chunks = iter(chunks)
        self._report = report
        self._path = path
        self._tail: list[bytes] | None = None
        self._tail_bytes = 0
        self._decoder = EventDecoder()
        self._share, self._of = share, of
        self.piece = -1
        self.ended_early = False
        self.header: dict[str, Any] = {}
        self.tail: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Events]:
        held = [self._open()]
        self._decoder = EventDecoder(own=isinstance(self.header.get("dsv4lab"), dict))
        for chunk in self._chunks:
            if self._ended():
                self._keep_tail(chunk)
                continue
            cut = last_cut(chunk)
            if cut is None:
                held.append(chunk)
                continue
            if self._is_mine():
                yield self._piece(b"".join((b"[", *held, memoryview(chunk)[: cut[0]], b"]")))
            if self._ended():
                self._keep_tail(chunk[cut[0] :])
            held = [chunk[cut[1] :]]
        self.ended_early = self._tail is not None
        if self._tail is None and self._share == 0:
            yield from self._finish(b"".join(held))
        if self._tail is not None:
            self.tail = self._keys(b"{" + b"".join(self._tail).lstrip(b", \t\r\n"), "tail")

    def _ended(self) -> bool:
        """Whether the array of events is over."""
        return self._tail is not None

    def _is_mine(self) -> bool:
        """Whether this reader decodes the next piece; all readers of a file cut it alike."""
        self.piece += 1
        return self.piece % self._of == self._share

    def _open(self) -> bytes:
        """Read up to the start of the events; returns the text after the opening bracket."""
        data = b""
        for chunk in self._chunks:
            seen = len(data)
            data += chunk
            found = _ARRAY.search(data, max(0, seen - _KEY_REACH))
            if found is not None:
                before = data[: found.start()].rstrip().rstrip(b",").strip()
                self.header = self._keys(before + b"}", "header") if before not in (b"{", b"") else {}
                return data[found.end() :]
            if data[:_KEY_REACH].lstrip()[:1] == b"[" or len(data) > _HEADER_LIMIT:
                break
        bare = _BARE_ARRAY.search(data)
        if bare is None:
            raise TraceError(f"{self._path}: no traceEvents array: not a Kineto or Chrome trace")
        if data[: bare.start()].strip():
            self._report.repairs["damaged header"] += 1
        return data[bare.end() :]

    def _keys(self, text: bytes, where: str) -> dict[str, Any]:
        try:
            keys = msgspec.json.decode(text.strip(), type=dict[str, Any])
        except ERRORS:
            keys = _salvaged_keys(text)
            self._report.repairs[f"damaged {where}"] += 1
        return keys

    def _keep_tail(self, chunk: bytes) -> None:
        self._tail_bytes += len(chunk)
        if self._tail is not None and self._tail_bytes < _TAIL_LIMIT:
            self._tail.append(chunk)

    def _piece(self, array: bytes) -> Events:
        try:
            return self._decoder.decode(array)
        except ERRORS:
            return self._salvaged(array[1:-1], final=False)

    def _finish(self, text: bytes) -> Iterator[Events]:
        self.piece += 1
        cut = last_cut(text)
        if cut is not None:
            yield self._piece(b"[" + text[: cut[0]] + b"]")
            if self._ended():
                self._keep_tail(text[cut[0] :])
                return
            text = text[cut[1] :]
        yield self._salvaged(text, final=True)
        if self._tail is None:
            self._report.truncated = True

    def _salvaged(self, text: bytes, *, final: bool) -> Events:
        events, tail = salvage(text, final, self._report)
        if tail is not None:
            self._tail = []
            self._keep_tail(tail)
        return events, plain_codes(events)


def _salvaged_keys(text: bytes) -> dict[str, Any]:
    """The top-level values of a damaged header that still read one by one, in one pass over the text."""
    out: dict[str, Any] = {}
    at = 0
    while key := _KEY.search(text, at):
        begin = key.end()
        if text[begin : begin + 1] in (b"{", b"["):
            end = object_end(text, begin) or begin
        else:
            scalar = _SCALAR.match(text, begin)
            end = scalar.end() if scalar else begin
        try:
            out.setdefault(key[1].decode("ascii"), msgspec.json.decode(text[begin:end]))
        except ERRORS:
            end = begin
        at = max(end, begin)
    return out
