"""Pictures of the concept pages: drawn from the queue model and the pool's arithmetic while the site is built."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from dsv4lab import viz
from dsv4lab.config.presets import preset
from dsv4lab.kv.allocator import Allocator, Lease
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.snapshot import pool_snapshot, query_reads
from dsv4lab.overlap.plan import OFF
from dsv4lab.predict.setting import Setting, leans, predict, runtimes_of
from dsv4lab.queues.costs import machine
from dsv4lab.queues.program_json import workload_from_json
from dsv4lab.queues.simulate import Simulated, simulate
from dsv4lab.timeline.timeline import Kind
from dsv4lab.viz.theme import THEMES, template

DEVICE, RUNTIME, ORDERED = "mi355x", "rocm-10", "rocm-10+ordering-edges"
LAYER = (
    {"name": "norm", "stream": "main", "duration_us": 6},
    {"name": "compressor", "stream": "side0", "duration_us": 22, "after": ["norm"], "occupancy": 0.3},
    {"name": "indexer", "stream": "side1", "duration_us": 18, "after": ["norm"], "occupancy": 0.3},
    {"name": "qkv", "stream": "main", "duration_us": 26, "occupancy": 0.4},
    {"name": "attention", "stream": "main", "duration_us": 20, "after": ["compressor", "indexer"]},
)
"""A layer in miniature; the streams and queues notebook runs the same one."""

_LABEL = {"color": "#ffffff", "size": 12}
TOKENS = (700, 1800, 120, 2600)


def block(figure: go.Figure, caption: str = "") -> str:
    """``figure`` as a piece of a page, for ``assets/figures.js`` to draw in the reader's colours."""
    plain = plain_figure(figure.to_plotly_json())
    height = plain["layout"].get("height", 360)
    text = json.dumps(plain, default=_listed, separators=(",", ":")).replace("</", "<\\/")
    below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure class="lab-figure"><div class="lab-figure__plot" style="height:{height}px"></div>'
        f'<script type="application/json">{text}</script>{below}</figure>'
    )


def plain_figure(figure: dict[str, Any]) -> dict[str, Any]:
    """``data`` and ``layout`` without the template, which the page brings, and without a fixed width."""
    left_out = ("template", "width", "autosize")
    return {"data": figure["data"], "layout": {k: v for k, v in figure["layout"].items() if k not in left_out}}


def templates() -> dict[str, Any]:
    """The colours of every theme, by name."""
    return {theme: template(theme).to_plotly_json() for theme in THEMES}


def plotly_source() -> str:
    """The plotly.js that the installed plotly carries."""
    return str(get_plotlyjs())


def _listed(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return value.to_plotly_json()


@cache
def _layer_on(queues: int, runtime: str = RUNTIME) -> Simulated:
    on = machine(DEVICE, runtime, queues)
    return simulate(workload_from_json({"ops": list(LAYER), "launch": "eager", "name": "a layer"}, on), on)


def _layer(queues: int) -> Callable[[], go.Figure]:
    def draw() -> go.Figure:
        timeline = _layer_on(queues).timeline()
        names = [
            timeline.names[n] if k == Kind.KERNEL else "" for n, k in zip(timeline.name, timeline.kind, strict=True)
        ]
        ink = {"color": "#ffffff", "size": 12}
        figure = viz.timeline_figure(timeline, lanes="queue")
        return figure.update_traces(
            text=names, textposition="inside", insidetextanchor="middle", textfont=ink, textangle=0
        )

    return draw


def _layer_busy() -> go.Figure:
    runs = {f"{n} queue{'s' * (n > 1)}": _layer_on(n).timeline().stream_busy() for n in (1, 2, 4)}
    return viz.stream_busy_figure(runs)


def _occupancy() -> go.Figure:
    run = Setting(DEVICE, ORDERED, 4, layers=4).run()
    return viz.queue_occupancy_figure(run.timeline().queue_occupancy())


def _step() -> go.Figure:
    return viz.timeline_figure(Setting(DEVICE, ORDERED, 4, layers=2).run().timeline(), lanes="stream")


def _runtimes() -> go.Figure:
    settings = [Setting(DEVICE, runtime, 4) for runtime in runtimes_of(DEVICE)]
    points = [(s, predict(s)) for s in settings]
    about = f"{DEVICE}, V4-Pro on 8 ranks, concurrency level 4, plan hip on 4 queues"
    return viz.predicted_figure([viz.Predicted(s.runtime, about, p.tpot_ms, p.off_tpot_ms) for s, p in points])


def _levels() -> go.Figure:
    settings = [Setting(DEVICE, ORDERED, 4, concurrency=level) for level in (1, 4, 8, 16, 32)]
    points = [(s, predict(s)) for s in settings]
    label = "level {}".format
    return viz.predicted_figure(
        [viz.Predicted(label(s.concurrency), f"{DEVICE}, {ORDERED}", p.tpot_ms, p.off_tpot_ms) for s, p in points]
    )


def _plan_busy() -> go.Figure:
    setting = Setting(DEVICE, ORDERED, 4, layers=8)
    runs = {"off": replace(setting, plan=OFF).run(), "hip": setting.run()}
    return viz.stream_busy_figure({name: run.timeline().stream_busy() for name, run in runs.items()})


def _sensitivity() -> go.Figure:
    return viz.sensitivity_figure(*leans(Setting(DEVICE, ORDERED, 4)))


@cache
def _pool() -> tuple[Geometry, Allocator, tuple[Lease, ...]]:
    geometry = Geometry.plan(preset("demo"), 6, 8192)
    allocator = Allocator(geometry)
    return geometry, allocator, tuple(allocator.admit(i, tokens) for i, tokens in enumerate(TOKENS, 1))


def _pool_figure(ratio: int | None = None) -> Callable[[], go.Figure]:
    def draw() -> go.Figure:
        geometry, allocator, leases = _pool()
        held = {lease.request_id: tokens for lease, tokens in zip(leases, TOKENS, strict=True)}
        snapshot = pool_snapshot(geometry, allocator, held, 0, dtype_bytes=4)
        if ratio is None:
            return viz.page_layout_figure(snapshot)
        position = TOKENS[1] - 1
        chosen = range(position // 4 % 7, (position + 1) // 4, 13) if ratio == 4 else None
        layer = geometry.compress_ratios.index(ratio)
        return viz.page_layout_figure(snapshot, query_reads(geometry, leases[1], position, layer, chosen))

    return draw


PICTURES: dict[str, Callable[[], go.Figure]] = {
    "layer-one-queue": _layer(1),
    "layer-two-queues": _layer(2),
    "layer-four-queues": _layer(4),
    "layer-busy": _layer_busy,
    "step-streams": _step,
    "step-occupancy": _occupancy,
    "plan-busy": _plan_busy,
    "gain-by-runtime": _runtimes,
    "gain-by-level": _levels,
    "gain-leans-on": _sensitivity,
    "pool": _pool_figure(),
    "pool-swa-reads": _pool_figure(0),
    "pool-csa-reads": _pool_figure(4),
    "pool-hca-reads": _pool_figure(128),
}
"""What ``<!-- picture: NAME | caption -->`` may name."""
