"""Perfetto's own format, written without a library; :mod:`dsv4lab.trace.load.pftrace` reads it back.

Field numbers are those of Perfetto's ``trace_packet.proto``, ``track_descriptor.proto``, ``track_event.proto``,
``interned_data.proto`` and ``debug_annotation.proto``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import TraceError
from dsv4lab.timeline.busy import group
from dsv4lab.timeline.timeline import COLUMNS, UNKNOWN, Timeline
from dsv4lab.trace.load.own import OWN_KEY
from dsv4lab.trace.load.pftrace import OWN_COPY, OWN_ROW
from dsv4lab.trace.wire import block, number, text

_PACKET = 1
_TIMESTAMP, _SEQUENCE, _EVENT, _FLAGS, _INTERNED, _TRACK = 8, 10, 11, 13, 12, 60
_TRACK_UUID, _TRACK_NAME, _TRACK_PARENT = 1, 2, 5
_TYPE, _EVENT_TRACK, _NAME_ID, _CATEGORY_ID, _NOTE = 9, 11, 10, 3, 4
_CATEGORIES, _NAMES, _KEYS, _IID, _NAME = 1, 2, 3, 1, 2
_KEY_ID, _INT, _JSON = 1, 4, 9
_BEGIN, _END, _INSTANT = 1, 2, 3
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_OURS = 1
_HEADER_TRACK, _FIRST_TRACK = 3, 16
_PARENTS = {"stream": 1, "queue": 2}
_NOTES = tuple(name for name in COLUMNS if name not in ("start_ns", "dur_ns"))
_KEY_IDS = {key: at + 1 for at, key in enumerate(("row", "header", *_NOTES))}
_CATEGORY_IDS = {name: at + 1 for at, name in enumerate((OWN_KEY, OWN_ROW, OWN_COPY))}


def _packet(data: bytes) -> bytes:
    return block(_PACKET, data + number(_SEQUENCE, _OURS))


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
    """Write rows as slices on tracks by stream, busy rows again by hardware queue; overlapping rows lie side by side.

    Rows without a stream (host calls, annotations) have a track of their own. Annotations of the slices hold the other
    columns, so that the file reads back to the same timeline. Raises ``TraceError`` if it cannot be written.
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
    yield from _head(timeline)
    track = _FIRST_TRACK
    columns = {name: getattr(timeline, name) for name in _NOTES}
    for what, ids, labels in (
        ("stream", timeline.stream, timeline.streams),
        ("queue", timeline.queue, timeline.queues),
    ):
        busy = timeline.busy_mask & (ids != UNKNOWN)
        rows = np.arange(len(timeline)) if what == "stream" else np.flatnonzero(busy)
        if not len(rows):
            continue
        yield _packet(block(_TRACK, number(_TRACK_UUID, _PARENTS[what]) + text(_TRACK_NAME, f"{what}s")))
        for lane, inside in group(ids[rows]):
            own = rows[inside]
            own = own[np.argsort(timeline.start_ns[own], kind="stable")]
            lanes = sub_lanes(timeline.start_ns[own], timeline.end_ns[own])
            label = f"{what} {labels[lane]}" if lane != UNKNOWN else "no stream"
            for sub in range(int(lanes.max()) + 1):
                named = label + (f" (overlap {sub})" if sub else "")
                head = number(_TRACK_UUID, track) + number(_TRACK_PARENT, _PARENTS[what]) + text(_TRACK_NAME, named)
                yield _packet(block(_TRACK, head))
                yield from _slices(timeline, own[lanes == sub], track, columns if what == "stream" else {})
                track += 1


def _head(timeline: Timeline) -> Iterator[bytes]:
    """Names, categories and keys, and an instant that holds labels and meta data."""
    yield _packet(block(_TRACK, number(_TRACK_UUID, _HEADER_TRACK) + text(_TRACK_NAME, "dsv4lab")))
    tables = (
        (_CATEGORIES, _CATEGORY_IDS.items()),
        (_KEYS, _KEY_IDS.items()),
        (_NAMES, ((name, at + 2) for at, name in enumerate(timeline.names))),
    )
    names = b"".join(
        block(table, number(_IID, iid) + text(_NAME, name)) for table, entries in tables for name, iid in entries
    )
    yield _packet(number(_FLAGS, _STATE_CLEARED) + block(_INTERNED, names + block(_NAMES, number(_IID, 1))))
    labels = {key: getattr(timeline, key) for key in ("names", "streams", "queues", "main_stream")}
    facts = msgspec.json.encode(
        {OWN_KEY: labels, "meta": {k: v for k, v in timeline.meta.items() if k != "load_report"}}
    )
    note = block(_NOTE, number(_KEY_ID, _KEY_IDS["header"]) + block(_JSON, facts))
    start = int(timeline.start_ns.min()) if len(timeline) else 0
    event = number(_TYPE, _INSTANT) + number(_EVENT_TRACK, _HEADER_TRACK) + number(_CATEGORY_ID, _CATEGORY_IDS[OWN_KEY])
    yield _packet(number(_TIMESTAMP, start) + block(_EVENT, event + note) + number(_FLAGS, _NEEDS_STATE))


def _slices(
    timeline: Timeline, rows: NDArray[np.int64], track: int, columns: dict[str, NDArray[np.int64]]
) -> Iterator[bytes]:
    """Begin and end of every row; with ``columns`` as annotations it is a row to read back, else a copy."""
    category = number(_CATEGORY_ID, _CATEGORY_IDS[OWN_ROW if columns else OWN_COPY])
    where = number(_EVENT_TRACK, track)
    tail = number(_FLAGS, _NEEDS_STATE)
    stop = block(_EVENT, number(_TYPE, _END) + where)
    begin = number(_TYPE, _BEGIN) + where + category
    keys = {name: number(_KEY_ID, _KEY_IDS[name]) for name in ("row", *columns)}
    values = {"row": rows.tolist(), **{name: column[rows].tolist() for name, column in columns.items()}}
    times = zip(timeline.start_ns[rows].tolist(), timeline.end_ns[rows].tolist(), strict=True)
    for at, (start, end) in enumerate(times):
        event = begin + number(_NAME_ID, int(timeline.name[rows[at]]) + 2)
        if columns:
            known = ((keys[name], column[at]) for name, column in values.items() if column[at] != UNKNOWN)
            event += b"".join(block(_NOTE, key + number(_INT, value)) for key, value in known)
        yield _packet(number(_TIMESTAMP, start) + block(_EVENT, event) + tail)
        yield _packet(number(_TIMESTAMP, end) + stop + tail)
