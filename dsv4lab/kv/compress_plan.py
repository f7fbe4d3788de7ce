"""Which tokens make which compressed entry, and what the compressor state must keep (dsv4-spec 2.9, 3.7). No torch.

In every mode a layer first compresses, reading the state that earlier forwards left and this forward's own tokens, and
then writes the state ring. A ring row is therefore never read after a token of the same forward took it over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4lab.kv.geometry import STATE_WINDOW, Geometry
from dsv4lab.kv.index_streams import Ints, Tokens, consecutive

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False, slots=True)
class CompressArrays:
    """Numpy form of :class:`dsv4lab.kv.metadata.CompressPlan`; int64 but for ``from_flat``."""

    out_slot: Ints
    out_row: Ints
    position: Ints
    gather_state: Ints
    gather_flat: Ints
    from_flat: Bools
    state_src: Ints
    state_dst: Ints


def compress_arrays(geometry: Geometry, tokens: Tokens, ratio: int, *, keep_all: bool) -> CompressArrays:
    """Plan one forward's entries of ``ratio``.

    ``keep_all`` writes the state of every token, as decode and verify need (any of them may be the last one that is
    committed); otherwise only what entries after this forward can need.
    """
    first = tokens.start // ratio
    counts = (tokens.start + tokens.length) // ratio - first
    entry = consecutive(first, counts).indices
    item = np.repeat(np.arange(len(counts)), counts)
    per_page = geometry.entries_per_page(ratio)
    out_slot = tokens.page_table[item, entry // per_page] * per_page + entry % per_page
    src = np.arange(len(tokens.position)) if keep_all else _kept(geometry, tokens, ratio)
    return CompressArrays(
        out_slot,
        out_slot + geometry.swa_rows,
        entry * ratio,
        *_gather(geometry, tokens, item, entry, ratio),
        src,
        geometry.state_row(tokens.slot[src], tokens.position[src], ratio),
    )


def _gather(geometry: Geometry, tokens: Tokens, item: Ints, entry: Ints, ratio: int) -> tuple[Ints, Ints, Bools]:
    """``(gather_state, gather_flat, from_flat)``, each ``[n, W]``: inputs of each entry in order of position."""
    width = STATE_WINDOW[ratio]
    position = (entry * ratio + ratio - width)[:, None] + np.arange(width)
    start = tokens.start[item][:, None]
    from_flat = position >= start
    flat = np.where(from_flat, position + (tokens.first_row[item][:, None] - start), 0)
    state = geometry.state_row(tokens.item_slot[item][:, None], position, ratio)
    state[from_flat | (position < 0)] = geometry.state_rows(ratio) - 1
    return state, flat, from_flat


def _kept(geometry: Geometry, tokens: Tokens, ratio: int) -> Ints:
    """Flat rows whose state outlives a prefill forward: what later entries need, and any verify step's whole."""
    length = tokens.start + tokens.length
    spare = geometry.state_ring(ratio) - STATE_WINDOW[ratio]
    keep_from = np.minimum(geometry.state_keep_from(length, ratio), length - spare - 2)
    return np.flatnonzero(tokens.position >= keep_from[tokens.item])
