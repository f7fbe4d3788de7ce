"""What each cell of the pool picture shows, as arrays: category, shade and hover text. No drawing here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.records import PoolRequest, PoolSnapshot
from dsv4lab.viz import theme
from dsv4lab.viz.downsample import group_size

FREE, RESERVED, STRAY, CACHED, SHARED = range(5)
FIRST_OWNER = 5
CATEGORIES = FIRST_OWNER + len(theme.CYCLE)
MOST_RINGS = 48
MOST_CELLS = 4096
_FULL = 0.98


@dataclass(frozen=True, eq=False, slots=True)
class Cells:
    """A grid of cells, row by row: ``z`` is category + shade in [0, 0.98], ``NaN`` past the end.

    ``z`` and ``hover`` have shape ``[rows, columns]``. Cell ``i`` holds items ``i * group`` to ``(i + 1) * group - 1``.
    """

    z: NDArray[np.float64]
    hover: NDArray[np.object_]
    group: int

    @property
    def columns(self) -> int:
        """Cells in one row."""
        return int(self.z.shape[1])

    def place(self, items: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Column and row of the cells that hold ``items``."""
        cell = items // self.group
        return cell % self.columns, cell // self.columns


def category(request_id: int) -> int:
    """Colour category of a request."""
    return FIRST_OWNER + request_id % len(theme.CYCLE)


def colorscale() -> list[tuple[float, str]]:
    """Plotly colour scale for ``z`` over ``[0, CATEGORIES]``: pale to full within each category."""
    bands = [(theme.FAINT, theme.FAINT), (theme.RESERVED, theme.RESERVED), (theme.fade(theme.GREY, 0.5), theme.GREY)]
    bands += [(theme.fade(color, 0.22), color) for color in (theme.CACHED, theme.SHARED, *theme.CYCLE)]
    stops: list[tuple[float, str]] = []
    for number, (pale, full) in enumerate(bands):
        stops += [(number / CATEGORIES, pale), ((number + 0.99) / CATEGORIES, full)]
    return [*stops, (1.0, bands[-1][1])]


def ring_rows(snapshot: PoolSnapshot) -> tuple[NDArray[np.float64], NDArray[np.object_]]:
    """``z`` and hover, ``[slots, ring_rows]``: one cell per ring row, the newest position in full colour."""
    shape = (snapshot.slots, snapshot.ring_rows)
    z, hover = np.zeros(shape), np.empty(shape, object)
    hover[:] = "free ring"
    z[0], hover[0] = RESERVED, "slot 0 is reserved: padding writes land here"
    row = np.arange(snapshot.ring_rows)
    for request in snapshot.requests:
        head = request.tokens - 1
        position = head - (head - row) % snapshot.ring_rows
        written = position >= 0
        shade = 0.25 + (_FULL - 0.25) * (1 - (head - position) / snapshot.ring_rows)
        z[request.slot] = category(request.request_id) + np.where(written, shade, 0.0)
        base = request.slot * snapshot.ring_rows
        hover[request.slot] = [
            f"request {request.request_id}, slot {request.slot}<br>pool row {base + r}<br>"
            + (
                f"position {position[r]}" + (" (head)" if position[r] == head else "")
                if written[r]
                else "not written yet"
            )
            for r in row
        ]
    return z, hover


def slot_cells(snapshot: PoolSnapshot) -> Cells:
    """One cell per slot (or group of slots), shaded by how full the ring is; for pools with many slots."""
    cat, shade = np.full(snapshot.slots, STRAY), np.full(snapshot.slots, _FULL)
    cat[list(snapshot.free_slots)], shade[list(snapshot.free_slots)] = FREE, 0.0
    notes: dict[int, str] = dict.fromkeys(snapshot.free_slots, "free")
    for request in snapshot.requests:
        filled = min(request.tokens, snapshot.ring_rows)
        cat[request.slot] = category(request.request_id)
        shade[request.slot] = _FULL * filled / snapshot.ring_rows
        notes[request.slot] = f"request {request.request_id}: {filled} of {snapshot.ring_rows} ring rows written"
    cat[0], shade[0], notes[0] = RESERVED, 0.0, "reserved"
    return _grid("slot", cat, shade, notes)


