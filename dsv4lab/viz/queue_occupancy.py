"""Packets running and waiting per hardware queue over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dsv4lab.timeline.records import QueueOccupancy
from dsv4lab.viz import theme as themes
from dsv4lab.viz.axes import Heading, TimeUnit, dress, empty_figure, time_unit
from dsv4lab.viz.downsample import Floats, Ints, bin_edges, bin_steps

MOST_STEPS = 1500
MOST_STRIPS = 8
BINS = 600
TITLE = "Hardware-queue occupancy"


def queue_occupancy_figure(occupancy: QueueOccupancy, *, theme: str = "light", bins: int = BINS) -> go.Figure:
    """Draw one strip per queue: packets running, and on top of them packets waiting.

    Up to 1500 steps are drawn as they are; longer records show the time-weighted mean of ``bins`` equal pieces, with
    the maximum in the hover. From 9 queues on, strips become one heat map of packets waiting.
    """
    if not occupancy.queues or len(occupancy.edges_ns) < 2:
        return empty_figure(TITLE, "no packets on a hardware queue were recorded", theme)
    origin, end = int(occupancy.edges_ns[0]), int(occupancy.edges_ns[-1])
    unit = time_unit(end - origin)
    strips = len(occupancy.queues) <= MOST_STRIPS
    binned = len(occupancy.edges_ns) - 1 > MOST_STEPS or not strips
    edges = bin_edges(origin, end, bins) if binned else occupancy.edges_ns
    running = bin_steps(occupancy.edges_ns, occupancy.running, edges)
    waiting = bin_steps(occupancy.edges_ns, occupancy.waiting, edges)
    times = unit.scale(edges - origin)
    draw = _strips if strips else _heat
    fig = draw(occupancy, times, running, waiting, unit)
    subtitle = _subtitle(occupancy)
    if binned:
        subtitle += f" \N{MIDDLE DOT} means of {unit.text((end - origin) / (len(edges) - 1))}"
    body = 44 + (68 * len(occupancy.queues) if strips else max(220, min(520, 14 * len(occupancy.queues))))
    return dress(
        fig, Heading(TITLE, subtitle, legend=strips), theme=theme, body=body, hovermode="x" if strips else "closest"
    )


def _subtitle(occupancy: QueueOccupancy) -> str:
    width = np.diff(occupancy.edges_ns)
    total = max(1, int(width.sum()))
    busy = float(((occupancy.running > 0) * width).sum()) / total / len(occupancy.queues)
    blocked = float((((occupancy.waiting > 0) & (occupancy.running > 0)) * width).sum()) / total / len(occupancy.queues)
    many = int((occupancy.running > 0).sum(axis=0).max(initial=0))
    return (
        f"packets on {len(occupancy.queues)} queues \N{MIDDLE DOT} {100 * busy:.0f} % of queue time running, "
        f"{100 * blocked:.0f} % with packets waiting behind \N{MIDDLE DOT} at most {many} queues run at once"
    )


def _strips(
    occupancy: QueueOccupancy, times: Floats, running: tuple[Floats, Ints], waiting: tuple[Floats, Ints], unit: TimeUnit
) -> go.Figure:
    count = len(occupancy.queues)
    fig = make_subplots(rows=count, cols=1, shared_xaxes=True, vertical_spacing=0.16 / count)
    top = max(1.0, float((running[0] + waiting[0]).max(initial=0.0)))
    for q, queue in enumerate(occupancy.queues):
        for label, color, (mean, peak) in (("running", themes.BLUE, running), ("waiting", themes.ORANGE, waiting)):
            fig.add_trace(_area(label, color, times, mean[q], peak[q], queue, q), row=q + 1, col=1)
        fig.update_yaxes(
            row=q + 1,
            col=1,
            title={"text": f"queue {themes.text(queue, 6)}", "font": {"size": 11}, "standoff": 4},
            range=[0, top * 1.05],
            nticks=3,
            rangemode="tozero",
            tickformat="~r",
            fixedrange=True,
        )
    fig.update_xaxes(row=count, col=1, title=f"time ({unit.name})")
    fig.update_xaxes(range=[float(times[0]), float(times[-1])])
    return fig


def _area(label: str, color: str, times: Floats, mean: Floats, peak: Ints, queue: str, q: int) -> go.Scatter:
    return go.Scatter(
        x=times,
        y=np.append(mean, mean[-1]),
        customdata=np.append(peak, peak[-1]),
        name=f"packets {label}",
        legendgroup=label,
        showlegend=q == 0,
        mode="lines",
        stackgroup=f"q{q}",
        line={"shape": "hv", "width": 0.8, "color": color},
        fillcolor=themes.fade(color, 0.75 if label == "running" else 0.45),
        hovertemplate=f"{themes.text(queue, 40)}: {label} %{{y:.2~f}} packets, at most %{{customdata}}<extra></extra>",
        xhoverformat=".3f",
        hoveron="points",
    )


def _heat(
    occupancy: QueueOccupancy, times: Floats, running: tuple[Floats, Ints], waiting: tuple[Floats, Ints], unit: TimeUnit
) -> go.Figure:
    custom: Any = np.stack([running[0], waiting[0], waiting[1]], axis=-1)
    heat = go.Heatmap(
        x=times,
        y=[themes.text(q, 24) for q in occupancy.queues],
        z=waiting[0] + running[0],
        customdata=custom,
        colorscale=[(0.0, themes.FAINT), (0.3, themes.BLUE), (1.0, themes.ORANGE)],
        zmin=0,
        ygap=1,
        colorbar={"title": {"text": "packets"}},
        hovertemplate=f"queue %{{y}}, %{{x:.3f}} {unit.name}<br>running %{{customdata[0]:.2f}}, "
        "waiting %{customdata[1]:.2f} (at most %{customdata[2]})<extra></extra>",
    )
    fig = go.Figure(heat)
    fig.update_yaxes(autorange="reversed", title="queue", type="category")
    fig.update_xaxes(title=f"time ({unit.name})")
    return fig
