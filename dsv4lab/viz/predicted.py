"""Predicted TPOT, setting after setting, each beside that of plan ``off``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from dsv4lab.viz import theme as themes
from dsv4lab.viz.sheet import Heading, Sheet, empty_sheet

TITLE = "Predicted time per output token"
MOST = 12
_EARLIER = "#86a9c8"  # opaque: the contrast of the texts on it is computed from it, in either theme


@dataclass(frozen=True, slots=True)
class Predicted:
    """One setting: a short label, a text for the hover, its TPOT and that of ``off`` in milliseconds."""

    label: str
    about: str
    tpot_ms: float
    off_tpot_ms: float

    @property
    def change(self) -> float:
        """Against ``off``, as a fraction; below zero is faster."""
        return self.tpot_ms / self.off_tpot_ms - 1


def predicted_figure(points: Sequence[Predicted], *, theme: str = "light") -> go.Figure:
    """Draw the last 12 settings as bars, oldest first, each with a line for ``off`` at the same settings.

    The dotted line parts the last setting from those before it.
    """
    return predicted_sheet(points).figure(theme)


def predicted_sheet(points: Sequence[Predicted]) -> Sheet:
    """The picture of :func:`predicted_figure` as plain data."""
    if not points:
        return empty_sheet(TITLE, "simulating the whole model")
    shown = list(points)[-MOST:]
    now = shown[-1]
    said = f"{themes.text(now.label, 60)}: {now.tpot_ms:.2f} ms, {100 * now.change:+.1f} % against off"
    if len(shown) > 1:
        said += f" \N{MIDDLE DOT} {100 * (now.tpot_ms / shown[-2].tpot_ms - 1):+.1f} % against the setting before"
    sheet = Sheet(Heading(TITLE, f"simulated, not measured \N{MIDDLE DOT} {said}"), [130])
    places = list(range(len(shown)))
    hover = [
        f"<b>{themes.text(p.label, 60)}</b><br>{themes.text(p.about, 160)}<br>"
        f"{p.tpot_ms:.3f} ms, off {p.off_tpot_ms:.3f} ms ({100 * p.change:+.1f} %)"
        for p in shown
    ]
    sheet.add(
        "bar",
        x=places,
        y=[p.tpot_ms for p in shown],
        width=0.55,
        marker={"color": [*([_EARLIER] * (len(shown) - 1)), themes.BLUE], "line": {"width": 0}},
        text=[f"{100 * p.change:+.1f} %" for p in shown],
        textposition="inside",
        insidetextanchor="middle",  # the end is where the line for off often is
        customdata=hover,
        hovertemplate="%{customdata}<extra></extra>",
        name="TPOT",
    )
    sheet.add(
        "scatter",
        x=[x for place in places for x in (place - 0.4, place + 0.4, None)],
        y=[y for p in shown for y in (p.off_tpot_ms, p.off_tpot_ms, None)],
        mode="lines",
        line={"color": themes.QUIET, "width": 2},
        hoverinfo="skip",
        name="off",
    )
    sheet.x_axis(
        0,
        range=[-0.6, max(5, len(shown)) - 0.4],
        tickvals=places,
        ticktext=[themes.text(p.label, 16 if len(shown) < 9 else 10) for p in shown],
        tickangle=0,
        showgrid=False,
    )
    sheet.y_axis(0, title={"text": "ms per token"}, rangemode="tozero", nticks=5)
    if len(shown) > 1:
        at = len(shown) - 1.5
        line = {"width": 1.2, "dash": "dot", "color": themes.READ}
        sheet.layout["shapes"] = [
            {"type": "line", "x0": at, "x1": at, "yref": "y domain", "y0": 0, "y1": 1, "line": line}
        ]
    return sheet
