"""Step time by number of hardware queues: a plan, plan ``off``, and the same plan with ordering edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from dsv4lab.viz import theme as themes
from dsv4lab.viz.axes import time_unit
from dsv4lab.viz.sheet import Heading, Sheet, empty_sheet

TITLE = "Step time by hardware queues"
_COLORS = (themes.BLUE, themes.GREEN, themes.GREY, themes.PINK)
_DASHES = ("solid", "dash", "dot", "dashdot")
_SYMBOLS = ("circle", "square", "diamond", "cross")


def queue_sweep_figure(
    queues: Sequence[int], walls_ns: Mapping[str, Sequence[float]], now: int, *, theme: str = "light"
) -> go.Figure:
    """Draw a line per label of ``walls_ns`` (wall times, one per queue count), and mark the count ``now``."""
    return queue_sweep_sheet(queues, walls_ns, now).figure(theme)


def queue_sweep_sheet(queues: Sequence[int], walls_ns: Mapping[str, Sequence[float]], now: int) -> Sheet:
    """The picture of :func:`queue_sweep_figure` as plain data."""
    if not walls_ns:
        return empty_sheet(TITLE, "simulating other queue counts")
    unit = time_unit(max(max(walls) for walls in walls_ns.values()))
    label, walls = next(iter(walls_ns.items()))
    best = min(range(len(queues)), key=lambda i: (walls[i], queues[i]))
    said = f"{themes.text(label, 40)} is fastest from {queues[best]} queue{'s' * (queues[best] != 1)}"
    sheet = Sheet(Heading(TITLE, f"{said} \N{MIDDLE DOT} simulated, not measured", legend=True), [190])
    ticks = [str(q) for q in queues]
    for n, (name, values) in enumerate(walls_ns.items()):
        color = _COLORS[n % len(_COLORS)]
        sheet.add(
            "scatter",
            x=ticks,
            y=unit.scale(values),
            mode="lines+markers",
            line={"color": color, "width": 2, "dash": _DASHES[n % len(_DASHES)]},
            marker={"size": 8, "symbol": _SYMBOLS[n % len(_SYMBOLS)], "color": color},
            name=themes.text(name, 40),
            hovertemplate=f"%{{x}} queues: %{{y:.2f}} {unit.name}<extra>{themes.text(name, 40)}</extra>",
        )
    sheet.x_axis(0, type="category", title={"text": "hardware queues"}, showgrid=False)
    sheet.y_axis(0, title={"text": f"step ({unit.name})"}, rangemode="tozero")
    if now in queues:
        line = {"width": 1.2, "dash": "dot", "color": themes.READ}
        at = queues.index(now)
        shape = {"type": "line", "x0": at, "x1": at, "yref": "y domain", "y0": 0, "y1": 1, "line": line}
        sheet.layout["shapes"] = [shape]
    return sheet
