"""Reading a stretch of events that does not parse as a whole: event by event, nothing complete lost."""

from __future__ import annotations

import re

from dsv4lab.trace.load.events import ERRORS, Event, decode_plain, read_one
from dsv4lab.trace.load.repair import repair
from dsv4lab.trace.load.report import LoadReport

FIRST_KEYS = rb'"(?:ph|name|cat|pid|tid|ts|args|id)"\s*:'
CUT = re.compile(rb"\}\s*,\s*(?=\{\s*" + FIRST_KEYS + rb")")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_CLOSE = re.compile(rb"\}\s*\]")
_BATCH = 64
_CLOSES_TRIED = 10


def object_end(text: bytes, begin: int = 0) -> int | None:
    """Where the JSON value that begins at ``begin`` ends (exclusive), strings respected; ``None`` if it does not."""
    depth = 0
    for token in _TOKEN.finditer(text, begin):
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth <= 0:
                return token.end()
    return None


def salvage(text: bytes, final: bool, report: LoadReport) -> tuple[list[Event], bytes | None]:
    """The events in ``text`` and, if the array ends inside it, what follows its bracket (else ``None``).

    ``final`` says that ``text`` ends with the file. Repairs and losses are counted in ``report``.
    """
    work = _Salvage(text, report)
    middle = len(work.starts) - (1 if final else 0)
    for first in range(0, middle, _BATCH):
        work.batch(first, min(first + _BATCH, middle))
        if work.tail is not None:
            return work.events, work.tail
    if final:
        work.last(text[work.starts[-1] :].strip())
    return work.events, work.tail


class _Salvage:
    def __init__(self, text: bytes, report: LoadReport) -> None:
        cuts = [(m.start() + 1, m.end()) for m in CUT.finditer(text)]
        self.text = text
        self.report = report
        self.starts = [0, *(after for _, after in cuts)]
        self.ends = [*(before for before, _ in cuts), len(text)]
        self.events: list[Event] = []
        self.tail: bytes | None = None

    def batch(self, first: int, upto: int) -> None:
        try:
            self.events += decode_plain(b"[" + self.text[self.starts[first] : self.ends[upto - 1]] + b"]")
        except ERRORS:
            for at in range(first, upto):
                self._single(at)
                if self.tail is not None:
                    return

    def _single(self, at: int) -> None:
        one = self.text[self.starts[at] : self.ends[at]]
        event = read_one(one)
        if event is not None:
            self.events.append(event)
            return
        end = object_end(one)
        if end is not None and one[end:].lstrip()[:1] == b"]":
            found = repair(one[:end])
            if found is not None:
                self._keep(found)
                self.tail = self.text[self.text.index(b"]", self.starts[at] + end) + 1 :]
                return
        found = repair(one)
        if found is None:
            self.report.lost_events += 1
        else:
            self._keep(found)

    def last(self, one: bytes) -> None:
        """The last event of a file: followed by a bracket and more keys, or cut off."""
        if not one or one[:1] == b"]":
            self.tail = one[1:] if one else None
            return
        end = object_end(one)
        ends = [end] if end is not None and one[end:].lstrip()[:1] == b"]" else []
        for close in (*ends, *(m.start() + 1 for m in list(_CLOSE.finditer(one))[:_CLOSES_TRIED])):
            found = repair(one[:close])
            if found is not None:
                self._keep(found)
                self.tail = one[one.index(b"]", close) + 1 :]
                return
        found = repair(one)
        if found is None:
            self.report.lost_bytes += len(one)
        else:
            self._keep(found)

    def _keep(self, found: tuple[Event, list[str]]) -> None:
        event, kinds = found
        self.events.append(event)
        self.report.repairs.update(kinds)
