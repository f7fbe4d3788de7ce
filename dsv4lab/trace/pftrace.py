"""Perfetto's own format, written without a library: length-prefixed packets of a few fields.

Field numbers are those of Perfetto's ``trace_packet.proto``, ``track_descriptor.proto`` and ``track_event.proto``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import TraceError
from dsv4lab.timeline.busy import group
from dsv4lab.timeline.timeline import UNKNOWN, Ids, Timeline

_VARINT, _BYTES = 0, 2
_PACKET = 1
_TIMESTAMP, _SEQUENCE, _EVENT, _FLAGS, _INTERNED, _TRACK = 8, 10, 11, 13, 12, 60
_TRACK_UUID, _TRACK_NAME, _TRACK_PARENT = 1, 2, 5
_TYPE, _EVENT_TRACK, _NAME_ID, _CATEGORY = 9, 11, 10, 22
_EVENT_NAMES, _IID, _NAME = 2, 1, 2
_BEGIN, _END = 1, 2
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_OURS = 1
_PARENTS = {"stream": 1, "queue": 2}
_FIRST_TRACK = 16


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _block(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _block(field, text.encode("utf-8", "replace"))


def _packet(data: bytes) -> bytes:
    return _block(_PACKET, data + _number(_SEQUENCE, _OURS))


def sub_lanes(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int32]:
    """For rows in order of their start: a lane for each so that rows of one lane do not overlap, fewest lanes first."""
    out = np.zeros(len(start), np.int32)
    if len(start) and bool((start[1:] >= np.maximum.accumulate(end)[:-1]).all()):
        return out
    free: list[int] = []
    for at, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        lane = next((i for i, until in enumerate(free) if until <= begin), len(free))
        if lane == len(free):
            free.append(stop)
        else:
            free[lane] = stop
        out[at] = lane
    return out


def export_pftrace(timeline: Timeline, path: Path) -> Path:
    """Write busy rows as slices, on tracks by stream and again by hardware queue; overlapping rows lie side by side.

    Raises ``TraceError`` if the file cannot be written.
    """
    half = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with half.open("wb") as file:
            for packet in _packets(timeline):
                file.write(packet)
        os.replace(half, path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def _packets(timeline: Timeline) -> Iterator[bytes]:
    names = b"".join(
        _block(_EVENT_NAMES, _number(_IID, at + 1) + _text(_NAME, name)) for at, name in enumerate(timeline.names)
    )
    yield _packet(_number(_FLAGS, _STATE_CLEARED) + _block(_INTERNED, names))
    track = _FIRST_TRACK
    sides: tuple[tuple[str, Ids, tuple[str, ...]], ...] = (
        ("stream", timeline.stream, timeline.streams),
        ("queue", timeline.queue, timeline.queues),
    )
    for what, ids, labels in sides:
        rows = np.flatnonzero(timeline.busy_mask & ((ids != UNKNOWN) | (what == "stream")))
        if not len(rows):
            continue
        parent = _number(_TRACK_UUID, _PARENTS[what]) + _text(_TRACK_NAME, f"{what}s")
        yield _packet(_block(_TRACK, parent))
        for lane, inside in group(ids[rows]):
            own = rows[inside]
            own = own[np.argsort(timeline.start_ns[own], kind="stable")]
            lanes = sub_lanes(timeline.start_ns[own], timeline.end_ns[own])
            label = labels[lane] if lane != UNKNOWN else "unknown"
            for sub in range(int(lanes.max()) + 1):
                named = f"{what} {label}" + (f" (overlap {sub})" if sub else "")
                head = _number(_TRACK_UUID, track) + _number(_TRACK_PARENT, _PARENTS[what]) + _text(_TRACK_NAME, named)
                yield _packet(_block(_TRACK, head))
                yield from _slices(timeline, own[lanes == sub], track)
                track += 1


def _slices(timeline: Timeline, rows: NDArray[np.int64], track: int) -> Iterator[bytes]:
    columns = (timeline.start_ns[rows], timeline.end_ns[rows], timeline.name[rows])
    tail = _number(_FLAGS, _NEEDS_STATE)
    stop = _block(_EVENT, _number(_TYPE, _END) + _number(_EVENT_TRACK, track))
    for start, end, name in zip(*(c.tolist() for c in columns), strict=True):
        begin = _number(_TYPE, _BEGIN) + _number(_EVENT_TRACK, track) + _number(_NAME_ID, name + 1)
        yield _packet(_number(_TIMESTAMP, start) + _block(_EVENT, begin) + tail)
        yield _packet(_number(_TIMESTAMP, end) + stop + tail)
