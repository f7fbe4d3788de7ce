"""A tuning session as parallel coordinates: one line per measured setting, through its choices and its results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from dsv4lab.timeline.records import SweepRow
from dsv4lab.viz import theme as themes
from dsv4lab.viz.sheet import Heading, Sheet, empty_sheet
from dsv4lab.viz.tuning import row_text

TITLE = "Parallel coordinates"
AXES = ("plan", "hardware queues", "concurrency level", "side work hidden", "against off", "TPOT (ms)", "tokens/s")


def parallel_figure(rows: Sequence[SweepRow], *, theme: str = "light") -> go.Figure:
    """Draw a line per setting (controls left out), green where it is faster than ``off`` and orange where slower.

    Choices are on the left at their places in the sweep, results on the right between their least and largest values.
    """
    return parallel_sheet(rows).figure(theme)


def parallel_sheet(rows: Sequence[SweepRow], chosen: SweepRow | None = None) -> Sheet:
    """The picture of :func:`parallel_figure` as plain data, with the line of the row ``chosen`` on top."""
    drawn = [row for row in rows if not row.control]
    if not drawn:
        return empty_sheet(TITLE, "the session has no measured rows")
    said = "a line per setting; green is faster than off beside it, orange slower, grey off itself"
    sheet = Sheet(Heading(TITLE, said), [260])
    columns = [_column(drawn, axis) for axis in range(len(AXES))]
    spread = max((abs(row.delta_vs_off or 0.0) for row in drawn), default=0.0) or 1.0
    order = sorted(range(len(drawn)), key=lambda i: (drawn[i] == chosen, abs(drawn[i].delta_vs_off or 0.0)))
    for i in order:
        row = drawn[i]
        picked = row == chosen
        sheet.add(
            "scatter",
            x=list(range(len(AXES))),
            y=[float(places[i]) for places, _ in columns],
            mode="lines+markers",
            line={"color": themes.READ if picked else _color(row, spread), "width": 3 if picked else 1.6},
            marker={"size": 5},
            customdata=[row_text(row)] * len(AXES),
            hovertemplate="%{customdata}<extra></extra>",
            showlegend=False,
            name=themes.text(row.plan, 24),
            meta=str(i),
        )
    _label(sheet, columns)
    return sheet


def _column(rows: Sequence[SweepRow], axis: int) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Places of the rows on an axis, 0 to 1, and its ticks."""
    if axis < 3:
        values = [[row.plan, row.hw_queues, row.concurrency_level][axis] for row in rows]
        kept = list(dict.fromkeys(values)) if axis == 0 else sorted(set(values))  # type: ignore[type-var]
        top = max(1, len(kept) - 1)
        ticks = [((n / top if len(kept) > 1 else 0.5), themes.text(str(v), 14)) for n, v in enumerate(kept)]
        return np.array([ticks[kept.index(v)][0] for v in values]), ticks
    numbers = np.array([_number(row, axis) for row in rows])
    low, high = float(numbers.min()), float(numbers.max())
    span = high - low or 1.0
    places = (numbers - low) / span if high > low else np.full(len(rows), 0.5)
    ends = [(0.0, _text(low, axis)), (1.0, _text(high, axis))] if high > low else [(0.5, _text(low, axis))]
    return places, ends


def _number(row: SweepRow, axis: int) -> float:
    side = row.stream_busy.side_busy_ns
    hidden = row.stream_busy.hidden_ns / side if side else 0.0
    return (hidden, row.delta_vs_off or 0.0, row.tpot_ms, row.tokens_per_s)[axis - 3]


def _text(value: float, axis: int) -> str:
    return (f"{100 * value:.0f} %", f"{100 * value:+.1f} %", f"{value:.2f}", f"{value:,.0f}")[axis - 3]


def _color(row: SweepRow, spread: float) -> str:
    if row.delta_vs_off is None:
        return themes.fade(themes.GREY, 0.8)
    strength = 0.35 + 0.65 * min(1.0, abs(row.delta_vs_off) / spread)
    return themes.fade(themes.GREEN if row.delta_vs_off < 0 else themes.ORANGE, strength)


def _label(sheet: Sheet, columns: Sequence[tuple[np.ndarray, list[tuple[float, str]]]]) -> None:
    sheet.x_axis(0, tickvals=list(range(len(AXES))), ticktext=list(AXES), range=[-0.6, len(AXES) - 0.6], showgrid=False)
    sheet.y_axis(0, range=[-0.08, 1.1], visible=False)
    sheet.layout["shapes"] = [
        {"type": "line", "x0": n, "x1": n, "y0": 0, "y1": 1, "line": {"color": themes.GREY, "width": 1}}
        for n in range(len(AXES))
    ]
    sheet.layout["annotations"] = [
        {"x": n, "y": y, "text": text, "showarrow": False, "font": {"size": 11}, **_beside(n)}
        for n, (_, ticks) in enumerate(columns)
        for y, text in ticks
    ]


def _beside(axis: int) -> dict[str, object]:
    """Where a tick's text stands: left of the first axis, where no lines are, else above its tick."""
    return {"xanchor": "right", "xshift": -7} if axis == 0 else {"xanchor": "left", "xshift": 5, "yshift": 8}
