"""Time per output token as it happens, with a line wherever the settings changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from dsv4lab.timeline.records import StepRecord
from dsv4lab.viz import theme as themes
from dsv4lab.viz.axes import plural
from dsv4lab.viz.sheet import Heading, Sheet, empty_sheet

TITLE = "Time per output token"
SPAN_S = 30.0
BIN_S = 0.25
_SETTLE_S = 0.4  # shorter runs of other settings are the load refilling, not a change
_LABEL_SHARE = 0.12  # of the span: narrower segments get a line without a label

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Segment:
    """Decode forwards ``first`` to ``last`` ran with the same plan, hardware queues and requests in flight."""

    plan: str
    hw_queues: int
    requests: int
    first: int
    last: int
    median_ms: float


def tpot_ribbon_figure(steps: Sequence[StepRecord], *, span_s: float = SPAN_S, theme: str = "light") -> go.Figure:
    """Draw the median and the 10 to 90 % band of TPOT over the last ``span_s`` seconds.

    TPOT of a decode forward is the time from the end of the forward before it to its own end. Vertical lines mark
    changes of plan, hardware queues or requests in flight; each stretch is labelled with its median.
    """
    return tpot_ribbon_sheet(steps, span_s=span_s).figure(theme)


def tpot_ribbon_sheet(steps: Sequence[StepRecord], *, span_s: float = SPAN_S) -> Sheet:
    """The picture of :func:`tpot_ribbon_figure` as plain data."""
    recent = _recent(steps, span_s)
    decodes = [i for i, s in enumerate(recent) if s.mode == "decode"]
    if not decodes:
        return empty_sheet(TITLE, "no decode forward yet: start decoding")
    end_ns, tpot_ns = _times(recent)
    end_s = (end_ns[decodes] - end_ns[decodes[-1]]) / 1e9
    tpot_ms = tpot_ns[decodes] / 1e6
    segments = _segments([recent[i] for i in decodes], end_s, tpot_ms)
    sheet = Sheet(Heading(TITLE, _subtitle(segments, tpot_ms)), [130])
    _add_band(sheet, end_s, tpot_ms)
    _add_changes(sheet, segments, end_s, span_s)
    top = float(np.percentile(tpot_ms, 90)) * 1.6
    sheet.y_axis(0, title={"text": "ms per token"}, range=[0, top], nticks=5)
    sheet.x_axis(0, title={"text": "seconds before the latest forward"}, range=[-span_s, 0])
    sheet.layout["hovermode"] = "x"
    return sheet


def _recent(steps: Sequence[StepRecord], span_s: float) -> Sequence[StepRecord]:
    if not steps:
        return steps
    oldest = steps[-1].start_ns + steps[-1].dur_ns - int(span_s * 1e9)
    first = len(steps)
    while first and steps[first - 1].start_ns >= oldest:
        first -= 1
    return steps[first:]


def _times(steps: Sequence[StepRecord]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ends, and TPOT: end to end with the forward before, unless that was another batch, another worker or none."""
    n = len(steps)
    dur = np.fromiter((s.dur_ns for s in steps), np.int64, n)
    end = np.fromiter((s.start_ns for s in steps), np.int64, n) + dur
    number = np.fromiter((s.step for s in steps), np.int64, n)
    decode = np.fromiter((s.mode == "decode" for s in steps), np.bool_, n)
    follows = (number[1:] == number[:-1] + 1) & decode[:-1]
    return end, np.concatenate([dur[:1], np.where(follows, np.diff(end), dur[1:])])


def _segments(steps: Sequence[StepRecord], end_s: Floats, tpot_ms: Floats) -> list[Segment]:
    cuts = [i for i in range(len(steps)) if not i or _settings(steps[i]) != _settings(steps[i - 1])]
    spans = [(a, b) for a, b in zip(cuts, [*cuts[1:], len(steps)], strict=True) if end_s[b - 1] - end_s[a] >= _SETTLE_S]
    merged: list[tuple[int, int]] = []
    for a, b in spans or [(0, len(steps))]:
        if merged and _settings(steps[merged[-1][0]]) == _settings(steps[a]):
            merged[-1] = (merged[-1][0], b)
        else:
            merged.append((a, b))
    return [Segment(*_settings(steps[a]), a, b - 1, float(np.median(tpot_ms[a:b]))) for a, b in merged]


