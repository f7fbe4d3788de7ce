"""Timelines of several ranks as one: lanes read ``rank0/main``. One clock is taken for granted, as on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.timeline import COLUMNS, UNKNOWN, Timeline

_CORRELATION_BITS = 48


def of_rank(timeline: Timeline, rank: int) -> Timeline:
    """``timeline`` as that of ``rank``: named lanes, and correlations that no other rank has."""
    known = timeline.correlation != UNKNOWN
    return replace(
        timeline,
        rank=np.full(len(timeline), rank, np.int32),
        correlation=np.where(known, timeline.correlation + (rank << _CORRELATION_BITS), UNKNOWN),
        streams=tuple(f"rank{rank}/{stream}" for stream in timeline.streams),
        queues=tuple(f"rank{rank}/{queue}" for queue in timeline.queues),
        meta={**timeline.meta, "ranks": [rank]},
    )


def side_by_side(parts: Sequence[Timeline]) -> Timeline:
    """One timeline of ``parts``, lowest rank first; ``meta`` is the first one's, with the ranks of all.

    Labels are shared by name. Raises ``ValueError`` without parts.
    """
    if not parts:
        raise ValueError("a timeline of ranks needs at least one")
    parts = sorted(parts, key=lambda part: tuple(part.meta.get("ranks", ())))
    names, streams, queues = ({label: i for i, label in enumerate(_labels(parts, kind))} for kind in _LABELS)
    columns: dict[str, list[NDArray[Any]]] = {column: [] for column in COLUMNS}
    for part in parts:
        tables = {
            "name": [names[n] for n in part.names],
            "op": [names[n] for n in part.names],
            "stream": [streams[s] for s in part.streams],
            "queue": [queues[q] for q in part.queues],
        }
        for column in COLUMNS:
            ids = getattr(part, column)
            columns[column].append(np.array([*tables[column], UNKNOWN], np.int32)[ids] if column in tables else ids)
    ranks = list(dict.fromkeys(rank for part in parts for rank in part.meta.get("ranks", ())))
    return Timeline.build(
        **{column: np.concatenate(values) for column, values in columns.items()},
        names=tuple(names),
        streams=tuple(streams),
        queues=tuple(queues),
        main_stream=parts[0].main_stream,
        meta={**parts[0].meta, "ranks": ranks},
        warnings=tuple(dict.fromkeys(w for part in parts for w in part.warnings)),
    )


_LABELS = ("names", "streams", "queues")


def _labels(parts: Sequence[Timeline], kind: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(label for part in parts for label in getattr(part, kind)))
