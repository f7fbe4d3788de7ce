"""Timelines on the wire: columns as raw little-endian bytes."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from dsv4lab.errors import EngineError
from dsv4lab.timeline.timeline import COLUMNS, Timeline

_EMPTY = Timeline.build(start_ns=[], dur_ns=[], stream=[], name=[], names=(), streams=())
_DTYPES = {name: getattr(_EMPTY, name).dtype.newbyteorder("<") for name in COLUMNS}


class WireTimeline(msgspec.Struct, frozen=True):
    """A :class:`Timeline`; ``columns`` has every column's bytes by its name."""

    columns: dict[str, bytes]
    names: tuple[str, ...]
    streams: tuple[str, ...]
    queues: tuple[str, ...]
    main_stream: str | None
    meta: dict[str, Any]
    warnings: tuple[str, ...]


def pack_timeline(timeline: Timeline) -> WireTimeline:
    """``timeline`` for the wire."""
    return WireTimeline(
        columns={name: getattr(timeline, name).astype(dtype).tobytes() for name, dtype in _DTYPES.items()},
        names=timeline.names,
        streams=timeline.streams,
        queues=timeline.queues,
        main_stream=timeline.main_stream,
        meta=dict(timeline.meta),
        warnings=timeline.warnings,
    )


def unpack_timeline(wire: WireTimeline) -> Timeline:
    """The inverse of :func:`pack_timeline`. Raises :class:`EngineError` on columns that are missing or do not agree."""
    try:
        columns = {name: np.frombuffer(wire.columns[name], dtype) for name, dtype in _DTYPES.items()}
        timeline = Timeline.build(
            **columns,
            names=wire.names,
            streams=wire.streams,
            queues=wire.queues,
            main_stream=wire.main_stream,
            meta=wire.meta,
            warnings=wire.warnings,
        )
        timeline.check()
    except (KeyError, ValueError) as error:
        raise EngineError(f"malformed message: timeline: {error}") from error
    return timeline
