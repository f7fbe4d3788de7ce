"""Fill, bytes and scatter of a pool snapshot as one record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsv4lab.viz.pool_map import FREE, STRAY, PoolMap


@dataclass(frozen=True, slots=True)
class KindBytes:
    """Rows and bytes of one part of the pool over all its layers; ``used_bytes`` hold tokens or entries."""

    part: str
    layers: int
    rows: int
    bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What there is, what is used, and how it is scattered. Index keys and compressor state are not in the bytes.

    ``waste`` is the share of held token places that hold no token; ``contiguity`` the share of page boundaries inside
    requests where the next page number follows (1.0: every request is one run); ``longest_free`` the longest run of
    free page numbers. Pages need not be contiguous: the two describe the pool, they cost nothing.
    """

    step: int
    requests: int
    pages_held: int
    pages_free: int
    pages_other: int
    pages_shared: int
    slots_held: int
    slots: int
    tokens: int
    capacity: int
    waste: float
    contiguity: float
    longest_free: int
    parts: tuple[KindBytes, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all rows."""
        return sum(part.bytes for part in self.parts)


def pool_facts(pool: PoolMap) -> PoolFacts:
    """Fill, bytes and scatter of one snapshot."""
    s = pool.snapshot
    held = pool.owner >= 0
    places = int(held.sum()) * s.page_size
    tokens = int(pool.tokens[held].sum())
    follows = steps = 0
    for request in s.requests:
        pages = np.array(request.pages, np.int64)
        follows += int((np.diff(pages) == 1).sum())
        steps += max(len(pages) - 1, 0)
    free = np.flatnonzero(pool.owner == FREE)
    runs = np.split(free, np.flatnonzero(np.diff(free) != 1) + 1) if len(free) else []
    return PoolFacts(
        step=s.step,
        requests=len(s.requests),
        pages_held=int(held.sum()),
        pages_free=len(free),
        pages_other=int((pool.owner == STRAY).sum()),
        pages_shared=int((pool.holders > 1).sum()),
        slots_held=int((pool.slot_owner >= 0).sum()),
        slots=s.slots - 1,
        tokens=tokens,
        capacity=(s.pages - 1) * s.page_size,
        waste=1 - tokens / places if places else 0.0,
        contiguity=follows / steps if steps else 1.0,
        longest_free=max((len(run) for run in runs), default=0),
        parts=_parts(pool),
    )


def _parts(pool: PoolMap) -> tuple[KindBytes, ...]:
    s = pool.snapshot
    row = s.row_bytes or s.head_dim * s.dtype_bytes
    layers = len(s.compress_ratios)
    ring_used = int(np.minimum(pool.slot_tokens, s.ring_rows).sum())
    parts = [
        KindBytes("rings (every layer)", layers, pool.swa_rows, pool.swa_rows * layers * row, ring_used * layers * row)
    ]
    for ratio, name in ((4, "CSA entries"), (128, "HCA entries")):
        count = s.compress_ratios.count(ratio)
        rows = s.pages * pool.entries_per_page(ratio)
        used = int((pool.tokens // ratio).sum())
        if count:
            parts.append(KindBytes(name, count, rows, rows * count * row, used * count * row))
    return tuple(parts)
