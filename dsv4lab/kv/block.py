"""Metadata of a DSpark draft block: window before the block, and the whole block seen by each of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.index_streams import Ragged, consecutive, ring_span
from dsv4lab.kv.metadata import BatchItem, IndexStream, StepMetadata, build_metadata


def build_block_metadata(geometry: Geometry, items: Sequence[BatchItem]) -> StepMetadata:
    """Metadata of one draft block per item, at positions ``start, start + 1, ...`` (dsv4-spec 7.3).

    Every token of a block reads the ring rows of positions ``[max(0, start - window), start)`` and all flat rows of
    its own block, later ones included. Nothing is stored: the rows of a block are gone when it ends.
    """
    base = build_metadata(geometry, 1, items, "prefill")
    lengths = np.array([len(item.tokens) for item in items], np.int64)
    start = np.array([item.start for item in items], np.int64)
    slot = np.array([item.slot for item in items], np.int64)
    item_of = np.repeat(np.arange(len(items)), lengths)
    low = np.maximum(start - geometry.window, 0)
    window = ring_span(geometry, slot[item_of], low[item_of], (start - low)[item_of])
    first = np.cumsum(lengths) - lengths
    block = consecutive(first[item_of], lengths[item_of])
    nothing = torch.empty(0, dtype=torch.int64)
    return replace(
        base,
        prefix={0: _stream(window)},
        extend=_stream(block),
        ring_store_src=nothing,
        ring_store_dst=nothing,
    )


def _stream(ragged: Ragged) -> IndexStream:
    return IndexStream(
        torch.from_numpy(ragged.indptr.astype(np.int32)), torch.from_numpy(ragged.indices.astype(np.int32))
    )
