"""The kernel's side of the trace explorer: what the page asks, as plain messages, and the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import UsageError
from dsv4lab.timeline.timeline import UNKNOWN, Timeline
from dsv4lab.trace.analyse.categories import CATEGORIES
from dsv4lab.viz import flows
from dsv4lab.viz import trace_facts as facts
from dsv4lab.viz.downsample import bin_edges
from dsv4lab.viz.trace_index import COLORINGS, TraceIndex
from dsv4lab.viz.trace_window import Window
from dsv4lab.viz.tracks import GROUPINGS
from dsv4lab.widgets.trace_side import Json, Side, causes, moments, side_table, tones, whole
from dsv4lab.widgets.trace_wire import joined, short

MOST_COLUMNS = 6000
MOST_TRACKS = 400
MOST_STEPS = 4000
MOST_FLOWS = 400


class TraceSession:
    """Answers the questions of one explorer. Track numbers of the page count through all sides."""

    def __init__(
        self,
        timelines: Sequence[tuple[str, Timeline]],
        *,
        by: str = "stream",
        color: str = "category",
        main: str | None = None,
        edges: Iterable[tuple[int, int]] | None = None,
    ) -> None:
        if color not in COLORINGS:
            raise UsageError(f"color={color!r} is unknown, it takes one of: {', '.join(COLORINGS)}")
        self.by, self.color, self.main = by, color, main
        self.sides = [Side(label, TraceIndex(line, by, main), flows.NONE) for label, line in timelines]
        if edges is not None:
            self.know_waits(0, flows.given_pairs(self.sides[0].index.timeline, edges))
        self._answers: dict[str, Callable[[Json], Json]] = {
            "view": self._view,
            "table": self._table,
            "details": self._details,
            "search": self._search,
            "next": self._next,
            "path": self._path,
            "steps": self._steps,
        }

    def answer(self, message: Json) -> Json:
        """The answer to one question; arrays are left as they are. Raises :class:`UsageError` for an unknown kind."""
        kind = message.get("kind")
        if kind not in self._answers:
            raise UsageError(f"the explorer knows no question {kind!r}")
        return {"kind": kind, "number": message.get("number"), **self._answers[kind](message)}

    def regroup(self, by: str) -> None:
        """Make tracks by ``stream``, ``queue`` or ``rank``. Raises :class:`UsageError` for another grouping."""
        for side in self.sides:
            index = TraceIndex(side.index.timeline, by, self.main)
            if side.found is not None:
                side.found = index.mark(side.found.rows)
            if side.path is not None:
                side.path = index.mark(side.path.rows)
            side.index = index
        self.by = by

    def setup(self) -> Json:
        """What the page needs before its first picture: tracks, span, names of the tones."""
        tracks: list[Json] = []
        order: list[int] = []
        for number, side in enumerate(self.sides):
            first = len(tracks)
            order += [first + at for at in side.index.order]
            tracks += [{**asdict(t), "side": number, "label": self._label(t.label)} for t in side.index.tracks]
        return {
            "kind": "setup",
            "sides": [
                {"label": short(side.label, 60), "rows": len(side.index.timeline), "notes": self._notes(side)}
                for side in self.sides
            ],
            "tracks": tracks,
            "order": order,
            "span": list(self._span()),
            "window": list(self._busy_span()),
            "by": self.by,
            "groupings": list(GROUPINGS),
            "color": self.color,
            "colorings": list(COLORINGS),
            "tones": tones(),
            "present": self._present(),
            "causes": causes(),
            "shift": self.sides[-1].shift_ns,
        }

    def _label(self, label: str) -> str:
        """A track's label; bare numbers say what they number."""
        return f"{self.by} {label}" if label.isdecimal() else short(label, 60)

    def _present(self) -> list[int]:
        """The categories that occur, and waits, calls and ranges where there are any, as tones."""
        seen = np.zeros(len(CATEGORIES) + 3, np.bool_)
        for side in self.sides:
            seen |= np.bincount(side.index.colored("category")[0], minlength=len(seen))[: len(seen)] > 0
        return np.flatnonzero(seen).tolist()

    def _notes(self, side: Side) -> list[str]:
        return [short(note, 300) for note in side.index.timeline.warnings[:6]]

    def _span(self) -> tuple[int, int]:
        spans = [(s.index.span_ns[0] - s.origin_ns, s.index.span_ns[1] - s.origin_ns) for s in self.sides]
        return min(a for a, _ in spans), max(b for _, b in spans)

    def _busy_span(self) -> tuple[int, int]:
        spans = [(s.index.busy_span_ns[0] - s.origin_ns, s.index.busy_span_ns[1] - s.origin_ns) for s in self.sides]
        return min(a for a, _ in spans), max(b for _, b in spans)

    def _view(self, message: Json) -> Json:
        start, end = moments(message)
        columns = whole(message, "columns", 1, MOST_COLUMNS)
        coloring = str(message.get("color", self.color))
        wanted = [int(t) for t in message.get("tracks", ())][:MOST_TRACKS]
        edges = bin_edges(start, end, columns)
        windows: list[tuple[int, Side, Window]] = []
        first = 0
        for side in self.sides:
            own = [t - first for t in wanted if first <= t < first + len(side.index.tracks)]
            window = side.index.window(edges + side.origin_ns, own, coloring, side.found, side.path)
            windows.append((first, side, window))
            first += len(side.index.tracks)
        out = joined([(f, s.origin_ns, w) for f, s, w in windows])
        names = self._names([(number, w) for number, (_, _, w) in enumerate(windows)])
        arrows = self._arrows(start, end) if message.get("flows") else []
        if message.get("idle"):
            out["idle"] = [side.index.idle_shares(edges + side.origin_ns) for side in self.sides]
        return {"start": start, "end": end, "columns": len(edges) - 1, "names": names, "flows": arrows, **out}

    def _names(self, windows: list[tuple[int, Window]]) -> list[dict[str, str]]:
        """Names of the slices by side: only what there is room to write; the whole name is told on a click."""
        out: list[dict[str, str]] = []
        for number, window in windows:
            names = self.sides[number].index.timeline.names
            used = np.unique(window.slices.name)
            out.append({str(i): short(names[i], 80) for i in used.tolist() if i != UNKNOWN})
        return out

    def prepare(self) -> None:
        """Find the waits that the timelines hold, where none were given: not needed before the first picture."""
        for number, side in enumerate(self.sides):
            if not side.waits_known:
                self.know_waits(number, flows.wait_pairs(side.index.timeline))

    def know_waits(self, number: int, pairs: flows.Pairs) -> None:
        """Give a side its waits, so that they are not inferred from its ``WAIT`` rows."""
        self.sides[number].pairs, self.sides[number].waits_known = pairs, True

    def _arrows(self, start: int, end: int) -> list[list[int]]:
        """Waits that end in a window as ``[track, line, ns, track, line, ns]``, at most 400."""
        self.prepare()
        out: list[list[int]] = []
        first = 0
        for side in self.sides:
            line = side.index.timeline
            if len(side.pairs):
                at = line.start_ns[side.pairs[:, 1]] - side.origin_ns
                inside = np.flatnonzero((at >= start) & (at < end))[:MOST_FLOWS]
                out += [self._arrow(side, first, int(a), int(b)) for a, b in side.pairs[inside]]
            first += len(side.index.tracks)
        return out[:MOST_FLOWS]

    def _arrow(self, side: Side, first: int, a: int, b: int) -> list[int]:
        line, places = side.index.timeline, side.index.positions
        x, y = int(places[a]), int(places[b])
        leaves = min(int(line.end_ns[a]), int(line.start_ns[b]))
        tracks, sub = side.index.track_of, side.index.placed.sub
        return [
            first + int(tracks[x]),
            int(sub[x]),
            leaves - side.origin_ns,
            first + int(tracks[y]),
            int(sub[y]),
            int(line.start_ns[b]) - side.origin_ns,
        ]

    def _table(self, message: Json) -> Json:
        start, end = moments(message)
        return {"start": start, "end": end, "sides": [side_table(s, start, end, self._label) for s in self.sides]}

    def _details(self, message: Json) -> Json:
        side, first = self._side(message)
        row = whole(message, "row", 0, max(len(side.index.timeline) - 1, 0))
        pairs = side.pairs[(side.pairs == row).any(axis=1)][:MOST_FLOWS]
        called = flows.launches(side.index.timeline, row)
        arrows = [self._arrow(side, first, int(a), int(b)) for a, b in pairs]
        host = side.index.timeline.kind[row] > 2
        arrows += [self._arrow(side, first, *((row, other) if host else (other, row))) for other in called]
        place = int(side.index.positions[row])
        span = side.index.placed.start[place] - side.origin_ns, side.index.placed.end[place] - side.origin_ns
        queued = int(side.index.timeline.queued_ns[row])
        return {
            "row": row,
            "side": self.sides.index(side),
            "track": first + int(side.index.track_of[place]),
            "sub": int(side.index.placed.sub[place]),
            "start": int(span[0]),
            "end": int(span[1]),
            "queued": queued - side.origin_ns if queued != UNKNOWN else None,
            "facts": [[label, short(text, 600)] for label, text in facts.row_facts(side.index, row)],
            "arrows": arrows,
        }

    def _side(self, message: Json) -> tuple[Side, int]:
        number = whole(message, "side", 0, len(self.sides) - 1)
        return self.sides[number], sum(len(s.index.tracks) for s in self.sides[:number])

    def _search(self, message: Json) -> Json:
        text = str(message.get("text", ""))
        counts = []
        for side in self.sides:
            rows = facts.found_rows(side.index.timeline, text) if text else None
            side.found = None if rows is None else side.index.mark(rows)
            counts.append(0 if rows is None else int(rows.sum()))
        return {"text": text, "counts": counts}

    def _next(self, message: Json) -> Json:
        """The next row of those found, of a layer, or of a track, from a moment on, forwards or back."""
        side, _ = self._side(message)
        what, back = message.get("what"), bool(message.get("back"))
        line = side.index.timeline
        rows: NDArray[np.bool_]
        if what == "found" and side.found is not None:
            rows = side.found.rows
        elif what == "layer":
            layer = whole(message, "layer", 0, 1 << 20)
            rows = (side.index.layers == layer) & line.busy_mask
        elif what == "track":
            place = side.index.positions[whole(message, "row", 0, max(len(line) - 1, 0))]
            rows = np.zeros(len(line), np.bool_)
            track = int(side.index.track_of[place])
            rows[side.index.placed.rows[side.index.placed.first[track] : side.index.placed.first[track + 1]]] = True
        else:
            raise UsageError(f"next: what={what!r} takes found, layer or track")
        after = int(message.get("after", 0)) + side.origin_ns
        row = facts.next_row(side.index, rows, after, back=back)
        return {"row": row, "side": self.sides.index(side)}

    def _path(self, message: Json) -> Json:
        start, end = moments(message)
        parts: list[Json | None] = []
        for side in self.sides:
            side.path = None
            if not message.get("on"):
                continue
            found = facts.path_rows(side.index, start + side.origin_ns, end + side.origin_ns)
            if found is not None:
                side.path = side.index.mark(found[0])
            parts.append(None if found is None else found[1])
        return {"on": bool(message.get("on")), "parts": parts}

    def _steps(self, message: Json) -> Json:
        """Steps of every first rank; with ``pair`` the second trace is moved so that this pair begins together."""
        for side in self.sides:
            if not side.steps:
                found = facts.step_marks(side.index.timeline)
                first = min((mark.rank for mark in found), default=0)
                side.steps = [mark for mark in found if mark.rank == first]
        pairs = facts.paired_steps(self.sides[0].steps, self.sides[1].steps) if len(self.sides) > 1 else []
        if pairs and message.get("pair") is not None:
            self._align(*pairs[whole(message, "pair", 0, len(pairs) - 1)])
        marks = [
            [
                [short(m.label, 60), m.mode, m.rank, m.start_ns - side.origin_ns, m.end_ns - side.origin_ns]
                for m in side.steps[:MOST_STEPS]
            ]
            for side in self.sides
        ]
        cut = [max(0, len(side.steps) - MOST_STEPS) for side in self.sides]
        layers = sorted({n for side in self.sides for n in side.index.layer_numbers})
        return {
            "steps": marks,
            "cut": cut,
            "pairs": pairs[:MOST_STEPS],
            "shift": self.sides[-1].shift_ns,
            "span": list(self._span()),
            "layers": layers[:512],
        }

    def _align(self, a: int, b: int) -> None:
        first, second = self.sides
        second.shift_ns = 0
        second.shift_ns = (first.steps[a].start_ns - first.origin_ns) - (second.steps[b].start_ns - second.origin_ns)
