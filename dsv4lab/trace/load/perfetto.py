"""Slices of a Perfetto trace: packets, what sequences intern, clocks, tracks, begin and end.

Field numbers are those of Perfetto's ``trace_packet.proto``, ``track_event.proto``, ``track_descriptor.proto``,
``interned_data.proto``, ``debug_annotation.proto``, ``clock_snapshot.proto`` and ``trace_stats.proto``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dsv4lab.trace.load.report import LoadReport
from dsv4lab.trace.wire import fields, read_varint, signed

PACKET = 0x0A
_SLICES = {1: "begin", 2: "end", 3: "instant"}
_CLEARED, _NEEDS_STATE = 1, 2
_FIRST_OWN_CLOCK = 64
_BOOT = 6
_FRAMES_TRUSTED = 3
_MOST_INFLATED = 1 << 30
_LOST_IN_BUFFER = (3, 18, 19, 22)  # chunks overwritten, chunks discarded, packets lost by writers, oversized ones
_NO_END = "slices without an end"


@dataclass(slots=True)
class Slice:
    """A slice: times in ns, ``notes`` the debug annotations by name, numbers and text."""

    name: str
    category: str
    track: str
    start: int
    end: int
    notes: dict[str, int | str]


@dataclass(slots=True)
class _Clock:
    """A sequence's own clock: what to add to its times, and where an incremental one stands."""

    shift: int
    unit: int
    incremental: bool
    now: int


@dataclass(slots=True)
class _Sequence:
    """What the packets of one writer refer to. ``valid`` is off after a lost packet until the state is cleared."""

    valid: bool = False
    seen: bool = False
    names: dict[int, str] = field(default_factory=dict)
    categories: dict[int, str] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    clocks: dict[int, _Clock] = field(default_factory=dict)
    clock: int = 0
    track: int = 0


class PerfettoReader:
    """Iterates over the complete slices of ``data``; instants have no length. Losses are counted in ``report``."""

    def __init__(self, data: bytes, report: LoadReport) -> None:
        self._data = data
        self._report = report
        self._sequences: dict[int, _Sequence] = {}
        self._tracks: dict[int, str] = {}
        self._open: dict[int, list[tuple[Slice, int]]] = {}

    def __iter__(self) -> Iterator[Slice]:
        for packet in self._packets(self._data):
            try:
                yield from self._packet(packet)
            except (ValueError, TypeError, zlib.error):
                self._report.lost_events += 1
        left = sum(map(len, self._open.values()))
        if left:
            self._report.findings[_NO_END] += left
            self._report.lost_events += left

    def track_name(self, uuid: int) -> str:
        """The name of a track as far as it is known."""
        return self._tracks.get(uuid, "")

    def _packets(self, data: bytes) -> Iterator[bytes]:
        """Packets by their frames; where a frame is broken, from the next place that looks like one."""
        at, end = 0, len(data)
        while at < end:
            after = _frame(data, at)
            if after is None:
                found = _next_frame(data, at + 1)
                if found is None:
                    self._report.truncated = True
                    self._report.lost_bytes += end - at
                    return
                self._report.lost_events += 1
                self._report.repairs["broken packet frame"] += 1
                at = found
                continue
            body, at = after
            yield data[body:at]

    def _packet(self, packet: bytes) -> Iterator[Slice]:
        values: dict[int, Any] = dict(fields(packet))
        sequence = self._sequences.setdefault(values.get(10, 0), _Sequence())
        flags = values.get(13, 0)
        if values.get(42) and sequence.seen:
            self._report.findings["packets lost while recording"] += 1
            sequence.valid = False
        if flags & _CLEARED or values.get(41):
            self._sequences[values.get(10, 0)] = sequence = _Sequence(valid=True)
        sequence.seen = True
        if 50 in values:
            inflated = zlib.decompressobj().decompress(values[50], _MOST_INFLATED)
            for inner in self._packets(inflated):
                yield from self._packet(inner)
            return
        if 59 in values:
            self._defaults(sequence, values[59])
        if 6 in values:
            _clocks(sequence, values[6])
        if 12 in values:
            _intern(sequence, values[12])
        if 60 in values:
            self._describe(values[60])
        if 35 in values:
            self._stats(values[35])
        if 11 in values:
            if flags & _NEEDS_STATE and not sequence.valid:
                self._report.lost_events += 1
                return
            time = _time(sequence, values.get(8, 0), values.get(58, sequence.clock))
            yield from self._event(sequence, values[11], time)

    def _defaults(self, sequence: _Sequence, data: bytes) -> None:
        values: dict[int, Any] = dict(fields(data))
        sequence.clock = values.get(58, sequence.clock)
        if 11 in values:
            sequence.track = dict(fields(values[11])).get(11, sequence.track)

    def _describe(self, data: bytes) -> None:
        values: dict[int, Any] = dict(fields(data))
        name = values.get(2) or values.get(10)
        if name is None and 4 in values:
            name = dict(fields(values[4])).get(5)
        self._tracks[values.get(1, 0)] = _text(name or b"")

    def _stats(self, data: bytes) -> None:
        for number, value in fields(data):
            if number == 1 and isinstance(value, bytes):
                lost = sum(int(v) for n, v in fields(value) if n in _LOST_IN_BUFFER and isinstance(v, int))
                if lost:
                    self._report.findings["chunks or packets lost while recording"] += lost

    def _event(self, sequence: _Sequence, data: bytes, time: int) -> Iterator[Slice]:
        kind, track, name, category = 0, sequence.track, "", ""
        notes: dict[str, int | str] = {}
        for number, value in fields(data):
            if number == 9:
                kind = value
            elif number == 11:
                track = value
            elif number == 10:
                name = sequence.names.get(value, "")
            elif number == 23:
                name = _text(value)
            elif number == 3:
                category = sequence.categories.get(value, "")
            elif number == 22:
                category = _text(value)
            elif number == 4:
                _annotate(sequence, value, notes)
        what = _SLICES.get(kind)
        if what == "end":
            stack = self._open.get(track)
            if stack:
                yield self._closed(stack.pop(), time)
            else:
                self._report.findings["ends without a begin"] += 1
        elif what is not None:
            self._report.events += 1
            begun = Slice(name, category, "", time, time, notes), track
            if what == "begin":
                self._open.setdefault(track, []).append(begun)
            else:
                yield self._closed(begun, time)

    def _closed(self, begun: tuple[Slice, int], time: int) -> Slice:
        found, track = begun
        found.end, found.track = time, self.track_name(track)
        return found


