"""A trace as torch's profiler wrote it, with the ranges, launches and device rows that a capture looks at."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from dsv4lab.errors import TraceError
from dsv4lab.trace.load.numbers import micros

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
RANGE = "user_annotation"


class RawEvent(msgspec.Struct, gc=False, omit_defaults=True):
    """One event; numbers stay as they were written."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    dur: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    id: Any = None
    bp: str | None = None
    s: str | None = None
    args: dict[str, Any] | None = None

    @property
    def start(self) -> int:
        """Nanoseconds; 0 where there are none."""
        return 0 if isinstance(self.ts, msgspec.UnsetType) else micros(bytes(self.ts)) or 0

    def arg(self, key: str) -> Any:
        """An argument, None if there is none of this name."""
        return None if self.args is None else self.args.get(key)


@dataclass(frozen=True, slots=True)
class Span:
    """An event with its times in nanoseconds."""

    event: RawEvent
    start: int
    end: int

    @classmethod
    def of(cls, event: RawEvent) -> Span:
        """The slice of ``event``."""
        start = event.start
        length = 0 if isinstance(event.dur, msgspec.UnsetType) else micros(bytes(event.dur)) or 0
        return cls(event, start, start + max(0, length))


class Spans:
    """Slices that do not overlap (ranges of one kind), found by a time in them."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.all = sorted(spans, key=attrgetter("start"))
        self._starts = [span.start for span in self.all]

    def at(self, time: int) -> Span | None:
        """The one that covers ``time``."""
        found = self.last(time)
        return found if found is not None and time < found.end else None

    def last(self, time: int) -> Span | None:
        """The last one that began until ``time``."""
        at = bisect_right(self._starts, time) - 1
        return self.all[at] if at >= 0 else None


@dataclass(slots=True)
class RawTrace:
    """Header and events of a file."""

    header: dict[str, Any]
    events: list[RawEvent]

    @classmethod
    def read(cls, path: Path) -> RawTrace:
        """A file that torch's profiler wrote just now. Raises :class:`TraceError` if it is none."""
        try:
            document = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
            events = msgspec.json.decode(document.pop("traceEvents"), type=list[RawEvent])
            header = {key: msgspec.json.decode(value) for key, value in document.items()}
        except (OSError, KeyError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TraceError(f"{path}: not what torch's profiler writes: {error}") from None
        return cls(header, events)

    def spans(self, *categories: str) -> list[Span]:
        """Complete slices of these categories, in order of start."""
        found = [Span.of(e) for e in self.events if e.ph == "X" and e.cat in categories]
        return sorted(found, key=attrgetter("start"))
