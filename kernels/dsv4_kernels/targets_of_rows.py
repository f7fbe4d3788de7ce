"""The tensors behind a pool, as the kernels take them."""

from __future__ import annotations

import torch

from dsv4_kernels.rows import Fp8Rows, Rows


def two_pools(pool: Rows) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``(pool, None)`` of a plain pool, ``(nope, rope)`` of the fp8 layout; :class:`ValueError` for other stores."""
    if isinstance(pool, torch.Tensor):
        return pool, None
    if isinstance(pool, Fp8Rows):
        return pool.nope, pool.rope
    raise ValueError(f"pool is {type(pool).__name__}, expected a tensor or Fp8Rows")


def rows_of(pool: torch.Tensor, rope_pool: torch.Tensor | None, d: int) -> Rows:
    """The inverse: the store of rows of ``d`` values that the tensors hold."""
    return pool if rope_pool is None else Fp8Rows(pool, rope_pool, d - rope_pool.shape[1])
