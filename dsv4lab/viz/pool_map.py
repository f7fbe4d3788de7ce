"""Maps of the KV pool at any size: who holds which rows, how full they are and how old. Integers and numpy, no drawing.

A pool is looked at through one layer kind, whose rows are the rings and then ``page_size // ratio`` rows to a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import UsageError
from dsv4lab.timeline.records import PoolRequest, PoolSnapshot
from dsv4lab.viz.downsample import group_size

FREE, RESERVED, STRAY = -1, -2, -3
MOST_CELLS = 8192
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class MapCells:
    """Equal stretches of rows from ``first_row`` on: ``rows`` a cell, ``unit`` cells to a ring or a page (else 1).

    ``owner`` is the request that holds most of the cell, or ``FREE``, ``RESERVED``, ``STRAY`` (in use, by nobody that
    the snapshot names: the prefix cache). ``used`` and ``read`` are shares of the cell's rows from 0 to 255, above 0
    wherever there is one; ``age`` is in steps since the holder got it, -1 where nobody does; ``holders`` counts the
    requests that share it. All have shape ``[n]``.
    """

    first_row: int
    rows: int
    unit: int
    owner: NDArray[np.int32]
    used: NDArray[np.uint8]
    age: NDArray[np.int32]
    holders: NDArray[np.int32]
    read: NDArray[np.uint8]


class PoolMap:
    """One snapshot as arrays by page and by slot."""

    def __init__(self, snapshot: PoolSnapshot) -> None:
        self.snapshot = snapshot
        s = snapshot
        self.owner = np.full(s.pages, STRAY, np.int64)
        self.tokens = np.full(s.pages, s.page_size, np.int64)  # what others keep is taken to be full
        self.holders = np.zeros(s.pages, np.int64)
        self.slot_owner = np.full(s.slots, STRAY, np.int64)
        self.slot_tokens = np.zeros(s.slots, np.int64)
        self.owner[np.array(s.free_pages, np.int64)] = FREE
        self.slot_owner[np.array(s.free_slots, np.int64)] = FREE
        for request in s.requests:
            self._hold(request)
        self.tokens[self.owner == FREE] = 0
        self.owner[:1], self.tokens[:1], self.slot_owner[:1] = RESERVED, 0, RESERVED

    def _hold(self, request: PoolRequest) -> None:
        pages = np.array(request.pages, np.int64)
        filled = np.clip(request.tokens - np.arange(len(pages)) * self.snapshot.page_size, 0, self.snapshot.page_size)
        shared = self.holders[pages] > 0
        self.tokens[pages] = np.where(shared, np.maximum(self.tokens[pages], filled), filled)
        self.owner[pages] = request.request_id
        self.holders[pages] += 1
        self.slot_owner[request.slot] = request.request_id
        self.slot_tokens[request.slot] = request.tokens

    @property
    def swa_rows(self) -> int:
        """Rows of all rings: the first compressed row of every layer."""
        return self.snapshot.slots * self.snapshot.ring_rows

    def entries_per_page(self, ratio: int) -> int:
        """Compressed rows to a page; 0 in a layer without any."""
        return self.snapshot.page_size // ratio if ratio else 0

    def rows(self, ratio: int) -> int:
        """Rows of a layer of this ratio."""
        return self.swa_rows + self.snapshot.pages * self.entries_per_page(ratio)

    def request(self, request_id: int) -> PoolRequest:
        """A request of the snapshot. Raises :class:`UsageError` naming those that it has."""
        for request in self.snapshot.requests:
            if request.request_id == request_id:
                return request
        known = ", ".join(str(r.request_id) for r in self.snapshot.requests[:12]) or "none"
        raise UsageError(f"request {request_id} is not in the snapshot of step {self.snapshot.step}; it has: {known}")

    @cached_property
    def _ring_used(self) -> Ints:
        return np.minimum(self.slot_tokens, self.snapshot.ring_rows)

    def rings(self, age: Ints | None = None, read_rows: Ints | None = None, most: int = MOST_CELLS) -> MapCells:
        """The rings, a line to a slot: single rows while all fit, else parts of a ring, else groups of slots."""
        s = self.snapshot
        if s.slots >= most:
            group = group_size(s.slots, most)
            return self._cells(0, s.ring_rows, group, self.slot_owner, self._ring_used, age, read_rows, 0)
        part = -(-s.ring_rows // max(1, most // s.slots))
        per_slot = -(-s.ring_rows // part)
        slot = np.repeat(np.arange(s.slots), per_slot)
        begin = np.tile(np.arange(per_slot) * part, s.slots)
        size = np.minimum(part, s.ring_rows - begin)
        used = np.clip(self._ring_used[slot] - begin, 0, size)
        owner = self.slot_owner[slot]
        read = np.zeros(len(slot), np.int64)
        if read_rows is not None and len(read_rows):
            cell = read_rows // s.ring_rows * per_slot + read_rows % s.ring_rows // part
            read = np.bincount(cell, minlength=len(slot))
        ages = np.full(len(slot), -1) if age is None else np.where(owner >= 0, age[slot], -1)
        held = (owner >= 0).astype(np.int32)
        return _made(0, part, per_slot, owner, used / size, ages, held, read / size)

    def pages(
        self, ratio: int, age: Ints | None = None, read_rows: Ints | None = None, most: int = MOST_CELLS
    ) -> MapCells:
        """Compressed rows in order: single rows while they fit, else pages, else groups of pages.

        Raises :class:`UsageError` for a ratio without compressed rows.
        """
        per_page = self.entries_per_page(ratio)
        if not per_page:
            raise UsageError("ratio 0 has no compressed rows: its layers keep rings only")
        used = self.tokens // ratio
        if self.snapshot.pages * per_page > most:
            group = group_size(self.snapshot.pages, most)
            return self._cells(self.swa_rows, per_page, group, self.owner, used, age, read_rows, self.swa_rows)
        page = np.repeat(np.arange(self.snapshot.pages), per_page)
        written = np.tile(np.arange(per_page), self.snapshot.pages) < used[page]
        read = np.zeros(len(page))
        if read_rows is not None:
            read[read_rows - self.swa_rows] = 1.0
        owner = self.owner[page]
        ages = np.full(len(page), -1) if age is None else np.where(owner >= 0, age[page], -1)
        return _made(self.swa_rows, 1, per_page, owner, written, ages, self.holders[page], read)

    def _cells(
        self,
        first_row: int,
        size: int,
        group: int,
        owner: Ints,
        used: Ints,
        age: Ints | None,
        read_rows: Ints | None,
        base: int,
    ) -> MapCells:
        """Cells of ``group`` units of ``size`` rows each; the holder of most used rows gives a cell its owner."""
        units = len(owner)
        cells = -(-units // group)
        cell = np.arange(units) // group
        count = np.bincount(cell, minlength=cells) * size
        total = np.bincount(cell, weights=used, minlength=cells)
        holders = np.zeros(cells, np.int64)
        kept = self.holders if owner is self.owner else (owner >= 0).astype(np.int64)
        np.maximum.at(holders, cell, kept)
        ages = np.full(cells, -1, np.int64)
        if age is not None:
            held = owner >= 0
            np.maximum.at(ages, cell[held], age[held])
        read = np.zeros(cells)
        if read_rows is not None:
            read = np.bincount((read_rows - base) // (size * group), minlength=cells) / count
        most = owner if group == 1 else _leading(cell, owner, used, cells)
        return _made(first_row, size * group, 1, most, total / count, ages, holders, read)


def _leading(cell: Ints, owner: Ints, used: Ints, cells: int) -> Ints:
    """For every cell the owner with most used rows; holders before the free and the reserved."""
    weight = np.where(owner >= 0, used + 1, np.where(owner == STRAY, 0.5, 0.0))
    ids, dense = np.unique(owner, return_inverse=True)
    key, inverse = np.unique(cell * len(ids) + dense, return_inverse=True)
    total = np.bincount(inverse, weights=weight)
    order = np.argsort(total, kind="stable")
    out = np.full(cells, FREE, np.int64)
    out[key[order] // len(ids)] = ids[key[order] % len(ids)]
    return out


def _made(
    first_row: int,
    rows: int,
    unit: int,
    owner: Ints,
    used: NDArray[np.floating] | NDArray[np.bool_],
    age: NDArray[np.integer],
    holders: NDArray[np.integer],
    read: NDArray[np.floating],
) -> MapCells:
    return MapCells(
        first_row,
        rows,
        unit,
        owner.astype(np.int32),
        _shade(used),
        age.astype(np.int32),
        holders.astype(np.int32),
        _shade(read),
    )


def _shade(share: NDArray[np.floating] | NDArray[np.bool_]) -> NDArray[np.uint8]:
    out: NDArray[np.uint8] = np.ceil(255 * np.minimum(share.astype(np.float64), 1.0)).astype(np.uint8)
    return out


def pool_reads(pool: PoolMap, request_id: int, position: int, ratio: int) -> tuple[Ints, Ints]:
    """Rows that a query at ``position`` may read in a layer of this ratio: window rows, and compressed rows.

    In a ratio-4 layer the indexer picks at most its top-k of the compressed ones when the query runs. Raises
    :class:`UsageError` for a position that the request's pages do not hold.
    """
    s, request = pool.snapshot, pool.request(request_id)
    held = len(request.pages) * s.page_size
    if not 0 <= position < max(held, 1):
        raise UsageError(f"position {position} of request {request_id}: its pages hold positions 0..{held - 1}")
    window = np.arange(max(0, position + 1 - s.window), position + 1)
    rings = request.slot * s.ring_rows + window % s.ring_rows
    if not ratio:
        return rings, np.zeros(0, np.int64)
    per_page = pool.entries_per_page(ratio)
    entry = np.arange((position + 1) // ratio)
    pages = np.array(request.pages, np.int64)
    return rings, pool.swa_rows + pages[entry // per_page] * per_page + entry % per_page


def ages(maps: Sequence[PoolMap]) -> tuple[Ints, Ints]:
    """Steps since each page and each slot of the last map got its holder, as far back as the maps go.

    ``int64 [pages]`` and ``int64 [slots]``; 0 where nobody holds it. The maps are snapshots of one pool in order.
    """
    pages = np.full(len(maps[0].owner), maps[0].snapshot.step, np.int64)
    slots = np.full(len(maps[0].slot_owner), maps[0].snapshot.step, np.int64)
    for before, now in pairwise(maps):
        pages[now.owner != before.owner] = now.snapshot.step
        slots[now.slot_owner != before.slot_owner] = now.snapshot.step
    last = maps[-1]
    step = last.snapshot.step
    return np.where(last.owner >= 0, step - pages, 0), np.where(last.slot_owner >= 0, step - slots, 0)
