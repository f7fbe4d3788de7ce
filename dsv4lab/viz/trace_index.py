"""A timeline prepared for looking at: any window of a million slices as pixels' worth of numbers in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import UsageError
from dsv4lab.timeline.intervals import Intervals, Ints, intersect, merge, merge_all
from dsv4lab.timeline.timeline import UNKNOWN, Kind, Timeline
from dsv4lab.trace.analyse.categories import CATEGORIES, category_ids
from dsv4lab.trace.analyse.idle import CAUSES, GapColumns, gap_columns
from dsv4lab.trace.analyse.ops import layer_ids
from dsv4lab.viz import theme as themes
from dsv4lab.viz.spans import SpanIndex
from dsv4lab.viz.trace_window import Cells, Marks, Slices, Window
from dsv4lab.viz.tracks import Track, TrackRows, display_order, track_rows, with_roles

COLORINGS = ("category", "kernel", "layer")
WAITING, CALLING, RANGING = len(CATEGORIES), len(CATEGORIES) + 1, len(CATEGORIES) + 2
TONES = 32
MOST_SLICES = 12_000
MOST_IN_TRACK = 2_000


class TraceIndex:
    """Tracks of a timeline and what it takes to draw any window of them.

    ``tracks`` stay in order of their number; ``order`` is top to bottom. Raises :class:`UsageError` for an unknown
    grouping.
    """

    def __init__(self, timeline: Timeline, by: str = "stream", main: str | None = None) -> None:
        self.timeline = timeline
        self.by = by
        self.placed: TrackRows = track_rows(timeline, by)
        self.track_of = self.placed.track_of()
        self.counted = timeline.busy_mask[self.placed.rows] | (timeline.kind[self.placed.rows] >= int(Kind.HOST))
        self.merged = [self._merged(track) for track in range(len(self.placed.tracks))]
        busy = [one.length for one in self.merged]
        self.tracks: tuple[Track, ...] = with_roles(self.placed.tracks, busy, main or timeline.main_stream)
        self.order = display_order(self.tracks)
        self.device = [at for at, track in enumerate(self.tracks) if track.kind == "device"]
        self._colored: dict[str, tuple[NDArray[np.uint8], SpanIndex]] = {}

    def _merged(self, track: int) -> Intervals:
        part = slice(int(self.placed.first[track]), int(self.placed.first[track + 1]))
        keep = self.counted[part]
        start, end = self.placed.start[part], self.placed.end[part]
        return merge(start, end) if keep.all() else merge(start[keep], end[keep])

    @cached_property
    def span_ns(self) -> tuple[int, int]:
        """First start and last end of everything; ``(0, 1)`` for an empty timeline."""
        if not len(self.timeline):
            return 0, 1
        return int(self.placed.start.min()), max(int(self.placed.reach.max()), int(self.placed.start.min()) + 1)

    @cached_property
    def busy_span_ns(self) -> tuple[int, int]:
        """First start and last end on the device; of everything if nothing ran there."""
        whole = [self.merged[at] for at in self.device if len(self.merged[at].start)]
        if not whole:
            return self.span_ns
        return min(int(one.start[0]) for one in whole), max(int(one.end[-1]) for one in whole)

    @cached_property
    def positions(self) -> Ints:
        """``int64 [n]``: where each row of the timeline stands in :attr:`placed`."""
        out = np.empty(len(self.placed.rows), np.int64)
        out[self.placed.rows] = np.arange(len(out))
        return out

    @cached_property
    def busy(self) -> SpanIndex:
        """Union of the rows of each track."""
        return _indexed(self.merged)

    @cached_property
    def together(self) -> SpanIndex:
        """Group 0: the device tracks' unions, added; group 1: the union of them all."""
        every = [self.merged[at] for at in self.device]
        start = np.concatenate([one.start for one in every]) if every else np.zeros(0, np.int64)
        end = np.concatenate([one.end for one in every]) if every else start
        return _indexed([Intervals(start, end), merge_all(every)])

    @cached_property
    def hidden(self) -> SpanIndex:
        """What of each side track's union lies inside the main track of its rank."""
        mains = {self.tracks[at].rank: self.merged[at] for at in self.device if self.tracks[at].role == "main"}
        nothing = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))
        return _indexed(
            [
                _inside(self.merged[at], mains[track.rank]) if track.role == "side" else nothing
                for at, track in enumerate(self.tracks)
            ]
        )

    @cached_property
    def events(self) -> SpanIndex:
        """The rows that count, by track."""
        keep = self.counted
        return SpanIndex.build(self.placed.start[keep], self.placed.end[keep], self.track_of[keep], len(self.tracks))

    @cached_property
    def gaps(self) -> GapColumns:
        """Idle gaps of the whole timeline with their causes."""
        return gap_columns(self.timeline)

    @cached_property
    def idle(self) -> SpanIndex:
        """The gaps by cause."""
        gaps = self.gaps
        return SpanIndex.build(gaps.start_ns, gaps.start_ns + gaps.dur_ns, gaps.cause, len(CAUSES))

    @cached_property
    def categories(self) -> NDArray[np.int8]:
        """``int8 [n]``: category of every row of the timeline."""
        return category_ids(self.timeline)

    @cached_property
    def layers(self) -> NDArray[np.int32]:
        """``int32 [n]``: layer of every row of the timeline, -1 where it is not known."""
        return layer_ids(self.timeline)

    @cached_property
    def layer_numbers(self) -> list[int]:
        """The layers that occur, ascending."""
        known = self.layers[self.layers >= 0]
        return np.flatnonzero(np.bincount(known)).tolist() if len(known) else []

    def colored(self, coloring: str) -> tuple[NDArray[np.uint8], SpanIndex]:
        """The tone of every position, and the positions by track and tone. Raises :class:`UsageError`."""
        if coloring not in COLORINGS:
            raise UsageError(f"color={coloring!r} is unknown, it takes one of: {', '.join(COLORINGS)}")
        if coloring not in self._colored:
            tone = self._tones(coloring)[self.placed.rows]
            group = self.track_of * TONES + tone
            spans = SpanIndex.build(self.placed.start, self.placed.end, group, len(self.tracks) * TONES)
            self._colored[coloring] = tone, spans
        return self._colored[coloring]

    def _tones(self, coloring: str) -> NDArray[np.uint8]:
        if coloring == "category":
            tone = self.categories.astype(np.uint8)
        elif coloring == "kernel":
            table = np.array([*(RANGING + 1 + themes.kernel_tone(name) for name in self.timeline.names), RANGING])
            tone = table.astype(np.uint8)[self.timeline.name]
        else:
            tone = np.where(self.layers == UNKNOWN, CATEGORIES.index("other"), RANGING + 1 + self.layers % 8)
            tone = tone.astype(np.uint8)
        tone[self.timeline.kind == int(Kind.WAIT)] = WAITING
        tone[self.timeline.kind == int(Kind.HOST)] = CALLING
        tone[self.timeline.kind == int(Kind.ANNOTATION)] = RANGING
        return tone

    def idle_shares(self, edges_ns: Ints) -> NDArray[np.uint8]:
        """Idle time by cause: ``[causes, columns]`` shares of the column from 0 to 255, above 0 where there is any."""
        time = self.idle.covered(range(len(CAUSES)), edges_ns)
        shares: NDArray[np.uint8] = np.ceil(255 * np.minimum(time / np.diff(edges_ns), 1.0)).astype(np.uint8)
        return shares

    def mark(self, rows: NDArray[np.bool_]) -> Marks:
        """Prepare a set of rows (``bool [n]``) for drawing."""
        at = np.flatnonzero(rows[self.placed.rows])
        track = self.track_of[at]
        return Marks(rows, SpanIndex.build(self.placed.start[at], self.placed.end[at], track, len(self.tracks)))

    def window(
        self,
        edges_ns: Ints,
        tracks: Sequence[int],
        coloring: str = "category",
        found: Marks | None = None,
        path: Marks | None = None,
        most_slices: int = MOST_SLICES,
    ) -> Window:
        """Draw ``tracks`` in the columns between ``edges_ns`` (increasing): slices while they are few, else cells."""
        parts = {t: self.placed.inside(t, int(edges_ns[0]), int(edges_ns[-1])) for t in tracks}
        single: list[int] = []
        room = most_slices
        for track in sorted(parts, key=lambda t: parts[t].stop - parts[t].start):
            size = parts[track].stop - parts[track].start
            if size <= min(room, MOST_IN_TRACK):
                single.append(track)
                room -= size
        many = [t for t in tracks if t not in set(single)]
        time = self.together.covered([0, 1], edges_ns) / np.diff(edges_ns)
        return Window(
            edges_ns,
            self._cells(many, edges_ns, coloring, found, path),
            self._slices([(t, parts[t]) for t in tracks if t in set(single)], int(edges_ns[0]), coloring, found, path),
            time[0].astype(np.float32),
            time[1].astype(np.float32),
        )

    def _cells(self, tracks: list[int], edges: Ints, coloring: str, found: Marks | None, path: Marks | None) -> Cells:
        width = np.diff(edges)
        share = np.ceil(255 * self.busy.covered(tracks, edges) / width).astype(np.uint8)
        count = self.events.measure(tracks, edges)[1].astype(np.int32)
        spans = self.colored(coloring)[1]
        pairs = edges if len(edges) < 3 else np.concatenate((edges[:-1:2], edges[-1:]))
        tone = np.zeros(share.shape, np.uint8)
        for at, track in enumerate(tracks):
            used = [g for g in range(track * TONES, (track + 1) * TONES) if spans.first[g] < spans.first[g + 1]]
            time = spans.covered(used, pairs)
            waits = [at for at, group in enumerate(used) if group % TONES == WAITING]
            if len(used) > len(waits):
                time[waits] = 0
            most = np.array(used, np.int64)[time.argmax(axis=0)] % TONES
            tone[at] = most if len(edges) < 3 else np.repeat(most, 2)[: len(width)]
        return Cells(tuple(tracks), share, tone, count, _touched(found, tracks, edges), _touched(path, tracks, edges))

    def _slices(
        self, parts: list[tuple[int, slice]], begin: int, coloring: str, found: Marks | None, path: Marks | None
    ) -> Slices:
        at = np.concatenate([np.arange(0), *(np.arange(p.start, p.stop) for _, p in parts)])
        at = at[self.placed.end[at] > begin]
        rows = self.placed.rows[at]
        flags = np.zeros(len(rows), np.uint8)
        for bit, marks in ((1, found), (2, path)):
            if marks is not None:
                flags[marks.rows[rows]] |= bit
        return Slices(
            row=rows.astype(np.int32),
            track=self.track_of[at].astype(np.int16),
            sub=self.placed.sub[at].astype(np.uint8),
            tone=self.colored(coloring)[0][at],
            flags=flags,
            name=self.timeline.name[rows],
            start_ns=self.placed.start[at],
            end_ns=self.placed.end[at],
        )


def _indexed(sets: list[Intervals]) -> SpanIndex:
    start = np.concatenate([np.zeros(0, np.int64), *(one.start for one in sets)])
    end = np.concatenate([np.zeros(0, np.int64), *(one.end for one in sets)])
    group = np.repeat(np.arange(len(sets)), [len(one.start) for one in sets])
    return SpanIndex.build(start, end, group, len(sets))


def _inside(side: Intervals, main: Intervals) -> Intervals:
    """``side`` within ``main``; only the part of ``main`` that can meet it is looked at."""
    if not len(side.start) or not len(main.start):
        return Intervals(side.start[:0], side.end[:0])
    low = int(np.searchsorted(main.end, side.start[0], side="right"))
    high = int(np.searchsorted(main.start, side.end[-1], side="left"))
    return intersect(side, Intervals(main.start[low:high], main.end[low:high]))


def _touched(marks: Marks | None, tracks: list[int], edges: Ints) -> NDArray[np.uint8]:
    if marks is None:
        return np.zeros((len(tracks), len(edges) - 1), np.uint8)
    time, count = marks.spans.measure(tracks, edges)
    return ((time > 0) | (count > 0)).astype(np.uint8)