def _settings(step: StepRecord) -> tuple[str, int, int]:
    return step.plan, step.hw_queues, step.requests


def _subtitle(segments: Sequence[Segment], tpot_ms: Floats) -> str:
    now = segments[-1]
    text = (
        f"{themes.text(now.plan, 24)}, {plural(now.hw_queues, 'hardware queue')}, {now.requests} in flight: "
        f"median {now.median_ms:.2f} ms"
    )
    if len(segments) > 1 and segments[-2].median_ms > 0:
        change = 100 * (now.median_ms / segments[-2].median_ms - 1)
        text += f" \N{MIDDLE DOT} {change:+.1f} % against the settings before"
    return text


def _add_band(sheet: Sheet, end_s: Floats, tpot_ms: Floats) -> None:
    cell = np.floor(end_s / BIN_S).astype(np.int64)
    cells, starts = np.unique(cell, return_index=True)
    low, middle, high = _percentiles(tpot_ms, starts, (10, 50, 90))
    x = np.asarray((cells + 0.5) * BIN_S, dtype=np.float64)
    gaps = np.flatnonzero(np.diff(cells) > 4) + 1  # nothing was decoded for a second: leave a hole
    outline_x, outline_y = _outline(x, low, high, gaps)
    sheet.add(
        "scatter",
        x=outline_x,
        y=outline_y,
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=themes.fade(themes.BLUE, 0.25),
        hoverinfo="skip",
        name="p10 to p90",
    )
    x, low, middle, high = (np.insert(column, gaps, np.nan) for column in (x, low, middle, high))
    sheet.add(
        "scatter",
        x=x,
        y=middle,
        customdata=np.stack([low, high], axis=-1),
        mode="lines",
        line={"width": 2, "color": themes.BLUE},
        name="median",
        hovertemplate="%{y:.2f} ms (p10 %{customdata[0]:.2f}, p90 %{customdata[1]:.2f})<extra></extra>",
        xhoverformat=".1f",
    )


def _percentiles(values: Floats, starts: NDArray[np.int64], shares: Sequence[float]) -> Floats:
    """``float64 [shares, groups]``: percentiles of the groups that begin at ``starts``, between ranks as numpy's."""
    sizes = np.diff(np.append(starts, len(values)))
    ordered = values[np.lexsort((values, np.repeat(np.arange(len(starts)), sizes)))]
    at = np.asarray(shares, np.float64)[:, None] / 100 * (sizes - 1)
    below = np.floor(at).astype(np.int64)
    low, high = ordered[starts + below], ordered[starts + np.minimum(below + 1, sizes - 1)]
    return np.asarray(low + (high - low) * (at - below), np.float64)


def _outline(x: Floats, low: Floats, high: Floats, gaps: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Closed outlines between ``low`` and ``high``, one for each stretch without a gap, separated by NaN."""
    xs: list[Floats] = []
    ys: list[Floats] = []
    for part in np.split(np.arange(len(x)), gaps):
        xs += [x[part], x[part][::-1], np.array([np.nan])]
        ys += [low[part], high[part][::-1], np.array([np.nan])]
    return np.concatenate(xs), np.concatenate(ys)


def _add_changes(sheet: Sheet, segments: Sequence[Segment], end_s: Floats, span_s: float) -> None:
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for number, one in enumerate(segments):
        left, right = float(end_s[one.first]), float(end_s[one.last])
        if number:
            line = {"width": 1.2, "dash": "dot", "color": themes.READ}
            shapes.append({"type": "line", "x0": left, "x1": left, "yref": "y domain", "y0": 0, "y1": 1, "line": line})
        if right - left >= _LABEL_SHARE * span_s:
            text = f"{themes.text(one.plan, 14)} \N{MIDDLE DOT} {one.hw_queues}q \N{MIDDLE DOT} {one.median_ms:.2f} ms"
            place = {"x": (left + right) / 2, "y": 1, "yref": "y domain", "yanchor": "top"}
            notes.append({"text": text, "showarrow": False, **place})
    sheet.layout |= {"shapes": shapes, "annotations": notes}
