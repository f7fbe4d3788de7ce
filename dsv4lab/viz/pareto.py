"""The line of settings that nothing beats in both latency and throughput."""

from __future__ import annotations

from collections.abc import Iterable

from dsv4lab.timeline.pareto import HasFigures, pareto_front
from dsv4lab.viz import theme as themes
from dsv4lab.viz.sheet import Sheet


def add_front(sheet: Sheet, records: Iterable[HasFigures]) -> None:
    """Draw the Pareto front of ``records`` on a sheet of TPOT against throughput; nothing if it is one record."""
    front = pareto_front(records)
    if len(front) > 1:
        sheet.add(
            "scatter",
            x=[record.tpot_ms for record in front],
            y=[record.tokens_per_s for record in front],
            mode="lines",
            line={"color": themes.GREY, "width": 1.5, "dash": "dot"},
            name="nothing better on both",
            hoverinfo="skip",
        )
