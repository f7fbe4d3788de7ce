"""The pool picture: rings by request, pages by owner, and the rows that one query reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from dsv4lab.timeline.records import PoolSnapshot, QueryReads
from dsv4lab.viz import query_reads
from dsv4lab.viz import theme as themes
from dsv4lab.viz.axes import plural
from dsv4lab.viz.pool_cells import (
    CACHED,
    CATEGORIES,
    MOST_RINGS,
    SHARED,
    Cells,
    colorscale,
    page_cells,
    page_owners,
    ring_rows,
    slot_cells,
)
from dsv4lab.viz.query_reads import EntryGrid
from dsv4lab.viz.sheet import Heading, Sheet, empty_sheet

MOST_LEGEND = 6
_GAP = 70
_KIND = {0: "SWA", 4: "CSA", 128: "HCA"}
_HOVER = "%{text}<extra></extra>"


def page_layout_figure(snapshot: PoolSnapshot, reads: QueryReads | None = None, *, theme: str = "light") -> go.Figure:
    """Draw what the pool holds; with ``reads``, mark the rows that this query reads.

    Rings are drawn row by row up to 48 slots, one cell a slot beyond; pages are drawn one cell each up to 4096 and in
    equal groups beyond. Shade tells how recent (rings) or how full (pages) a cell is.
    """
    return page_layout_sheet(snapshot, reads).figure(theme)


def page_layout_sheet(snapshot: PoolSnapshot, reads: QueryReads | None = None) -> Sheet:
    """The picture of :func:`page_layout_figure` as plain data."""
    if snapshot.slots < 1 or snapshot.pages < 1:
        return empty_sheet("KV pool", "the pool has no slots or pages")
    slots = slot_cells(snapshot) if snapshot.slots > MOST_RINGS else None
    pages = page_cells(snapshot)
    entries = query_reads.entry_grid(snapshot, reads) if reads else None
    heights = [_grid_pixels(slots) if slots else max(56, min(20 * snapshot.slots, 420)), _grid_pixels(pages)]
    titles = [_ring_title(snapshot, slots), _page_title(snapshot, pages)]
    if entries is not None and reads is not None:
        heights.append(max(40, min(320, 18 * len(entries.z))))
        titles.append(_entry_title(entries, reads))
    sheet = Sheet(_heading(snapshot, reads), heights, gap=_GAP, titles=titles)
    if slots is None:
        _add_rings(sheet, snapshot)
    else:
        _add_cells(sheet, slots, 0, "slot")
    _add_cells(sheet, pages, 1, "page")
    if reads is not None:
        _add_reads(sheet, snapshot, reads, slots, pages)
    if entries is not None and reads is not None:
        _add_entries(sheet, entries, reads)
    _add_legend(sheet, snapshot, reads)
    return sheet


def _heading(snapshot: PoolSnapshot, reads: QueryReads | None) -> Heading:
    usable, slots = max(0, snapshot.pages - 1), max(0, snapshot.slots - 1)
    parts = [
        plural(len(snapshot.requests), "request"),
        f"{usable - len(snapshot.free_pages):,} of {usable:,} pages in use",
        f"{slots - len(snapshot.free_slots)} of {slots} slots",
        f"{_pool_bytes(snapshot) / 2**20:,.1f} MiB in {len(snapshot.compress_ratios)} layers",
    ]
    if snapshot.cached_pages:
        parts.insert(2, f"{plural(len(snapshot.cached_pages), 'page')} kept by the prefix cache")
    if len(snapshot.requests) > MOST_LEGEND:
        parts.append(f"legend shows the first {MOST_LEGEND} requests")
    title = f"KV pool after step {snapshot.step}"
    if reads is not None:
        kind = _KIND.get(reads.ratio, f"ratio {reads.ratio}")
        place = f"at position {reads.position} in layer {reads.layer} ({kind})"
        title += f": rows that request {reads.request_id} reads {place}"
    return Heading(title, " \N{MIDDLE DOT} ".join(parts), legend=True, panels=True)


def _pool_bytes(snapshot: PoolSnapshot) -> int:
    rings, tokens = snapshot.slots * snapshot.ring_rows, snapshot.pages * snapshot.page_size
    rows = sum(rings + (tokens // ratio if ratio else 0) for ratio in snapshot.compress_ratios)
    return rows * (snapshot.row_bytes or snapshot.head_dim * snapshot.dtype_bytes)


def _ring_title(snapshot: PoolSnapshot, slots: Cells | None) -> str:
    title = f"Rings: {snapshot.slots:,} slots of {snapshot.ring_rows} rows"
    if slots is None:
        return f"{title}, newest position in full colour"
    return f"{title}{_per_cell(slots, 'slots')}, stronger colour is fuller"


def _page_title(snapshot: PoolSnapshot, pages: Cells) -> str:
    title = f"Pages: {snapshot.pages:,} of {snapshot.page_size} tokens"
    return f"{title}{_per_cell(pages, 'pages')}, stronger colour is fuller"


def _entry_title(entries: EntryGrid, reads: QueryReads) -> str:
    title = f"Compressed entries of request {reads.request_id} in layer {reads.layer}"
    unit = "one a cell" if entries.group == 1 else f"{entries.group} a cell"
    return f"{title}: {entries.read:,} of {entries.entries:,} read, {unit}"


def _per_cell(cells: Cells, noun: str) -> str:
    return "" if cells.group == 1 else f", {cells.group} {noun} a cell"


def _grid_pixels(cells: Cells) -> int:
    return max(44, min(300, 20 * len(cells.z)))


def _add_heatmap(sheet: Sheet, panel: int, z: Any, hover: Any, scale: list[tuple[float, str]], **more: Any) -> None:
    fixed = {"hovertemplate": _HOVER, "zmin": 0, "showscale": False, "hoverongaps": False}
    sheet.add("heatmap", panel, z=z, text=hover, colorscale=[list(stop) for stop in scale], **fixed, **more)


def _add_rings(sheet: Sheet, snapshot: PoolSnapshot) -> None:
    z, hover = ring_rows(snapshot)
    _add_heatmap(sheet, 0, z, hover, colorscale(), zmax=CATEGORIES, ygap=2, name="rings")
    owners = {r.slot: r for r in snapshot.requests}
    heads = [(r.slot, (r.tokens - 1) % snapshot.ring_rows) for r in snapshot.requests if r.tokens]
    sheet.add(
        "scatter",
        0,
        x=[row + 0.5 for _, row in heads],
        y=[slot for slot, _ in heads],
        mode="markers",
        marker={"symbol": "line-ns", "size": 14, "line": {"width": 2.5, "color": themes.GREY}},
        name="next write",
        hoverinfo="skip",
        showlegend=False,
    )
    ticks = list(range(0, snapshot.slots, -(-snapshot.slots // 24)))
    names = [f"{s} \N{MIDDLE DOT} req {owners[s].request_id}" if s in owners else f"{s} free" for s in ticks]
    names[0] = "0 reserved"
    _grid_axis(sheet, 0, snapshot.slots, ticks, names, title={"text": "slot"})
    width = [-0.5, snapshot.ring_rows - 0.5]
    sheet.x_axis(0, title={"text": "ring row = position mod ring size"}, range=width, showgrid=False)


def _grid_axis(sheet: Sheet, panel: int, lines: int, ticks: list[int], labels: list[str], **more: Any) -> None:
    sheet.y_axis(panel, range=[lines - 0.5, -0.5], tickvals=ticks, ticktext=labels, showgrid=False, **more)


def _add_cells(sheet: Sheet, cells: Cells, panel: int, noun: str) -> None:
    _add_heatmap(sheet, panel, cells.z, cells.hover, colorscale(), zmax=CATEGORIES, xgap=1, ygap=1, name=f"{noun}s")
    lines, per_row = len(cells.z), cells.columns * cells.group
    ticks = list(range(0, lines, max(1, -(-lines // 12))))
    labels = [f"{t * per_row:,}" for t in ticks]
    _grid_axis(sheet, panel, lines, ticks, labels, showticklabels=lines > 1, title={"text": noun if lines > 1 else ""})
    unit = f"{'+ ' if lines > 1 else ''}{noun}" + (f" / {cells.group}" if cells.group > 1 else "")
    sheet.x_axis(panel, title={"text": unit}, range=[-0.5, cells.columns - 0.5], showgrid=False)


def _add_reads(sheet: Sheet, snapshot: PoolSnapshot, reads: QueryReads, slots: Cells | None, pages: Cells) -> None:
    slot, ring_row = query_reads.window_cells(snapshot, reads)
    if slots is None:
        x, y, size, note = ring_row, slot, 4, [f"window row {r} is read" for r in reads.window_rows]
    else:
        x, y = slots.place(np.unique(slot))
        size, note = 9, [f"{len(slot)} window rows are read"] * len(x)
    _add_marks(sheet, 0, x, y, note, {"symbol": "circle", "size": size, "color": themes.READ})
    page, count = query_reads.pages_read(snapshot, reads)
    x, y = pages.place(page)
    per_page = snapshot.page_size // reads.ratio if reads.ratio else 0
    note = [f"page {p}: {c} of {per_page} rows are read" for p, c in zip(page, count, strict=True)]
    box = {"symbol": "square-open", "size": 9, "color": themes.READ, "line": {"width": 2, "color": themes.READ}}
    _add_marks(sheet, 1, x, y, note, box)


def _add_marks(sheet: Sheet, panel: int, x: Any, y: Any, note: list[str], marker: dict[str, Any]) -> None:
    more = {"name": "reads", "showlegend": False, "hovertemplate": _HOVER}
    sheet.add("scatter", panel, x=x, y=y, mode="markers", marker=marker, text=note, **more)


def _add_entries(sheet: Sheet, entries: EntryGrid, reads: QueryReads) -> None:
    pale, visible = (0.49, themes.FAINT), (0.5, themes.fade(themes.GREY, 0.38))
    scale = [(0.0, themes.FAINT), pale, visible, (0.501, themes.fade(themes.READ, 0.35)), (1.0, themes.READ)]
    _add_heatmap(sheet, 2, entries.z, entries.hover, scale, zmax=2, xgap=1, ygap=1, name="entries")
    per_row = query_reads.ENTRY_COLUMNS * entries.group
    lines = len(entries.z)
    ticks = list(range(0, lines, max(1, -(-lines // 10))))
    _grid_axis(sheet, 2, lines, ticks, [f"{t * per_row:,}" for t in ticks], title={"text": "entry"})
    unit = "+ entry" if entries.group == 1 else f"+ entry / {entries.group}"
    sheet.x_axis(2, title={"text": f"{unit} (one entry = {reads.ratio} tokens)"}, showgrid=False)


def _add_legend(sheet: Sheet, snapshot: PoolSnapshot, reads: QueryReads | None) -> None:
    shown = snapshot.requests[:MOST_LEGEND]
    items = [(f"req {r.request_id}", themes.owner_color(r.request_id), "square") for r in shown]
    kinds = set(page_owners(snapshot).tolist())
    items += [("several requests", themes.SHARED, "square")] if SHARED in kinds else []
    items += [("prefix cache", themes.CACHED, "square")] if CACHED in kinds else []
    items += [("free", themes.IDLE, "square"), ("reserved", themes.RESERVED, "square")]
    if reads is not None:
        items.append(("read by the query", themes.READ, "circle"))
    for name, color, symbol in items:
        marker = {"color": color, "symbol": symbol, "size": 10}
        sheet.add("scatter", x=[None], y=[None], mode="markers", marker=marker, name=name, hoverinfo="skip")
