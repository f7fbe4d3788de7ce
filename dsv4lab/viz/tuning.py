"""Pictures of a tuning session: TPOT heat map, gain over ``off``, TPOT against throughput."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dsv4lab.timeline.records import SweepRow
from dsv4lab.viz import theme as themes
from dsv4lab.viz.axes import Heading, dress, empty_figure, panel_titles

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
_NOTHING = "the session has no measured rows"


def tpot_heatmap(rows: Sequence[SweepRow], *, theme: str = "light") -> go.Figure:
    """TPOT by plan and hardware queues, one panel per concurrency level; each panel has its own best cell framed."""
    measured = [r for r in rows if not r.control]
    if not measured:
        return empty_figure("TPOT", _NOTHING, theme)
    levels = sorted({r.concurrency_level for r in measured})
    plans = list(dict.fromkeys(r.plan for r in measured))
    queues = sorted({r.hw_queues for r in measured})
    titles = [f"concurrency level {level}" for level in levels]
    fig = make_subplots(
        rows=1,
        cols=len(levels),
        shared_yaxes=True,
        subplot_titles=titles,
        horizontal_spacing=min(0.04, 0.5 / len(levels)),
    )
    for number, level in enumerate(levels, start=1):
        chosen = {(r.plan, r.hw_queues): r for r in measured if r.concurrency_level == level}
        _add_panel(fig, chosen, plans, queues, number)
    fig.update_xaxes(title="hardware queues", type="category", showgrid=False)
    fig.update_yaxes(type="category", showgrid=False, autorange="reversed")
    fig.update_yaxes(title="plan", col=1)
    head = Heading(
        "TPOT (ms per token)", "median over requests; green is faster within a panel, the best is framed", panels=True
    )
    panel_titles(fig, left=False)
    return dress(fig, head, theme=theme, body=48 + 44 * len(plans))


def _add_panel(
    fig: go.Figure, chosen: dict[tuple[str, int], SweepRow], plans: list[str], queues: list[int], col: int
) -> None:
    cells = [[chosen.get((plan, q)) for q in queues] for plan in plans]
    z = np.array([[r.tpot_ms if r else np.nan for r in line] for line in cells], dtype=np.float64)
    fig.add_trace(
        go.Heatmap(
            x=[str(q) for q in queues],
            y=[themes.text(p, 24) for p in plans],
            z=z,
            text=[[f"{r.tpot_ms:.2f}" if r else "" for r in line] for line in cells],
            texttemplate="%{text}",
            customdata=[[_row_text(r) if r else "not measured" for r in line] for line in cells],
            hovertemplate="%{customdata}<extra></extra>",
            colorscale=[
                (0.0, themes.fade(themes.GREEN, 0.75)),
                (0.5, themes.IDLE),
                (1.0, themes.fade(themes.ORANGE, 0.75)),
            ],
            showscale=False,
            xgap=3,
            ygap=3,
            hoverongaps=False,
        ),
        row=1,
        col=col,
    )
    if np.isfinite(z).any():
        best = np.unravel_index(int(np.nanargmin(z)), z.shape)
        x, y = float(best[1]), float(best[0])
        fig.add_shape(
            type="rect",
            x0=x - 0.49,
            x1=x + 0.49,
            y0=y - 0.48,
            y1=y + 0.48,
            line={"width": 2.5, "color": themes.GREEN},
            row=1,
            col=col,
        )


def delta_bars(rows: Sequence[SweepRow], *, theme: str = "light") -> go.Figure:
    """Change of TPOT against ``off`` at the same queues and concurrency level, in percent; below zero is faster."""
    compared = [r for r in rows if r.delta_vs_off is not None and r.plan != "off"]
    if not compared:
        return empty_figure("TPOT against off", "no row has a measured off beside it", theme)
    levels = sorted({r.concurrency_level for r in compared})
    fig = make_subplots(
        rows=1,
        cols=len(levels),
        shared_yaxes=True,
        subplot_titles=[f"concurrency level {n}" for n in levels],
        horizontal_spacing=min(0.04, 0.5 / len(levels)),
    )
    plans = list(dict.fromkeys(r.plan for r in compared))
    for number, plan in enumerate(plans):
        for col, level in enumerate(levels, start=1):
            picked = [r for r in compared if r.plan == plan and r.concurrency_level == level]
            picked.sort(key=lambda r: r.hw_queues)
            values = [100 * (r.delta_vs_off or 0.0) for r in picked]
            fig.add_trace(
                go.Bar(
                    x=[str(r.hw_queues) for r in picked],
                    y=values,
                    name=themes.text(plan, 24),
                    legendgroup=plan,
                    showlegend=col == 1,
                    marker={"color": _plan_color(plan, number)},
                    text=[f"{v:+.1f}" for v in values],
                    textposition="outside",
                    customdata=[_row_text(r) for r in picked],
                    hovertemplate="%{customdata}<extra></extra>",
                    cliponaxis=False,
                ),
                row=1,
                col=col,
            )
    fig.update_xaxes(title="hardware queues", type="category", showgrid=False)
    fig.update_yaxes(zeroline=True, zerolinecolor=themes.GREY, zerolinewidth=1.5)
    fig.update_yaxes(title="TPOT change (%)", col=1)
    head = Heading(
        "TPOT against off", "same queues, same concurrency level; below zero is faster", legend=True, panels=True
    )
    panel_titles(fig, left=False)
    return dress(fig, head, theme=theme, body=260, barmode="group")


def tradeoff_scatter(rows: Sequence[SweepRow], *, theme: str = "light") -> go.Figure:
    """Tokens per second against TPOT, with the p10 to p90 range and the line of settings that nothing beats on both."""
    if not rows:
        return empty_figure("Latency and throughput", _NOTHING, theme)
    fig = go.Figure()
    front = _front(rows)
    if len(front) > 1:
        line = {"color": themes.GREY, "width": 1.5, "dash": "dot"}
        fig.add_trace(
            go.Scatter(
                x=[r.tpot_ms for r in front],
                y=[r.tokens_per_s for r in front],
                mode="lines",
                line=line,
                name="nothing better on both",
                hoverinfo="skip",
            )
        )
    queues = sorted({r.hw_queues for r in rows})
    for number, plan in enumerate(dict.fromkeys(r.plan for r in rows)):
        picked = [r for r in rows if r.plan == plan]
        symbols = [_SYMBOLS[queues.index(r.hw_queues) % len(_SYMBOLS)] + ("-open" if r.control else "") for r in picked]
        color = _plan_color(plan, number)
        fig.add_trace(
            go.Scatter(
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
                marker={
                    "size": [9 + 2 * min(6, r.concurrency_level.bit_length()) for r in picked],
                    "color": color,
                    "symbol": symbols,
                    "line": {"width": 1, "color": color},
                },
                name=themes.text(plan, 24),
                customdata=[_row_text(r) for r in picked],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
    fig.update_xaxes(title="TPOT (ms per token)")
    fig.update_yaxes(title="throughput (tokens/s)", rangemode="tozero")
    shapes = ", ".join(f"{_SYMBOLS[i % len(_SYMBOLS)].replace('-up', '')} {q} queues" for i, q in enumerate(queues))
    head = Heading(
        "Latency and throughput", f"{shapes}; larger marks: more requests in flight; bars: p10 to p90", legend=True
    )
    return dress(fig, head, theme=theme, body=320)


def _front(rows: Sequence[SweepRow]) -> list[SweepRow]:
    best: list[SweepRow] = []
    for row in sorted((r for r in rows if not r.control), key=lambda r: (r.tpot_ms, -r.tokens_per_s)):
        if not best or row.tokens_per_s > best[-1].tokens_per_s:
            best.append(row)
    return best


def _plan_color(plan: str, number: int) -> str:
    fixed = {"off": themes.GREY, "hip": themes.ORANGE, "cuda": themes.GREEN}
    return fixed.get(plan, themes.CYCLE[(number + 3) % len(themes.CYCLE)])


def _row_text(row: SweepRow) -> str:
    delta = "" if row.delta_vs_off is None else f"<br>{100 * row.delta_vs_off:+.1f} % against off"
    busy = row.stream_busy
    name = f"<b>{themes.text(row.plan, 40)}</b>" + (" (control)" if row.control else "")
    lines = [
        f"{name}, {row.hw_queues} queues, concurrency level {row.concurrency_level}",
        f"TPOT {row.tpot_ms:.2f} ms (p10 {row.tpot_p10_ms:.2f}, p90 {row.tpot_p90_ms:.2f})",
        f"TTFT {row.ttft_ms:.1f} ms, {row.tokens_per_s:.1f} tokens/s{delta}",
        f"streams {busy.concurrency:.3f}\N{MULTIPLICATION SIGN}",
    ]
    return "<br>".join(lines)
