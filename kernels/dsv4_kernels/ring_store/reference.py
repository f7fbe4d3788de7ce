"""Store of this forward's KV rows into the rings, in plain torch (dsv4-spec 4.2)."""

from __future__ import annotations

import torch

from dsv4_kernels.rows import Rows, put_rows
from dsv4_kernels.targets_of_rows import rows_of


def ring_store_reference(kv: torch.Tensor, src: torch.Tensor, pool: Rows, dst: torch.Tensor) -> None:
    """``pool[dst] = kv[src]``: ``kv [T, d]``, ``pool [rows_L, d]``, int64 ``src``, ``dst [M]``."""
    put_rows(pool, dst, kv[src])


def ring_store_pools_reference(
    kv: torch.Tensor, src: torch.Tensor, pool: torch.Tensor, rope_pool: torch.Tensor | None, dst: torch.Tensor
) -> None:
    """As :func:`ring_store_reference`, on the pair of tensors of the fp8 layout where ``rope_pool`` is given."""
    ring_store_reference(kv, src, rows_of(pool, rope_pool, kv.shape[1]), dst)
