"""Store of this forward's KV rows into the rings, in plain torch (dsv4-spec 4.2)."""

from __future__ import annotations

import torch


def ring_store_reference(kv: torch.Tensor, src: torch.Tensor, pool: torch.Tensor, dst: torch.Tensor) -> None:
    """``pool[dst] = kv[src]``: ``kv [T, d]``, ``pool [rows_L, d]``, int64 ``src``, ``dst [M]``."""
    pool.index_copy_(0, dst, kv[src].to(pool.dtype))