def page_owners(snapshot: PoolSnapshot) -> NDArray[np.int64]:
    """Category of each page: free, reserved, one request's, several requests', the prefix cache's alone, or stray."""
    owners = np.full(snapshot.pages, STRAY)
    owners[list(snapshot.free_pages)] = FREE
    for request in snapshot.requests:
        pages = np.asarray(request.pages, np.int64)
        owners[pages] = np.where(owners[pages] == STRAY, category(request.request_id), SHARED)
    cached = np.asarray(snapshot.cached_pages, np.int64)
    owners[cached] = np.where(owners[cached] == STRAY, CACHED, owners[cached])
    owners[0] = RESERVED
    return owners


def page_cells(snapshot: PoolSnapshot) -> Cells:
    """One cell per page (or group of pages), shaded by how full it is; a note names all owners of a page."""
    cat, shade = page_owners(snapshot), np.full(snapshot.pages, _FULL)
    shade[list(snapshot.free_pages)] = 0.0
    detail = group_size(snapshot.pages, MOST_CELLS) == 1
    notes = dict.fromkeys(snapshot.free_pages, "free") if detail else {}
    for request in snapshot.requests:
        if request.pages:
            filled = np.clip(request.tokens - np.arange(len(request.pages)) * snapshot.page_size, 0, snapshot.page_size)
            shade[np.asarray(request.pages)] = _FULL * filled / snapshot.page_size
            if detail:
                _add_notes(notes, _page_notes(snapshot, request, filled))
    shade[list(snapshot.cached_pages)] = _FULL
    if detail:
        _add_notes(notes, dict.fromkeys(snapshot.cached_pages, "kept by the prefix cache"))
    shade[0], notes[0] = 0.0, "reserved: padding and masked writes land here"
    return _grid("page", cat, shade, notes)


def _add_notes(notes: dict[int, str], more: dict[int, str]) -> None:
    for page, note in more.items():
        notes[page] = f"{notes[page]}<br>{note}" if page in notes else note


def _page_notes(snapshot: PoolSnapshot, request: PoolRequest, filled: NDArray[np.int64]) -> dict[int, str]:
    base = snapshot.slots * snapshot.ring_rows
    ratios = sorted({r for r in snapshot.compress_ratios if r})
    size = snapshot.page_size
    notes = {}
    for j, page in enumerate(request.pages):
        rows = "".join(
            f"<br>ratio {r}: pool rows {base + page * size // r}\N{EN DASH}{base + (page + 1) * size // r - 1}"
            for r in ratios
        )
        notes[page] = (
            f"request {request.request_id}, its page {j} (tokens {j * size}\N{EN DASH}{(j + 1) * size - 1})"
            f"<br>{filled[j]} of {size} tokens{rows}"
        )
    return notes


def _grid(noun: str, cat: NDArray[np.int64], shade: NDArray[np.float64], notes: dict[int, str]) -> Cells:
    """Wrap items into a grid much wider than high; groups of items share a cell when there are many."""
    n = len(cat)
    group = group_size(n, MOST_CELLS)
    cells = -(-n // group)
    rows = max(1, round((cells / 32) ** 0.5))
    columns = -(-cells // rows)
    z, hover = np.full(rows * columns, np.nan), np.full(rows * columns, "", object)
    for cell in range(cells):
        one = slice(cell * group, min(n, (cell + 1) * group))
        if group == 1:
            z[cell] = cat[cell] + shade[cell]
            hover[cell] = f"{noun} {cell}<br>{notes.get(cell, 'in use, owner unknown')}"
        else:
            z[cell], hover[cell] = _aggregate(noun, one, cat[one], shade[one])
    return Cells(z.reshape(rows, columns), hover.reshape(rows, columns), group)


def _aggregate(noun: str, span: slice, cat: NDArray[np.int64], shade: NDArray[np.float64]) -> tuple[float, str]:
    counts = Counter(int(c) for c in cat)
    free, size = counts.pop(FREE, 0), len(cat)
    owner = counts.most_common(1)[0][0] if counts else FREE
    used = float(shade[cat != FREE].sum()) / size
    text = f"{noun}s {span.start}\N{EN DASH}{span.stop - 1}<br>{size - free} in use, {free} free"
    filled = f"<br>{100 * used / _FULL:.0f} % filled"
    return owner + (min(used, _FULL) if owner != FREE else 0.0), text + filled
