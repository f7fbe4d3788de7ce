"""Tracks of the trace explorer: which rows of a timeline stand in which line, and in what order the lines come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import UsageError
from dsv4lab.timeline.intervals import Ints, is_sorted
from dsv4lab.timeline.timeline import UNKNOWN, Kind, Timeline

GROUPINGS = ("stream", "queue", "rank")
DEEPEST = 8
_DEVICE, _CALLS, _RANGES = 0, 1, 2
KINDS = ("device", "calls", "ranges")


@dataclass(frozen=True, slots=True)
class Track:
    """A line of the picture. ``kind`` is one of :data:`KINDS`; ``role`` is ``main`` or ``side`` on the device.

    ``busy_ns`` is the union of its rows, ``depth`` how many rows lie over each other at most, at most ``DEEPEST``.
    """

    label: str
    kind: str
    rank: int
    rows: int
    busy_ns: int = 0
    role: str = ""
    depth: int = 1


@dataclass(frozen=True, eq=False, slots=True)
class TrackRows:
    """Rows sorted by track, then by start. ``rows[first[t]:first[t + 1]]`` are the row numbers of track ``t``.

    ``start``, ``end`` and ``sub`` (the line within the track) are in that order; ``reach`` is the latest end so far in
    the track.
    """

    tracks: tuple[Track, ...]
    rows: Ints
    first: Ints
    start: Ints
    end: Ints
    reach: Ints
    sub: NDArray[np.int8]

    def inside(self, track: int, start_ns: int, end_ns: int) -> slice:
        """Positions of a track's rows that may touch ``[start_ns, end_ns)``; the first of them may end before it."""
        low, high = int(self.first[track]), int(self.first[track + 1])
        begin = low + int(np.searchsorted(self.reach[low:high], start_ns, side="right"))
        stop = low + int(np.searchsorted(self.start[low:high], end_ns, side="left"))
        return slice(begin, max(begin, stop))

    def track_of(self) -> NDArray[np.int64]:
        """``int64 [n]``: the track of every position."""
        return np.repeat(np.arange(len(self.tracks)), np.diff(self.first))


def track_rows(timeline: Timeline, by: str = "stream") -> TrackRows:
    """Sort a timeline into tracks by ``stream``, ``queue`` or ``rank``; calls and ranges of the host stand apart.

    Where the source names queues but no streams, tracks by stream are queues. Raises :class:`UsageError` for another
    ``by``.
    """
    if by not in GROUPINGS:
        raise UsageError(f"tracks={by!r} is unknown, it takes one of: {', '.join(GROUPINGS)}")
    key, kind, lane = _keys(timeline, by)
    used, of = _compact(key)
    order = np.argsort(of, kind="stable")
    first = np.searchsorted(of[order], np.arange(len(used) + 1)).astype(np.int64)
    start = timeline.start_ns[order]
    _sort_inside(order, start, first)
    start = timeline.start_ns[order]
    end = timeline.end_ns[order]
    reach, sub = np.empty_like(end), np.zeros(len(order), np.int8)
    tracks = []
    for at in range(len(used)):
        part = slice(int(first[at]), int(first[at + 1]))
        reach[part] = np.maximum.accumulate(end[part])
        rows = order[part]
        if by == "rank" and kind[rows[0]] == _DEVICE:
            sub[part] = _by_size(lane[rows])
        else:
            sub[part] = _levels(start[part], end[part], reach[part])
        depth = int(sub[part].max(initial=0)) + 1
        tracks.append(_track(timeline, by, int(rows[0]), int(kind[rows[0]]), lane, len(rows), depth))
    return TrackRows(tuple(tracks), order.astype(np.int64), first, start, end, reach, sub)


def _keys(timeline: Timeline, by: str) -> tuple[Ints, NDArray[np.int8], NDArray[np.int32]]:
    """A number for every row's track, what kind of track that is, and the row's lane on the device."""
    kind = np.full(len(timeline), _DEVICE, np.int8)
    kind[timeline.kind == int(Kind.HOST)] = _CALLS
    kind[timeline.kind == int(Kind.ANNOTATION)] = _RANGES
    lane = timeline.queue if by == "queue" or _only_queues(timeline) else timeline.stream
    apart = lane.astype(np.int64) + 1 if by != "rank" else np.zeros(len(timeline), np.int64)
    width = int(apart.max(initial=0)) + 1
    key = (timeline.rank.astype(np.int64) * len(KINDS) + kind) * width + np.where(kind == _DEVICE, apart, 0)
    return key, kind, lane