def _frame(data: bytes, at: int) -> tuple[int, int] | None:
    """Where the packet framed at ``at`` begins and ends; ``None`` if there is none that fits."""
    if at >= len(data) or data[at] != PACKET:
        return None
    try:
        size, body = read_varint(data, at + 1)
    except ValueError:
        return None
    return (body, body + size) if body + size <= len(data) else None


def _next_frame(data: bytes, at: int) -> int | None:
    """The next place from which a few frames follow each other."""
    while (at := data.find(PACKET, at)) >= 0:
        after: int | None = at
        for _ in range(_FRAMES_TRUSTED):
            found = _frame(data, after) if after is not None and after < len(data) else None
            if found is None:
                break
            after = found[1]
        else:
            return at
        if after == len(data) and after > at:
            return at
        at += 1
    return None


def _time(sequence: _Sequence, value: int, clock_id: int) -> int:
    """A packet's time in ns on the trace's clock."""
    clock = sequence.clocks.get(clock_id)
    if clock is None:
        return signed(value)
    if clock.incremental:
        clock.now += value * clock.unit
        return clock.now + clock.shift
    return signed(value) * clock.unit + clock.shift


def _clocks(sequence: _Sequence, data: bytes) -> None:
    """The sequence's own clocks, tied to the boot clock (else to the first one of the snapshot that is not its own)."""
    found = [dict(fields(value)) for number, value in fields(data) if number == 1 and isinstance(value, bytes)]
    shared = {int(c.get(1, 0)): signed(int(c.get(2, 0))) for c in found if int(c.get(1, 0)) < _FIRST_OWN_CLOCK}
    base = shared.get(_BOOT, next(iter(shared.values()), None))
    for clock in found:
        own, unit = int(clock.get(1, 0)), int(clock.get(4, 1)) or 1
        if own >= _FIRST_OWN_CLOCK:
            now = signed(int(clock.get(2, 0))) * unit
            shift = 0 if base is None else base - now
            sequence.clocks[own] = _Clock(shift, unit, bool(clock.get(3)), now)


def _intern(sequence: _Sequence, data: bytes) -> None:
    tables = {1: sequence.categories, 2: sequence.names, 3: sequence.keys, 29: sequence.texts}
    for number, value in fields(data):
        table = tables.get(number)
        if table is not None and isinstance(value, bytes):
            entry: dict[int, Any] = dict(fields(value))
            table[entry.get(1, 0)] = _text(entry.get(2, b""))


def _annotate(sequence: _Sequence, data: bytes, notes: dict[str, int | str]) -> None:
    """One debug annotation: integers and text; others are of no use here."""
    key = ""
    found: int | str | None = None
    for number, value in fields(data):
        if number == 1:
            key = sequence.keys.get(value, "")
        elif number == 10:
            key = _text(value)
        elif number in (2, 3, 4, 7):
            found = signed(value)
        elif number in (6, 9):
            found = _text(value)
        elif number == 17:
            found = sequence.texts.get(value, "")
    if found is not None:
        notes[key] = found


def _text(value: int | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
