"""Pictures of any session: what each setting changes, with intervals, and TPOT against throughput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from dsv4lab.viz import theme as themes
from dsv4lab.viz.axes import plural
from dsv4lab.viz.pareto import add_front
from dsv4lab.viz.sheet import Heading, Sheet, empty_sheet

MOST_ROWS = 24
LEAST_REACH = 0.02
_LABEL = 46
_ROW = 21
_COLORS = {"faster": themes.GREEN, "slower": themes.RED}
_SYMBOLS = {"faster": "diamond", "slower": "square"}


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """A setting's TPOT against the baseline, as a fraction; ``low`` and ``high`` bound it, None where nothing does."""

    panel: str
    label: str
    delta: float
    low: float | None
    high: float | None
    pairs: int
    verdict: str


@dataclass(frozen=True, slots=True)
class Point:
    """A setting's latency and throughput. ``series`` has one colour, by order of first use."""

    series: str
    label: str
    tpot_ms: float
    tokens_per_s: float
    baseline: bool = False


def changes_figure(rows: Sequence[ChangeRow], *, theme: str = "light") -> go.Figure:
    """Marks at the change of TPOT, lines over its interval, one panel per load; left of zero is faster.

    A panel shows the settings that are furthest ahead, :data:`MOST_ROWS` at most.
    """
    return changes_sheet(rows).figure(theme)


def changes_sheet(rows: Sequence[ChangeRow]) -> Sheet:
    """The picture of :func:`changes_figure` as plain data."""
    if not rows:
        return empty_sheet("TPOT against the baseline", "no setting has been compared with the baseline yet")
    panels = {row.panel: sorted((r for r in rows if r.panel == row.panel), key=lambda r: r.delta) for row in rows}
    hidden = sum(max(0, len(own) - MOST_ROWS) for own in panels.values())
    said = "left of zero is faster; lines are intervals, dotted where a side is open; arrows are further out"
    said += f"; {plural(hidden, 'slower setting')} not shown" if hidden else ""
    shown = {panel: own[:MOST_ROWS] for panel, own in panels.items()}
    head = Heading("TPOT against the baseline", said, panels=len(shown) > 1)
    heights = [_ROW * len(own) + 14 for own in shown.values()]
    titles = [themes.text(panel) for panel in shown] if len(shown) > 1 else []
    sheet = Sheet(head, heights, gap=34, titles=titles, shared_x=True)
    reach = 100 * _reach(list(shown.values()))
    for panel, own in enumerate(shown.values()):
        for place, row in enumerate(own):
            _add_change(sheet, panel, place, row, reach)
        labels = [themes.text(row.label, _LABEL) for row in own]
        sheet.y_axis(
            panel, tickvals=list(range(len(own))), ticktext=labels, range=[len(own) - 0.5, -0.5], showgrid=False
        )
        sheet.x_axis(panel, zeroline=True, zerolinecolor=themes.GREY, zerolinewidth=1.5)
    sheet.x_axis(len(shown) - 1, title={"text": "change of TPOT (%)"}, range=[-1.04 * reach, 1.04 * reach])
    return sheet


def _reach(panels: Sequence[Sequence[ChangeRow]]) -> float:
    """How far the axis goes to either side: past every gain and the usual loss; what is slower sits at its end."""
    sizes = [abs(row.delta) for own in panels for row in own]
    gains = [-row.delta for own in panels for row in own]
    return max(LEAST_REACH, 3 * float(np.median(sizes)), 1.3 * max(gains))


def _add_change(sheet: Sheet, panel: int, place: int, row: ChangeRow, reach: float) -> None:
    color = _COLORS.get(row.verdict, themes.GREY)
    open_side = row.low is None or row.high is None
    bounds = (-reach if row.low is None else 100 * row.low, reach if row.high is None else 100 * row.high)
    ends = [min(reach, max(-reach, bound)) for bound in bounds]
    style = {"width": 1.5, "dash": "dot"} if open_side else {"width": 3}
    line = {"color": themes.fade(color, 0.55), **style}
    sheet.add("scatter", panel, x=ends, y=[place, place], mode="lines", line=line, hoverinfo="skip", showlegend=False)
    symbol = "triangle-right" if 100 * row.delta > reach else _SYMBOLS.get(row.verdict, "circle")
    sheet.add(
        "scatter",
        panel,
        x=[min(100 * row.delta, reach)],
        y=[place],
        mode="markers",
        marker={"size": 9, "color": color, "symbol": symbol},
        customdata=[_change_text(row)],
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=False,
        cliponaxis=False,
    )


def _change_text(row: ChangeRow) -> str:
    bounds = ["open" if v is None else f"{100 * v:+.2f} %" for v in (row.low, row.high)]
    return (
        f"<b>{themes.text(row.label)}</b><br>{themes.text(row.panel)}<br>{themes.text(row.verdict)}: "
        f"{100 * row.delta:+.2f} % ({bounds[0]} to {bounds[1]}), {plural(row.pairs, 'pair')}"
    )


def points_figure(points: Sequence[Point], *, theme: str = "light") -> go.Figure:
    """Tokens per second against TPOT, with the line of settings that nothing beats on both; crosses are baselines."""
    return points_sheet(points).figure(theme)


def points_sheet(points: Sequence[Point]) -> Sheet:
    """The picture of :func:`points_figure` as plain data."""
    if not points:
        return empty_sheet("Latency and throughput", "nothing was measured yet")
    sheet = Sheet(
        Heading("Latency and throughput", "each mark is a setting; crosses are the baseline", legend=True), [300]
    )
    add_front(sheet, points)
    for number, series in enumerate(dict.fromkeys(p.series for p in points)):
        own = [p for p in points if p.series == series]
        sheet.add(
            "scatter",
            x=[p.tpot_ms for p in own],
            y=[p.tokens_per_s for p in own],
            mode="markers",
            marker={
                "size": [12 if p.baseline else 9 for p in own],
                "symbol": ["x" if p.baseline else "circle" for p in own],
                "color": themes.CYCLE[number % len(themes.CYCLE)],
                "opacity": 1,
                "line": {"width": 0},
            },
            name=themes.text(series, 40),
            customdata=[_point_text(p) for p in own],
            hovertemplate="%{customdata}<extra></extra>",
        )
    sheet.x_axis(0, title={"text": "TPOT (ms per token)"})
    sheet.y_axis(0, title={"text": "throughput (tokens/s)"}, rangemode="tozero")
    return sheet


def _point_text(point: Point) -> str:
    return (
        f"<b>{themes.text(point.label)}</b><br>{themes.text(point.series)}<br>"
        f"TPOT {point.tpot_ms:.2f} ms, {point.tokens_per_s:.1f} tokens/s"
    )
