"""Packets running and waiting per hardware queue over time."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from dsv4lab.timeline.records import QueueOccupancy
from dsv4lab.viz import theme as themes
from dsv4lab.viz.axes import TimeUnit, time_unit
from dsv4lab.viz.downsample import Floats, Ints, bin_edges, bin_steps
from dsv4lab.viz.sheet import Heading, Sheet, empty_sheet

MOST_STEPS = 1500
MOST_STRIPS = 8
BINS = 600
TITLE = "Hardware-queue occupancy"
_BELOW = 0.3  # height of running packets, as a share of that of waiting ones

_Binned = tuple[Floats, Ints]  # mean and maximum, [queues, bins]


def queue_occupancy_figure(occupancy: QueueOccupancy, *, theme: str = "light", bins: int = BINS) -> go.Figure:
    """Draw one strip per queue: packets waiting stand above the line, packets running hang below it.

    Up to 1500 steps are drawn as they are; longer records show the time-weighted mean of ``bins`` equal pieces, with
    the maximum in the hover. From 9 queues on, strips become one heat map of packets.
    """
    return queue_occupancy_sheet(occupancy, bins=bins).figure(theme)


def queue_occupancy_sheet(occupancy: QueueOccupancy, *, bins: int = BINS, most_steps: int = MOST_STEPS) -> Sheet:
    """The picture of :func:`queue_occupancy_figure` as plain data."""
    if not occupancy.queues or len(occupancy.edges_ns) < 2:
        return empty_sheet(TITLE, "no packets on a hardware queue were recorded")
    origin, end = int(occupancy.edges_ns[0]), int(occupancy.edges_ns[-1])
    unit = time_unit(end - origin)
    strips = len(occupancy.queues) <= MOST_STRIPS
    binned = len(occupancy.edges_ns) - 1 > most_steps or not strips
    edges = bin_edges(origin, end, bins) if binned else occupancy.edges_ns
    running = bin_steps(occupancy.edges_ns, occupancy.running, edges)
    waiting = bin_steps(occupancy.edges_ns, occupancy.waiting, edges)
    subtitle = _subtitle(occupancy)
    if binned:
        subtitle += f" \N{MIDDLE DOT} means of {unit.text((end - origin) / (len(edges) - 1))}"
    draw = _strips if strips else _heat
    return draw(occupancy, subtitle, unit.scale(edges - origin), running, waiting, unit)


def _subtitle(occupancy: QueueOccupancy) -> str:
    width = np.diff(occupancy.edges_ns)
    total = max(1, int(width.sum())) * len(occupancy.queues)
    runs, waits = occupancy.running > 0, occupancy.waiting > 0
    busy, blocked = float((runs * width).sum()) / total, float(((waits & runs) * width).sum()) / total
    most = int(runs.sum(axis=0).max(initial=0))
    return (
        f"{100 * busy:.0f} % of queue time running, {100 * blocked:.0f} % with packets waiting behind"
        f" \N{MIDDLE DOT} at most {most} of {len(occupancy.queues)} run at once"
        + ("" if occupancy.exact else f" \N{MIDDLE DOT} sampled at {len(width)} moments")
    )


def _strips(
    occupancy: QueueOccupancy, subtitle: str, times: Floats, running: _Binned, waiting: _Binned, unit: TimeUnit
) -> Sheet:
    count = len(occupancy.queues)
    sheet = Sheet(Heading(TITLE, subtitle, legend=True), [56] * count, gap=12, shared_x=True)
    top = max(1.0, float(waiting[0].max(initial=0.0)))
    below = _BELOW * top / max(1.0, float(running[0].max(initial=0.0)))
    for q, queue in enumerate(occupancy.queues):
        for label, color, scale, (mean, peak) in (
            ("waiting", themes.ORANGE, 1.0, waiting),
            ("running", themes.BLUE, -below, running),
        ):
            name = f"{themes.text(queue, 40)}: {label}"
            _add_area(sheet, q, label, name, color, times, mean[q] * scale, mean[q], peak[q])
        title = {"text": f"queue {themes.text(queue, 6)}", "font": {"size": 11}, "standoff": 4}
        ticks = [0, round(top)]
        sheet.y_axis(q, title=title, range=[-_BELOW * top * 1.1, top * 1.08], tickvals=ticks, fixedrange=True)
        sheet.x_axis(q, range=[float(times[0]), float(times[-1])])
    sheet.x_axis(count - 1, title={"text": f"time ({unit.name})"})
    sheet.layout["hovermode"] = "x"
    return sheet


def _add_area(
    sheet: Sheet,
    q: int,
    label: str,
    name: str,
    color: str,
    times: Floats,
    y: Floats,
    mean: Floats,
    peak: Ints,
) -> None:
    sheet.add(
        "scatter",
        q,
        x=times,
        y=np.append(y, y[-1]),
        customdata=np.stack([np.append(mean, mean[-1]), np.append(peak, peak[-1])], axis=-1),
        name=f"packets {label}",
        legendgroup=label,
        showlegend=q == 0,
        mode="lines",
        fill="tozeroy",
        line={"shape": "hv", "width": 0.8, "color": color},
        fillcolor=themes.fade(color, 0.9 if label == "running" else 0.5),
        hovertemplate=f"{name} %{{customdata[0]:.2~f}} packets, at most %{{customdata[1]}}<extra></extra>",
        xhoverformat=".3f",
        hoveron="points",
    )


def _heat(
    occupancy: QueueOccupancy, subtitle: str, times: Floats, running: _Binned, waiting: _Binned, unit: TimeUnit
) -> Sheet:
    sheet = Sheet(Heading(TITLE, subtitle), [max(220, min(520, 14 * len(occupancy.queues)))])
    sheet.add(
        "heatmap",
        x=times,
        y=[themes.text(q, 24) for q in occupancy.queues],
        z=waiting[0] + running[0],
        customdata=np.stack([running[0], waiting[0], waiting[1]], axis=-1),
        colorscale=[[0.0, themes.FAINT], [0.3, themes.BLUE], [1.0, themes.ORANGE]],
        zmin=0,
        ygap=1,
        colorbar={"title": {"text": "packets"}},
        hovertemplate=f"queue %{{y}}, %{{x:.3f}} {unit.name}<br>running %{{customdata[0]:.2f}}, "
        "waiting %{customdata[1]:.2f} (at most %{customdata[2]})<extra></extra>",
    )
    bottom_up = [len(occupancy.queues) - 0.5, -0.5]
    sheet.y_axis(0, range=bottom_up, title={"text": "queue"}, type="category")
    sheet.x_axis(0, title={"text": f"time ({unit.name})"})
    return sheet
