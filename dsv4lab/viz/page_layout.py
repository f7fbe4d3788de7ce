"""The pool picture: rings by request, pages by owner, and the rows that one query reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dsv4lab.timeline.records import PoolSnapshot, QueryReads
from dsv4lab.viz import query_reads
from dsv4lab.viz import theme as themes
from dsv4lab.viz.axes import Heading, dress, empty_figure, panel_titles
from dsv4lab.viz.pool_cells import CATEGORIES, MOST_RINGS, Cells, colorscale, page_cells, ring_rows, slot_cells

MOST_LEGEND = 6
_GAP = 70
_KIND = {0: "SWA", 4: "CSA", 128: "HCA"}


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    pixels: int


def page_layout_figure(snapshot: PoolSnapshot, reads: QueryReads | None = None, *, theme: str = "light") -> go.Figure:
    """Draw what the pool holds; with ``reads``, mark the rows that this query reads.

    Rings are drawn row by row up to 48 slots, one cell a slot beyond; pages are drawn one cell each up to 4096 and in
    equal groups beyond. Shade tells how recent (rings) or how full (pages) a cell is.
    """
    if snapshot.slots < 1 or snapshot.pages < 1:
        return empty_figure("KV pool", "the pool has no slots or pages", theme)
    detailed = snapshot.slots <= MOST_RINGS
    slots = None if detailed else slot_cells(snapshot)
    pages = page_cells(snapshot)
    entries = query_reads.entry_grid(snapshot, reads) if reads else None
    panels = _panels(snapshot, slots, pages, reads, entries)
    fig = make_subplots(
        rows=len(panels),
        cols=1,
        row_heights=[p.pixels for p in panels],
        vertical_spacing=_GAP / (sum(p.pixels for p in panels) + _GAP * (len(panels) - 1)),
        subplot_titles=[p.title for p in panels],
    )
    _add_rings(fig, snapshot) if slots is None else _add_cells(fig, slots, 1, "slot")
    _add_cells(fig, pages, 2, "page")
    if reads is not None:
        _add_reads(fig, snapshot, reads, slots, pages)
    if entries is not None and reads is not None:
        _add_entries(fig, entries, reads)
    _add_legend(fig, snapshot, reads)
    _finish(fig, snapshot, reads, panels, theme)
    return fig


def _panels(
    snapshot: PoolSnapshot,
    slots: Cells | None,
    pages: Cells,
    reads: QueryReads | None,
    entries: query_reads.EntryGrid | None,
) -> list[_Panel]:
    rings = f"Rings: {snapshot.slots:,} slots of {snapshot.ring_rows} rows"
    if slots is None:
        panels = [_Panel(f"{rings}, newest position in full colour", max(56, min(20 * snapshot.slots, 420)))]
    else:
        panels = [_Panel(f"{rings}{_per_cell(slots, 'slots')}, stronger colour is fuller", _grid_pixels(slots))]
    title = f"Pages: {snapshot.pages:,} of {snapshot.page_size} tokens{_per_cell(pages, 'pages')}"
    panels.append(_Panel(f"{title}, stronger colour is fuller", _grid_pixels(pages)))
    if entries is not None and reads is not None:
        unit = "one a cell" if entries.group == 1 else f"{entries.group} a cell"
        title = f"Compressed entries of request {reads.request_id} in layer {reads.layer}"
        count = f"{entries.read:,} of {entries.entries:,} read, {unit}"
        panels.append(_Panel(f"{title}: {count}", max(40, min(320, 18 * entries.z.shape[0]))))
    return panels


def _per_cell(cells: Cells, noun: str) -> str:
    return "" if cells.group == 1 else f", {cells.group} {noun} a cell"


def _grid_pixels(cells: Cells) -> int:
    return max(44, min(300, 20 * len(cells.z)))


def _heatmap(z: Any, hover: Any, **more: Any) -> go.Heatmap:
    return go.Heatmap(
        z=z,
        text=hover,
        hovertemplate="%{text}<extra></extra>",
        colorscale=colorscale(),
        zmin=0,
        zmax=CATEGORIES,
        showscale=False,
        hoverongaps=False,
        **more,
    )


def _add_rings(fig: go.Figure, snapshot: PoolSnapshot) -> None:
    z, hover = ring_rows(snapshot)
    fig.add_trace(_heatmap(z, hover, ygap=2, name="rings"), row=1, col=1)
    owners = {r.slot: r for r in snapshot.requests}
    heads = [(r.slot, (r.tokens - 1) % snapshot.ring_rows) for r in snapshot.requests if r.tokens]
    fig.add_trace(
        go.Scatter(
            x=[row + 0.5 for _, row in heads],
            y=[slot for slot, _ in heads],
            mode="markers",
            marker={"symbol": "line-ns", "size": 14, "line": {"width": 2.5, "color": themes.GREY}},
            name="next write",
            hoverinfo="skip",
            showlegend=False,
        ),
        row=1,
        col=1,
    )
    labels = ["0 reserved"] + [
        f"{s} \N{MIDDLE DOT} req {owners[s].request_id}" if s in owners else f"{s} free"
        for s in range(1, snapshot.slots)
    ]
    step = -(-snapshot.slots // 24)
    ticks = list(range(0, snapshot.slots, step))
    fig.update_yaxes(
        row=1,
        col=1,
        autorange="reversed",
        tickvals=ticks,
        ticktext=[labels[t] for t in ticks],
        title="slot",
        showgrid=False,
    )
    fig.update_xaxes(
        row=1, col=1, title="ring row = position mod ring size", range=[-0.5, snapshot.ring_rows - 0.5], showgrid=False
    )


def _add_cells(fig: go.Figure, cells: Cells, row: int, noun: str) -> None:
    fig.add_trace(_heatmap(cells.z, cells.hover, xgap=1, ygap=1, name=f"{noun}s"), row=row, col=1)
    lines, per_row = len(cells.z), cells.columns * cells.group
    ticks = list(range(0, lines, max(1, -(-lines // 12))))
    fig.update_yaxes(
        row=row,
        col=1,
        autorange="reversed",
        tickvals=ticks,
        ticktext=[f"{t * per_row:,}" for t in ticks],
        showticklabels=lines > 1,
        title=noun if lines > 1 else "",
        showgrid=False,
    )
    unit = f"{'+ ' if lines > 1 else ''}{noun}" + (f" / {cells.group}" if cells.group > 1 else "")
    fig.update_xaxes(row=row, col=1, title=unit, range=[-0.5, cells.columns - 0.5], showgrid=False)


def _add_reads(fig: go.Figure, snapshot: PoolSnapshot, reads: QueryReads, slots: Cells | None, pages: Cells) -> None:
    slot, ring_row = query_reads.window_cells(snapshot, reads)
    if slots is None:
        x, y, size, note = ring_row, slot, 4, [f"window row {r} is read" for r in reads.window_rows]
    else:
        x, y = slots.place(np.unique(slot))
        size, note = 9, [f"{len(slot)} window rows are read"] * len(x)
    fig.add_trace(_read_marks(x, y, size, note, "circle"), row=1, col=1)
    page, count = query_reads.pages_read(snapshot, reads)
    x, y = pages.place(page)
    per_page = snapshot.page_size // reads.ratio if reads.ratio else 0
    note = [f"page {p}: {c} of {per_page} rows are read" for p, c in zip(page, count, strict=True)]
    fig.add_trace(_read_marks(x, y, 9, note, "square-open"), row=2, col=1)


def _read_marks(x: Any, y: Any, size: int, note: list[str], symbol: str) -> go.Scatter:
    return go.Scatter(
        x=x,
        y=y,
        mode="markers",
        marker={
            "symbol": symbol,
            "size": size,
            "color": themes.READ,
            "line": {"width": 2 if symbol.endswith("open") else 0, "color": themes.READ},
        },
        text=note,
        hovertemplate="%{text}<extra></extra>",
        name="reads",
        showlegend=False,
    )


def _add_entries(fig: go.Figure, entries: query_reads.EntryGrid, reads: QueryReads) -> None:
    scale = [
        (0.0, themes.FAINT),
        (0.49, themes.FAINT),
        (0.5, themes.fade(themes.GREY, 0.38)),
        (0.501, themes.fade(themes.READ, 0.35)),
        (1.0, themes.READ),
    ]
    fig.add_trace(
        go.Heatmap(
            z=entries.z,
            text=entries.hover,
            hovertemplate="%{text}<extra></extra>",
            colorscale=scale,
            zmin=0,
            zmax=2,
            xgap=1,
            ygap=1,
            showscale=False,
            hoverongaps=False,
            name="entries",
        ),
        row=3,
        col=1,
    )
    per_row = query_reads.ENTRY_COLUMNS * entries.group
    step = max(1, -(-entries.z.shape[0] // 10))
    ticks = list(range(0, entries.z.shape[0], step))
    fig.update_yaxes(
        row=3,
        col=1,
        autorange="reversed",
        tickvals=ticks,
        ticktext=[f"{t * per_row:,}" for t in ticks],
        title="entry",
        showgrid=False,
    )
    unit = "+ entry" if entries.group == 1 else f"+ entry / {entries.group}"
    fig.update_xaxes(row=3, col=1, title=f"{unit} (one entry = {reads.ratio} tokens)", showgrid=False)


def _add_legend(fig: go.Figure, snapshot: PoolSnapshot, reads: QueryReads | None) -> None:
    items = [
        (f"req {r.request_id}", themes.owner_color(r.request_id), "square") for r in snapshot.requests[:MOST_LEGEND]
    ]
    items += [("free", themes.IDLE, "square"), ("reserved", themes.RESERVED, "square")]
    if reads is not None:
        items.append(("read by the query", themes.READ, "circle"))
    for name, color, symbol in items:
        marker = {"color": color, "symbol": symbol, "size": 10}
        fig.add_trace(
            go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=name, hoverinfo="skip"), row=1, col=1
        )


def _finish(fig: go.Figure, snapshot: PoolSnapshot, reads: QueryReads | None, panels: list[_Panel], theme: str) -> None:
    usable, slots = max(0, snapshot.pages - 1), max(0, snapshot.slots - 1)
    parts = [
        f"{len(snapshot.requests)} requests",
        f"{usable - len(snapshot.free_pages):,} of {usable:,} pages in use",
        f"{slots - len(snapshot.free_slots)} of {slots} slots",
        f"{_pool_bytes(snapshot) / 2**20:,.1f} MiB in {len(snapshot.compress_ratios)} layers",
    ]
    if len(snapshot.requests) > MOST_LEGEND:
        parts.append(f"legend shows the first {MOST_LEGEND} requests")
    title = f"KV pool after step {snapshot.step}"
    if reads is not None:
        kind = _KIND.get(reads.ratio, f"ratio {reads.ratio}")
        title += (
            f": rows that request {reads.request_id} reads at position {reads.position} in layer {reads.layer} ({kind})"
        )
    body = sum(p.pixels for p in panels) + _GAP * (len(panels) - 1) + 44
    dress(fig, Heading(title, " \N{MIDDLE DOT} ".join(parts), legend=True, panels=True), theme=theme, body=body)
    panel_titles(fig, left=True)


def _pool_bytes(snapshot: PoolSnapshot) -> int:
    rings = snapshot.slots * snapshot.ring_rows
    rows = sum(
        rings + (snapshot.pages * snapshot.page_size // ratio if ratio else 0) for ratio in snapshot.compress_ratios
    )
    return rows * snapshot.head_dim * snapshot.dtype_bytes
