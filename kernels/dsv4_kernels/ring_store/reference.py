"""Store of this forward's KV rows into the rings, in plain torch (dsv4-spec 4.2)."""

from __future__ import annotations

import torch

from dsv4_kernels.rows import Rows, put_rows


def ring_store_reference(kv: torch.Tensor, src: torch.Tensor, pool: Rows, dst: torch.Tensor) -> None:
    """``pool[dst] = kv[src]``: ``kv [T, d]``, ``pool [rows_L, d]``, int64 ``src``, ``dst [M]``."""
    put_rows(pool, dst, kv[src])
