"""Pictures of a tuning session: TPOT heat map, gain over ``off``, TPOT against throughput."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from dsv4lab.timeline.records import SweepRow
from dsv4lab.viz import theme as themes
from dsv4lab.viz.axes import plural
from dsv4lab.viz.pareto import add_front
from dsv4lab.viz.sheet import Heading, Sheet, empty_sheet

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
_NOTHING = "the session has no measured rows"
_HOVER = "%{customdata}<extra></extra>"


def tpot_heatmap(rows: Sequence[SweepRow], *, theme: str = "light") -> go.Figure:
    """TPOT by plan and hardware queues, one panel per concurrency level; each panel has its own best cell framed."""
    return tpot_heatmap_sheet(rows).figure(theme)


def tpot_heatmap_sheet(rows: Sequence[SweepRow]) -> Sheet:
    """The picture of :func:`tpot_heatmap` as plain data."""
    measured = [r for r in rows if not r.control]
    if not measured:
        return empty_sheet("TPOT", _NOTHING)
    levels = sorted({r.concurrency_level for r in measured})
    plans = list(dict.fromkeys(r.plan for r in measured))
    queues = sorted({r.hw_queues for r in measured})
    said = "median over requests; green is faster within a panel, the best is framed"
    head = Heading("TPOT (ms per token)", said, panels=True)
    sheet = Sheet(head, [44 * len(plans)], columns=len(levels), titles=_level_titles(levels), shared_y=True)
    for panel, level in enumerate(levels):
        chosen = {(r.plan, r.hw_queues): r for r in measured if r.concurrency_level == level}
        _add_panel(sheet, chosen, plans, queues, panel)
    sheet.y_axis(0, title={"text": "plan"})
    return sheet


def _level_titles(levels: list[int]) -> list[str]:
    return [f"concurrency level {level}" for level in levels]


def _add_panel(
    sheet: Sheet, chosen: dict[tuple[str, int], SweepRow], plans: list[str], queues: list[int], panel: int
) -> None:
    cells = [[chosen.get((plan, q)) for q in queues] for plan in plans]
    z = np.array([[r.tpot_ms if r else np.nan for r in line] for line in cells], dtype=np.float64)
    fast, slow = themes.fade(themes.GREEN, 0.75), themes.fade(themes.ORANGE, 0.75)
    sheet.add(
        "heatmap",
        panel,
        x=[str(q) for q in queues],
        y=[themes.text(p, 24) for p in plans],
        z=z,
        text=[[f"{r.tpot_ms:.2f}" if r else "" for r in line] for line in cells],
        texttemplate="%{text}",
        customdata=[[row_text(r) if r else "not measured" for r in line] for line in cells],
        hovertemplate=_HOVER,
        colorscale=[[0.0, fast], [0.5, themes.IDLE], [1.0, slow]],
        showscale=False,
        xgap=3,
        ygap=3,
        hoverongaps=False,
    )
    sheet.x_axis(panel, title={"text": "hardware queues"}, type="category", showgrid=False)
    sheet.y_axis(panel, type="category", range=[len(plans) - 0.5, -0.5], showgrid=False)
    if np.isfinite(z).any():
        y, x = np.unravel_index(int(np.nanargmin(z)), z.shape)
        axes = {"xref": sheet.data[-1]["xaxis"], "yref": sheet.data[-1]["yaxis"]}
        box = {"x0": float(x) - 0.49, "x1": float(x) + 0.49, "y0": float(y) - 0.48, "y1": float(y) + 0.48}
        frame = {"type": "rect", "line": {"width": 2.5, "color": themes.GREEN}, **box, **axes}
        sheet.layout.setdefault("shapes", []).append(frame)


def delta_bars(rows: Sequence[SweepRow], *, theme: str = "light") -> go.Figure:
    """Change of TPOT against ``off`` at the same queues and concurrency level, in percent; below zero is faster."""
    return delta_bars_sheet(rows).figure(theme)


def delta_bars_sheet(rows: Sequence[SweepRow]) -> Sheet:
    """The picture of :func:`delta_bars` as plain data."""
    compared = [r for r in rows if r.delta_vs_off is not None and r.plan != "off"]
    if not compared:
        return empty_sheet("TPOT against off", "no row has a measured off beside it")
    levels = sorted({r.concurrency_level for r in compared})
    said = "same queues, same concurrency level; below zero is faster"
    head = Heading("TPOT against off", said, legend=True, panels=True)
    sheet = Sheet(head, [216], columns=len(levels), titles=_level_titles(levels), shared_y=True)
    known = list(dict.fromkeys(r.plan for r in rows))  # so that a plan has one colour in all pictures
    for plan in dict.fromkeys(r.plan for r in compared):
        number = known.index(plan)
        for panel, level in enumerate(levels):
            picked = [r for r in compared if r.plan == plan and r.concurrency_level == level]
            _add_deltas(sheet, sorted(picked, key=lambda r: r.hw_queues), plan, number, panel)
    for panel in range(len(levels)):
        sheet.x_axis(panel, title={"text": "hardware queues"}, type="category", showgrid=False)
        sheet.y_axis(panel, zeroline=True, zerolinecolor=themes.GREY, zerolinewidth=1.5)
    sheet.y_axis(0, title={"text": "TPOT change (%)"})
    sheet.layout["barmode"] = "group"
    return sheet


def _add_deltas(sheet: Sheet, picked: list[SweepRow], plan: str, number: int, panel: int) -> None:
    values = [100 * (r.delta_vs_off or 0.0) for r in picked]
    sheet.add(
        "bar",
        panel,
        x=[str(r.hw_queues) for r in picked],
        y=values,
        name=themes.text(plan, 24),
        legendgroup=themes.text(plan),
        showlegend=panel == 0,
        marker={"color": _plan_color(plan, number)},
        text=[f"{v:+.1f}" for v in values],
        textposition="outside",
        customdata=[row_text(r) for r in picked],
        hovertemplate=_HOVER,
        cliponaxis=False,
    )


def tradeoff_scatter(rows: Sequence[SweepRow], *, theme: str = "light") -> go.Figure:
    """Tokens per second against TPOT, with the p10 to p90 range and the line of settings that nothing beats on both."""
    return tradeoff_sheet(rows).figure(theme)


def tradeoff_sheet(rows: Sequence[SweepRow], chosen: SweepRow | None = None) -> Sheet:
    """The picture of :func:`tradeoff_scatter` as plain data, with a ring around the row ``chosen``."""
    if not rows:
        return empty_sheet("Latency and throughput", _NOTHING)
    queues = sorted({r.hw_queues for r in rows})
    names = [_SYMBOLS[i % len(_SYMBOLS)].removesuffix("-up") for i in range(len(queues))]
    shapes = ", ".join(f"{name} {plural(q, 'queue')}" for name, q in zip(names, queues, strict=True))
    said = f"{shapes}; larger marks: more requests in flight; bars: p10 to p90"
    sheet = Sheet(Heading("Latency and throughput", said, legend=True), [276])
    add_front(sheet, [r for r in rows if not r.control])
    for number, plan in enumerate(dict.fromkeys(r.plan for r in rows)):
        _add_points(sheet, [r for r in rows if r.plan == plan], queues, _plan_color(plan, number), number)
    if chosen is not None:
        ring = {"size": 26, "symbol": "circle-open", "color": themes.READ, "line": {"width": 2.5}}
        at = {"x": [chosen.tpot_ms], "y": [chosen.tokens_per_s], "mode": "markers", "marker": ring}
        sheet.add("scatter", **at, name="chosen", showlegend=False, hoverinfo="skip")
    sheet.x_axis(0, title={"text": "TPOT (ms per token)"})
    sheet.y_axis(0, title={"text": "throughput (tokens/s)"}, rangemode="tozero")
    return sheet


def _add_points(sheet: Sheet, picked: list[SweepRow], queues: list[int], color: str, number: int) -> None:
    symbols = [_SYMBOLS[queues.index(r.hw_queues) % len(_SYMBOLS)] + ("-open" if r.control else "") for r in picked]
    sizes = [9 + 2 * min(6, r.concurrency_level.bit_length()) for r in picked]
    sheet.add(
        "scatter",
        x=[r.tpot_ms for r in picked],
        y=[r.tokens_per_s for r in picked],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [max(0.0, r.tpot_p90_ms - r.tpot_ms) for r in picked],
            "arrayminus": [max(0.0, r.tpot_ms - r.tpot_p10_ms) for r in picked],
            "thickness": 1,
            "width": 3,
            "color": themes.fade(color, 0.5),
        },
        mode="markers",
        marker={"size": sizes, "color": color, "symbol": symbols, "line": {"width": 1, "color": color}},
        name=themes.text(picked[0].plan, 24),
        meta=str(number),
        customdata=[row_text(r) for r in picked],
        hovertemplate=_HOVER,
    )


def _plan_color(plan: str, number: int) -> str:
    fixed = {"off": themes.GREY, "hip": themes.ORANGE, "cuda": themes.GREEN}
    return fixed.get(plan, themes.CYCLE[(number + 3) % len(themes.CYCLE)])


def row_text(row: SweepRow) -> str:
    """A row in words, escaped, for hovers."""
    delta = "" if row.delta_vs_off is None else f"<br>{100 * row.delta_vs_off:+.1f} % against off"
    name = f"<b>{themes.text(row.plan, 40)}</b>" + (" (control)" if row.control else "")
    lines = [
        f"{name}, {plural(row.hw_queues, 'queue')}, concurrency level {row.concurrency_level}",
        f"TPOT {row.tpot_ms:.2f} ms (p10 {row.tpot_p10_ms:.2f}, p90 {row.tpot_p90_ms:.2f})",
        f"TTFT {row.ttft_ms:.1f} ms, {row.tokens_per_s:.1f} tokens/s{delta}",
        f"streams {row.stream_busy.concurrency:.3f}\N{MULTIPLICATION SIGN}",
    ]
    return "<br>".join(lines)
