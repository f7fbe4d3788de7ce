"""Work by kernel, operator, layer or category."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import UsageError
from dsv4lab.timeline.busy import group
from dsv4lab.timeline.intervals import merge, merge_all
from dsv4lab.timeline.timeline import UNKNOWN, Ids, Kind, Timeline
from dsv4lab.trace.analyse.categories import CATEGORIES, category, category_ids

KEYS = ("name", "op", "layer", "category", "stream", "queue")
_LAYER = re.compile(r"(?:^|[^a-z])(?:layers?[._ \[#]?|L)(\d{1,4})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WorkTime:
    """Rows that share a key. ``share`` is of the sum of all durations."""

    key: str
    category: str
    rows: int
    sum_dur_ns: int
    busy_ns: int
    mean_ns: float
    median_ns: int
    min_ns: int
    max_ns: int
    streams: int
    share: float


def layer_ids(timeline: Timeline) -> Ids:
    """``int32 [n]``: layer of every row, from its own column, else from the annotation that it was launched in."""
    if bool((timeline.layer != UNKNOWN).any()):
        return timeline.layer
    numbers = np.array([*(_layer(name) for name in timeline.names), UNKNOWN], np.int32)
    out = np.full(len(timeline), UNKNOWN, np.int32)
    marked = (
        (timeline.kind == int(Kind.ANNOTATION)) & (timeline.stream == UNKNOWN) & (numbers[timeline.name] != UNKNOWN)
    )
    for rank in np.unique(timeline.rank[marked]):
        marks = np.flatnonzero(marked & (timeline.rank == rank))
        marks = marks[np.argsort(timeline.start_ns[marks], kind="stable")]
        rows = np.flatnonzero(timeline.busy_mask & (timeline.rank == rank) & (timeline.queued_ns != UNKNOWN))
        at = np.searchsorted(timeline.start_ns[marks], timeline.queued_ns[rows], side="right") - 1
        inside = (at >= 0) & (timeline.queued_ns[rows] < timeline.end_ns[marks][np.maximum(at, 0)])
        out[rows[inside]] = numbers[timeline.name[marks[at[inside]]]]
    return out


def _layer(name: str) -> int:
    found = _LAYER.search(name)
    return int(found[1]) if found else UNKNOWN


def _keys(timeline: Timeline, by: str) -> tuple[Ids, list[str]]:
    """The id of every row's key and the texts of the ids; the last text is for rows without a key."""
    if by == "layer":
        ids = layer_ids(timeline)
        return ids, [f"layer {n}" for n in range(int(ids.max()) + 1 if len(ids) else 0)] + ["no layer"]
    if by == "category":
        return category_ids(timeline).astype(np.int32), [*CATEGORIES, "none"]
    labels = {"name": timeline.names, "op": timeline.names, "stream": timeline.streams, "queue": timeline.queues}
    if by not in labels:
        raise UsageError(f"cannot group by {by!r}: it takes {', '.join(KEYS)}")
    return getattr(timeline, by), [*labels[by], "unknown"]


def work(timeline: Timeline, by: str = "name") -> list[WorkTime]:
    """Busy rows grouped by one of :data:`KEYS`, largest sum first. Raises ``UsageError`` for another key."""
    ids, texts = _keys(timeline, by)
    busy = np.flatnonzero(timeline.busy_mask)
    total = int(timeline.dur_ns[busy].sum())
    categories = category_ids(timeline)
    out = []
    for key, inside in group(ids[busy]):
        rows = busy[inside]
        dur = timeline.dur_ns[rows]
        out.append(
            WorkTime(
                key=texts[key],
                category=_category(texts[key], categories[rows], by),
                rows=len(rows),
                sum_dur_ns=int(dur.sum()),
                busy_ns=_busy(timeline, rows),
                mean_ns=float(dur.mean()),
                median_ns=int(np.median(dur)),
                min_ns=int(dur.min()),
                max_ns=int(dur.max()),
                streams=len(np.unique(timeline.stream[rows])),
                share=int(dur.sum()) / total if total else 0.0,
            )
        )
    return sorted(out, key=lambda w: -w.sum_dur_ns)


def _category(key: str, ids: NDArray[np.int8], by: str) -> str:
    if by == "name" and (ids == ids[0]).all():
        return CATEGORIES[ids[0]]
    return category(key) if by == "name" else CATEGORIES[int(np.bincount(ids).argmax())]


def _busy(timeline: Timeline, rows: NDArray[np.int64]) -> int:
    return merge_all([merge(timeline.start_ns[rows], timeline.end_ns[rows])]).length
