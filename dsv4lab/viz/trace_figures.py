"""A trace's tables as pictures: steps side by side, idle time by cause, and the waterfall between two runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from dsv4lab.trace.analyse.idle import IdleCause
from dsv4lab.trace.analyse.steps import StepTime
from dsv4lab.trace.compare import Bar, Comparison
from dsv4lab.viz import theme as themes
from dsv4lab.viz.axes import plural, time_unit
from dsv4lab.viz.sheet import Heading, Sheet, empty_sheet

MOST_STEPS = 400
_HEIGHT = 260
_ROW = 26
_IDLE = "idle"


def steps_figure(steps: Sequence[StepTime], *, theme: str = "light") -> go.Figure:
    """Draw every step's wall as a column: main work, side work that main does not hide, and idle time.

    The three add up to the wall. The first ``MOST_STEPS`` are drawn.
    """
    title = "Steps"
    if not steps:
        return empty_sheet(title, "the trace marks no steps, or no rows belong to them").figure(theme)
    shown = steps[:MOST_STEPS]
    unit = time_unit(max(step.wall_ns for step in shown))
    modes = [f"{sum(s.mode == mode for s in steps)} {mode}" for mode in dict.fromkeys(s.mode for s in steps)]
    left = f", the first {len(shown)} drawn" if len(shown) < len(steps) else ""
    subtitle = f"{plural(len(steps), 'step')}: {themes.text(', '.join(modes), 100)}{left}"
    sheet = Sheet(Heading(title, subtitle, legend=True), [_HEIGHT])
    at = np.arange(len(shown))
    hover = [
        f"<b>{themes.text(s.label, 60)}</b> ({themes.text(s.mode)}, rank {s.rank})<br>wall {unit.text(s.wall_ns)}, "
        f"{plural(s.rows, 'row')}<br>main {unit.text(s.main_busy_ns)}, side {unit.text(s.side_busy_ns)} of which "
        f"{unit.text(s.hidden_ns)} hidden<br>idle {unit.text(s.idle_ns)}, concurrency {s.concurrency:.3f}"
        for s in shown
    ]
    parts = (
        ("main busy", [s.main_busy_ns for s in shown], themes.stream_color("main")),
        ("side busy, exposed", [s.union_busy_ns - s.main_busy_ns for s in shown], themes.ORANGE),
        (_IDLE, [s.idle_ns for s in shown], themes.IDLE),
    )
    for name, values, color in parts:
        sheet.add(
            "bar",
            x=at,
            y=unit.scale(values),
            name=name,
            marker={"color": color, "line": {"width": 0}},
            text=hover,
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
        )
    sheet.layout |= {"barmode": "stack", "bargap": 0.15}
    sheet.x_axis(0, title={"text": "step, in order of time"})
    sheet.y_axis(0, title={"text": f"wall ({unit.name})"})
    return sheet.figure(theme)


def idle_figure(causes: Sequence[IdleCause], *, theme: str = "light") -> go.Figure:
    """Draw idle time by cause, largest first."""
    title = "Idle time by cause"
    if not causes:
        return empty_sheet(title, "the device was never idle between its first and last row").figure(theme)
    unit = time_unit(max(cause.idle_ns for cause in causes))
    total = sum(cause.idle_ns for cause in causes)
    sheet = Sheet(
        Heading(title, f"{unit.text(total)} in {plural(sum(c.gaps for c in causes), 'gap')}"), [_ROW * len(causes)]
    )
    sheet.add(
        "bar",
        x=unit.scale([cause.idle_ns for cause in causes]),
        y=[cause.cause for cause in causes],
        orientation="h",
        marker={"color": themes.GREY, "line": {"width": 0}},
        text=[f"{100 * cause.share:.0f} % in {plural(cause.gaps, 'gap')}" for cause in causes],
        textposition="auto",
        hovertemplate="%{y}: %{x:.3f} " + unit.name + ", %{text}<extra></extra>",
    )
    sheet.x_axis(0, title={"text": f"time ({unit.name})"})
    sheet.y_axis(0, range=[len(causes) - 0.5, -0.5], type="category", showgrid=False)
    return sheet.figure(theme)


def waterfall_figure(comparison: Comparison, *, theme: str = "light") -> go.Figure:
    """Draw how A's wall becomes B's: one bar for each part that changed, adding up exactly."""
    a, b = comparison.a, comparison.b
    title = f"{themes.text(a.label, 30)} against {themes.text(b.label, 30)}"
    bars = [bar for bar in comparison.waterfall if bar.delta_ns]
    unit = time_unit(max(a.wall_ns, b.wall_ns, 1))
    change = b.wall_ns - a.wall_ns
    share = f" ({100 * change / a.wall_ns:+.1f} %)" if a.wall_ns else ""
    subtitle = (
        f"wall {unit.text(a.wall_ns)} to {unit.text(b.wall_ns)}: {'+' if change > 0 else ''}{unit.text(change)}{share}"
    )
    sheet = Sheet(Heading(title, subtitle), [_ROW * (len(bars) + 2)])
    labels = [
        f"wall of {themes.text(a.label, 24)}",
        *(bar.what for bar in bars),
        f"wall of {themes.text(b.label, 24)} ",
    ]
    sheet.add(
        "waterfall",
        orientation="h",
        measure=["absolute", *["relative"] * len(bars), "total"],
        x=[*unit.scale([a.wall_ns, *(bar.delta_ns for bar in bars)]), None],
        y=labels,
        text=["", *(_change(bar, unit.ns, unit.name) for bar in bars), ""],
        textposition="none",
        hovertemplate="%{y}<br>%{text}<extra></extra>",
        increasing={"marker": {"color": themes.ORANGE}},
        decreasing={"marker": {"color": themes.BLUE}},
        totals={"marker": {"color": themes.GREY}},
        connector={"line": {"width": 0.6, "color": themes.GREY}},
    )
    low, high = _reach(a.wall_ns, bars)
    cut = f" (from {unit.text(low)})" if low else ""
    sheet.x_axis(0, title={"text": f"time ({unit.name}){cut}"}, range=unit.scale([low, high]).tolist())
    sheet.y_axis(0, range=[len(labels) - 0.5, -0.5], type="category", showgrid=False)
    return sheet.figure(theme)


def _reach(start: int, bars: Sequence[Bar]) -> tuple[int, int]:
    """The axis: from zero, unless all that changes lies in the far half."""
    ends = np.cumsum([start, *(bar.delta_ns for bar in bars)])
    low, high = int(ends.min()), int(ends.max())
    room = max(high - low, high // 50, 1)
    return (low - room // 4 if low - room // 4 > high // 2 else 0), high + room // 10


def _change(bar: Bar, unit_ns: int, unit: str) -> str:
    return f"{bar.a_ns / unit_ns:,.3f} to {bar.b_ns / unit_ns:,.3f} {unit}: {bar.delta_ns / unit_ns:+,.3f} {unit}"
