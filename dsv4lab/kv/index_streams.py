"""Lists of pool rows per query token, derived with numpy (dsv4-spec 4.1, 4.2, 4.7). Never imports torch.

Every list is ragged: token ``t`` reads ``indices[indptr[t]:indptr[t + 1]]``, raw window rows first, compressed rows
after them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import PoolError
from dsv4lab.kv.geometry import Geometry

Ints = NDArray[np.int64]

MAX_ENTRIES = 2**31 - 1  # indptr travels as int32


@dataclass(frozen=True, eq=False, slots=True)
class Ragged:
    """``indptr`` int64 ``[n + 1]`` and ``indices`` int64 ``[indptr[-1]]``."""

    indptr: Ints
    indices: Ints

    def row(self, n: int) -> Ints:
        """Entries of row ``n``."""
        return self.indices[self.indptr[n] : self.indptr[n + 1]]


@dataclass(frozen=True, eq=False, slots=True)
class Tokens:
    """The flat tokens of a forward. All arrays are int64.

    Per token ``[T]``: ``position``, ``slot``, ``item`` (number of its request in this forward).
    Per item ``[n]``: ``start`` (first position of this forward), ``length``, ``first_row`` (its first flat row),
    ``item_slot``; ``page_table`` ``[n, P]`` is padded with -1.
    """

    position: Ints
    slot: Ints
    item: Ints
    start: Ints
    length: Ints
    first_row: Ints
    item_slot: Ints
    page_table: Ints

    @classmethod
    def build(cls, slots: Ints, starts: Ints, lengths: Ints, page_table: Ints) -> Tokens:
        """Flatten items: the tokens of item ``i`` are rows ``first_row[i]`` onwards."""
        first_row = indptr_of(lengths)[:-1]
        item = np.repeat(np.arange(len(lengths)), lengths)
        position = np.arange(len(item)) + (starts - first_row)[item]
        return cls(position, slots[item], item, starts, lengths, first_row, slots, page_table)


def indptr_of(lengths: Ints) -> Ints:
    """Exclusive cumulative sum ``[n + 1]`` of ``lengths``; raises :class:`PoolError` where int32 would overflow."""
    out = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    if out[-1] > MAX_ENTRIES:
        raise PoolError(f"an index stream needs {out[-1]} entries; at most {MAX_ENTRIES}: use smaller chunks")
    return out


def consecutive(first: Ints, lengths: Ints) -> Ragged:
    """Rows ``first[n], first[n] + 1, ...`` of the given lengths."""
    indptr = indptr_of(lengths)
    return Ragged(indptr, places(first, indptr, lengths))


def ring_span(geometry: Geometry, slot: Ints, first: Ints, lengths: Ints) -> Ragged:
    """Ring rows of positions ``first .. first + lengths - 1`` of each slot; no length exceeds ``ring_rows``."""
    span = consecutive(first % geometry.ring_rows, lengths)
    rows = span.indices
    rows[rows >= geometry.ring_rows] -= geometry.ring_rows
    rows += np.repeat(slot * geometry.ring_rows, lengths)
    return span


def compressed_rows(geometry: Geometry, tokens: Tokens, lengths: Ints, ratio: int) -> Ragged:
    """Rows of the first ``lengths[t]`` compressed entries of each token's request."""
    per_page = geometry.entries_per_page(ratio)
    table = (tokens.page_table * per_page + geometry.swa_rows)[:, :, None] + np.arange(per_page)
    entries = consecutive(tokens.item * (tokens.page_table.shape[1] * per_page), lengths)
    return Ragged(entries.indptr, table.reshape(-1)[entries.indices])


def join(head: Ragged, tail: Ragged) -> Ragged:
    """Row by row, ``head`` then ``tail``."""
    heads, tails = np.diff(head.indptr), np.diff(tail.indptr)
    indptr = head.indptr + tail.indptr
    indices = np.empty(indptr[-1], np.int64)
    indices[places(indptr, head.indptr, heads)] = head.indices
    indices[places(indptr[:-1] + heads, tail.indptr, tails)] = tail.indices
    return Ragged(indptr, indices)


def places(begin: Ints, indptr: Ints, lengths: Ints) -> Ints:
    """Where the entries of a ragged list land when row ``n`` begins at ``begin[n]``."""
    out = np.repeat(begin[: len(lengths)] - indptr[:-1], lengths)
    out += np.arange(len(out))
    return out


def decode_window(geometry: Geometry, tokens: Tokens) -> Ragged:
    """Ring rows of each token's window, itself included: all of them are stored before attention."""
    lengths = np.minimum(tokens.position + 1, geometry.window)
    return ring_span(geometry, tokens.slot, tokens.position + 1 - lengths, lengths)


def prefill_window(geometry: Geometry, tokens: Tokens) -> tuple[Ragged, Ragged]:
    """``(prefix, extend)``: ring rows of positions before this forward, and flat rows of this forward."""
    offset = tokens.position - tokens.start[tokens.item]
    extend = np.minimum(offset + 1, geometry.window)
    low = np.maximum(tokens.position + 1 - geometry.window, 0)
    prefix = tokens.position + 1 - low - extend
    flat = np.arange(len(offset)) + 1 - extend
    return ring_span(geometry, tokens.slot, low, prefix), consecutive(flat, extend)


def prefill_ring_store(geometry: Geometry, tokens: Tokens) -> Ints:
    """Flat rows whose K goes to the ring after attention: the last ``window`` tokens of each item."""
    keep_from = tokens.start + tokens.length - geometry.window
    return np.flatnonzero(tokens.position >= keep_from[tokens.item])
