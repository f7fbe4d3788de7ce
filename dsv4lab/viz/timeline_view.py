"""The timeline: lanes by stream or queue, real rectangles when few, a binned heat map when many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from dsv4lab.errors import UsageError
from dsv4lab.timeline.timeline import UNKNOWN, Kind, Timeline
from dsv4lab.viz import theme as themes
from dsv4lab.viz.axes import TimeUnit, plural, time_text, time_unit
from dsv4lab.viz.downsample import bin_edges, bin_slices, sub_lanes
from dsv4lab.viz.sheet import Heading, Sheet, empty_sheet

MOST_SLICES = 5000
MOST_EDGES = 400
BINS = 800
_LANE = 0.78


@dataclass(frozen=True, eq=False, slots=True)
class _Lanes:
    of: NDArray[np.int32]  # lane number per slice
    labels: list[str]
    noun: str


def timeline_figure(
    timeline: Timeline,
    *,
    lanes: str = "stream",
    edges: Sequence[tuple[int, int]] = (),
    window_ns: tuple[int, int] | None = None,
    most_slices: int = MOST_SLICES,
    theme: str = "light",
) -> go.Figure:
    """Draw slices in lanes, ``lanes`` being ``stream`` or ``queue``.

    ``window_ns`` (start, end on the timeline's clock) cuts what is drawn. ``edges`` are waits as pairs of row numbers
    (producer, consumer) and are drawn as arrows, at most 400. Beyond ``most_slices`` slices in view the picture is a
    heat map of busy share per lane, with the leading name of each cell in its hover. Raises :class:`UsageError` for an
    unknown ``lanes``.
    """
    return timeline_sheet(timeline, lanes=lanes, edges=edges, window_ns=window_ns, most_slices=most_slices).figure(
        theme
    )


def timeline_sheet(
    timeline: Timeline,
    *,
    lanes: str = "stream",
    edges: Sequence[tuple[int, int]] = (),
    window_ns: tuple[int, int] | None = None,
    most_slices: int = MOST_SLICES,
) -> Sheet:
    """The picture of :func:`timeline_figure` as plain data."""
    if lanes not in ("stream", "queue"):
        raise UsageError(f"lanes={lanes!r} is unknown, it takes one of: stream, queue")
    rows = _rows_in_view(timeline, window_ns)
    if not len(rows):
        return empty_sheet("Timeline", "no slices in this window")
    view = timeline.select(rows)
    place = _lanes(view, lanes)
    origin, end = window_ns or (int(view.start_ns.min()), int(view.end_ns.max()))
    unit = time_unit(end - origin)
    few = len(rows) <= most_slices
    how = plural(int(view.busy_mask.sum()), "slice")
    how += "" if few else f" in cells of {time_text((end - origin) / BINS)}"
    grey = " \N{MIDDLE DOT} grey: waiting for another stream" if few and not view.busy_mask.all() else ""
    body = max(80, min(640, 40 * len(place.labels)))
    sheet = Sheet(Heading("Timeline", f"{how} on {plural(len(place.labels), place.noun)}{grey}"), [body])
    if few:
        _add_slices(sheet, view, place, origin, unit)
        _add_edges(sheet, timeline, rows, edges, place, origin, unit)
    else:
        _add_heat(sheet, view, place, origin, end, unit)
    sheet.x_axis(0, title={"text": f"time ({unit.name})"}, range=[0, max(1, end - origin) / unit.ns])
    sheet.y_axis(
        0,
        tickvals=list(range(len(place.labels))),
        ticktext=place.labels,
        range=[len(place.labels) - 0.5, -0.5],
        showgrid=False,
        title={"text": place.noun},
        fixedrange=True,
    )
    return sheet


def _rows_in_view(timeline: Timeline, window_ns: tuple[int, int] | None) -> NDArray[np.int64]:
    shown = timeline.busy_mask | (timeline.kind == int(Kind.WAIT))
    if window_ns is not None:
        shown &= (timeline.end_ns > window_ns[0]) & (timeline.start_ns < window_ns[1])
    return np.flatnonzero(shown)


def _lanes(view: Timeline, lanes: str) -> _Lanes:
    ids, labels = (view.stream, view.streams) if lanes == "stream" else (view.queue, view.queues)
    used = np.unique(ids)
    used = np.concatenate([used[used != UNKNOWN], used[used == UNKNOWN]])
    if lanes == "stream" and view.main_stream in labels:
        main = labels.index(view.main_stream)
        used = np.concatenate([used[used == main], used[used != main]])
    of = np.zeros(len(view), np.int32)
    for number, one in enumerate(used):
        of[ids == one] = number
    return _Lanes(of, [themes.text(labels[i], 24) if i != UNKNOWN else "unknown" for i in used], lanes)


def _add_slices(sheet: Sheet, view: Timeline, place: _Lanes, origin: int, unit: TimeUnit) -> None:
    sub, depth = sub_lanes(place.of, view.start_ns, view.end_ns)
    height = _LANE / depth
    y = place.of - _LANE / 2 + (sub + 0.5) * height
    tones = [themes.kernel_color(name) for name in view.names]
    waits = view.kind == int(Kind.WAIT)
    colors = [
        themes.IDLE if wait else tones[i] if i != UNKNOWN else themes.GREY
        for i, wait in zip(view.name, waits, strict=True)
    ]
    sheet.add(
        "bar",
        orientation="h",
        base=unit.scale(view.start_ns - origin),
        x=unit.scale(view.dur_ns),
        y=y,
        width=height,
        marker={"color": colors, "line": {"width": 0}},
        text=_slice_texts(view, origin),
        textposition="none",
        hovertemplate="%{text}<extra></extra>",
        name="slices",
    )


def _slice_texts(view: Timeline, origin: int) -> list[str]:
    names = [f"<b>{themes.text(name)}</b>" for name in view.names]
    streams = [f"stream {themes.text(s, 40)}" for s in view.streams]
    queues = [f"queue {themes.text(q, 40)}" for q in view.queues]
    texts = []
    for i in range(len(view)):
        where = [part for part in (_pick(streams, view.stream[i]), _pick(queues, view.queue[i])) if part]
        if view.layer[i] != UNKNOWN:
            where.append(f"layer {view.layer[i]}")
        if view.step[i] != UNKNOWN:
            where.append(f"step {view.step[i]}")
        waited = (
            f", after {time_text(view.start_ns[i] - view.queued_ns[i])} in its queue"
            if 0 <= view.queued_ns[i] <= view.start_ns[i]
            else ""
        )
        label = _pick(names, view.name[i]) or "unnamed"
        texts.append(
            f"{label}<br>{', '.join(where)}<br>"
            f"{time_text(view.dur_ns[i])} from {time_text(view.start_ns[i] - origin)}{waited}"
        )
    return texts


def _pick(labels: Sequence[str], index: int) -> str:
    return labels[index] if index != UNKNOWN else ""


def _add_edges(
    sheet: Sheet,
    timeline: Timeline,
    rows: NDArray[np.int64],
    edges: Sequence[tuple[int, int]],
    place: _Lanes,
    origin: int,
    unit: TimeUnit,
) -> None:
    at = {int(row): i for i, row in enumerate(rows)}
    pairs = [(a, b) for a, b in edges if a in at and b in at][:MOST_EDGES]
    if not pairs:
        return
    x: list[float | None] = []
    y: list[float | None] = []
    for producer, consumer in pairs:
        x += [
            float(unit.scale(timeline.end_ns[producer] - origin)),
            float(unit.scale(timeline.start_ns[consumer] - origin)),
            None,
        ]
        y += [float(place.of[at[producer]]), float(place.of[at[consumer]]), None]
    sheet.add(
        "scatter",
        x=x,
        y=y,
        mode="lines+markers",
        line={"width": 1, "color": themes.READ},
        marker={"size": 5, "symbol": "arrow", "angleref": "previous", "color": themes.READ},
        opacity=0.7,
        hoverinfo="skip",
        name="waits",
    )


def _add_heat(sheet: Sheet, view: Timeline, place: _Lanes, origin: int, end: int, unit: TimeUnit) -> None:
    busy = view.select(view.busy_mask)  # a stream that waits is not busy
    edges = bin_edges(origin, end, BINS)
    lane = place.of[view.busy_mask]
    grid = bin_slices(lane, busy.start_ns, busy.dur_ns, busy.name, len(place.labels), edges)
    names = [*(themes.text(name, 80) for name in view.names), "nothing"]
    hover = [
        [
            f"{100 * min(1.0, s):.0f} % busy, {c} slices start here<br>most time: {names[t]}"
            for s, c, t in zip(*lane, strict=True)
        ]
        for lane in zip(grid.share, grid.count, grid.top, strict=True)
    ]
    sheet.add(
        "heatmap",
        x=unit.scale(grid.edges_ns - origin),
        y=list(range(len(place.labels))),
        z=np.minimum(grid.share, 1.0),
        text=hover,
        colorscale=[[0.0, themes.FAINT], [0.01, themes.fade(themes.BLUE, 0.25)], [1.0, themes.BLUE]],
        zmin=0,
        zmax=1,
        ygap=6,
        colorbar={"title": {"text": "busy"}, "tickformat": ".0%"},
        hovertemplate=f"%{{x:.3f}} {unit.name}<br>%{{text}}<extra></extra>",
        name="busy share",
    )
