"""Overlay for the pool picture: which rows one query token reads in one layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.records import PoolRequest, PoolSnapshot, QueryReads
from dsv4lab.viz.downsample import group_size

MOST_ENTRIES = 4096
ENTRY_COLUMNS = 64
UNWRITTEN, VISIBLE, READ = 0.0, 1.0, 2.0


@dataclass(frozen=True, eq=False, slots=True)
class EntryGrid:
    """Compressed entries of the query's request, oldest first, ``group`` entries a cell.

    ``z`` ``[rows, 64]``: 0 not written, 1 visible but not read, 1 + share of the cell that is read above 1; ``NaN``
    past the end.
    """

    z: NDArray[np.float64]
    hover: NDArray[np.object_]
    group: int
    entries: int
    read: int


def window_cells(snapshot: PoolSnapshot, reads: QueryReads) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Slot and ring row of the window rows that the query reads."""
    rows = np.asarray(reads.window_rows, np.int64)
    return rows // snapshot.ring_rows, rows % snapshot.ring_rows


def pages_read(snapshot: PoolSnapshot, reads: QueryReads) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Page numbers that hold rows which the query reads, and how many rows it reads in each."""
    if not reads.compressed_rows or not reads.ratio:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    entry = np.asarray(reads.compressed_rows, np.int64) - snapshot.slots * snapshot.ring_rows
    return np.unique(entry // (snapshot.page_size // reads.ratio), return_counts=True)


def entry_grid(snapshot: PoolSnapshot, reads: QueryReads) -> EntryGrid | None:
    """The request's compressed entries with those that the query reads; ``None`` where a layer has none."""
    request = next((r for r in snapshot.requests if r.request_id == reads.request_id), None)
    if request is None or not reads.ratio or not request.pages:
        return None
    per_page = snapshot.page_size // reads.ratio
    pages = np.asarray(request.pages, np.int64)
    entries = len(pages) * per_page
    row = snapshot.slots * snapshot.ring_rows + (pages[:, None] * per_page + np.arange(per_page)).ravel()
    visible = np.arange(entries) < (reads.position + 1) // reads.ratio
    read = np.isin(row, np.asarray(reads.compressed_rows, np.int64))
    group = group_size(entries, MOST_ENTRIES)
    cells = -(-entries // group)
    shape = (-(-cells // ENTRY_COLUMNS), min(cells, ENTRY_COLUMNS))
    z, hover = np.full(shape[0] * shape[1], np.nan), np.full(shape[0] * shape[1], "", object)
    for cell in range(cells):
        one = slice(cell * group, min(entries, (cell + 1) * group))
        z[cell] = max(VISIBLE if visible[one].any() else UNWRITTEN, 0.0) + read[one].mean()
        hover[cell] = _entry_text(request, reads, one, row, read, visible, per_page)
    return EntryGrid(z.reshape(shape), hover.reshape(shape), group, entries, int(read.sum()))


def _entry_text(
    request: PoolRequest,
    reads: QueryReads,
    one: slice,
    row: NDArray[np.int64],
    read: NDArray[np.bool_],
    visible: NDArray[np.bool_],
    per_page: int,
) -> str:
    first, last = one.start, one.stop - 1
    tokens = f"tokens {first * reads.ratio}\N{EN DASH}{(last + 1) * reads.ratio - 1}"
    if first < last:
        counts = f"{int(read[one].sum())} read, {int(visible[one].sum())} visible"
        return f"entries {first}\N{EN DASH}{last}, {tokens}<br>{counts}"
    state = "read" if read[first] else "visible, not read" if visible[first] else "not visible to this query"
    return f"entry {first}, {tokens}<br>page {request.pages[first // per_page]}, pool row {row[first]}<br>{state}"