def _only_queues(timeline: Timeline) -> bool:
    return bool(timeline.queues) and not bool((timeline.stream[timeline.busy_mask] != UNKNOWN).any())


def _compact(key: Ints) -> tuple[Ints, NDArray[np.signedinteger[Any]]]:
    """The distinct keys, and for every row the place of its key among them."""
    low = int(key.min()) if len(key) else 0
    span = int(key.max()) - low + 1 if len(key) else 0
    if span > 1 << 22:
        used, inverse = np.unique(key, return_inverse=True)
        return used, np.asarray(inverse, np.int64)
    seen = np.bincount(key - low, minlength=span) > 0
    place: NDArray[np.signedinteger[Any]] = (np.cumsum(seen) - 1).astype(np.int64)
    if int(seen.sum()) < 2**15:
        place = place.astype(np.int16)  # which numpy sorts by radix
    return (np.flatnonzero(seen) + low).astype(np.int64), place[key - low]


def _sort_inside(order: Ints, start: Ints, first: Ints) -> None:
    """Sort ``order`` by start within each track, where it is not in order already."""
    for low, high in zip(first[:-1].tolist(), first[1:].tolist(), strict=True):
        if not is_sorted(start[low:high]):
            order[low:high] = order[low:high][np.argsort(start[low:high], kind="stable")]


def _by_size(lane: NDArray[np.int32]) -> NDArray[np.int8]:
    """A line for each lane of a rank, the one with most rows first; the last line takes what is left."""
    ids, inverse, count = np.unique(lane, return_inverse=True, return_counts=True)
    line = np.empty(len(ids), np.int8)
    line[np.argsort(-count, kind="stable")] = np.minimum(np.arange(len(ids)), DEEPEST - 1)
    return line[inverse]


def _levels(start: Ints, end: Ints, reach: Ints) -> NDArray[np.int8]:
    """The first free line for every row, in order of starts: 0 wherever nothing overlaps."""
    out = np.zeros(len(start), np.int8)
    overlaps = start[1:] < reach[:-1]
    if not overlaps.any():
        return out
    involved = np.flatnonzero(np.concatenate(([False], overlaps)) | np.concatenate((overlaps, [False])))
    free = [-(2**63)] * DEEPEST
    levels = []
    for s, e in zip(start[involved].tolist(), end[involved].tolist(), strict=True):
        level = 0
        while level < DEEPEST - 1 and free[level] > s:
            level += 1
        free[level] = e
        levels.append(level)
    out[involved] = levels
    return out


def _track(timeline: Timeline, by: str, row: int, kind: int, lane: NDArray[np.int32], rows: int, depth: int) -> Track:
    rank = int(timeline.rank[row])
    if kind != _DEVICE:
        return Track("host calls" if kind == _CALLS else "ranges", KINDS[kind], rank, rows, depth=depth)
    if by == "rank":
        return Track(f"rank {rank}", KINDS[kind], rank, rows, depth=depth)
    labels = timeline.queues if lane is timeline.queue else timeline.streams
    at = int(lane[row])
    return Track(labels[at] if at != UNKNOWN else "unknown", KINDS[kind], rank, rows, depth=depth)


def with_roles(tracks: tuple[Track, ...], busy_ns: list[int], main: str | None) -> tuple[Track, ...]:
    """Tracks with their busy time and role: of each rank's device tracks the named one is main, else the busiest."""
    best: dict[int, int] = {}
    for at, track in enumerate(tracks):
        if track.kind != KINDS[_DEVICE]:
            continue
        named = main is not None and main in (track.label, track.label.rpartition("/")[2])
        held = best.get(track.rank)
        if held is None or named or (busy_ns[at] > busy_ns[held] and not _is_named(tracks[held], main)):
            best[track.rank] = at
    mains = set(best.values())
    roles = ["" if t.kind != KINDS[_DEVICE] else "main" if at in mains else "side" for at, t in enumerate(tracks)]
    return tuple(replace(t, busy_ns=b, role=r) for t, b, r in zip(tracks, busy_ns, roles, strict=True))


def _is_named(track: Track, main: str | None) -> bool:
    return main is not None and main in (track.label, track.label.rpartition("/")[2])


def display_order(tracks: tuple[Track, ...]) -> list[int]:
    """Track numbers from top to bottom: rank by rank, ranges and calls of the host, main, then side by busy time."""
    place = {"ranges": 0, "calls": 1, "device": 2}
    return sorted(
        range(len(tracks)),
        key=lambda t: (tracks[t].rank, place[tracks[t].kind], tracks[t].role != "main", -tracks[t].busy_ns),
    )
