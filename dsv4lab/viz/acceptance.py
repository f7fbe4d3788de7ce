"""Speculation: how often the draft in each place is accepted."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from dsv4lab.viz import theme as themes
from dsv4lab.viz.axes import plural
from dsv4lab.viz.sheet import Heading, Sheet, empty_sheet

TITLE = "Accepted drafts"


def acceptance_figure(
    rate_by_place: Sequence[float], accepted_per_step: float, steps: int, *, theme: str = "light"
) -> go.Figure:
    """Draw the share of verify steps that accepted each place's draft; ``accepted_per_step`` is their mean number."""
    return acceptance_sheet(rate_by_place, accepted_per_step, steps).figure(theme)


def acceptance_sheet(rate_by_place: Sequence[float], accepted_per_step: float, steps: int) -> Sheet:
    """The picture of :func:`acceptance_figure` as plain data."""
    if not steps or not rate_by_place:
        return empty_sheet(TITLE, "no draft has been verified yet")
    drafts = len(rate_by_place)
    said = f"{accepted_per_step:.2f} of {plural(drafts, 'draft')} a step, so {1 + accepted_per_step:.2f} tokens"
    sheet = Sheet(Heading(TITLE, f"{said} \N{MIDDLE DOT} {plural(steps, 'verify step')}"), [110])
    sheet.add(
        "bar",
        x=[str(place + 1) for place in range(drafts)],
        y=[100 * rate for rate in rate_by_place],
        marker={"color": themes.GREEN, "line": {"width": 0}},
        text=[f"{100 * rate:.0f}" for rate in rate_by_place],
        hovertemplate="draft %{x}: accepted in %{y:.1f} % of verify steps<extra></extra>",
        name="accepted",
    )
    sheet.x_axis(0, title={"text": "place of the draft"}, type="category", showgrid=False)
    sheet.y_axis(0, title={"text": "accepted (%)"}, range=[0, 105], tickvals=[0, 50, 100])
    return sheet
