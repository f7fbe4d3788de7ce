"""Wrapper of the ring store; arguments as in ``reference.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.checks import require_dtype, require_shape, require_unit_stride
from dsv4_kernels.launch import launch, pdl_of
from dsv4_kernels.ring_store._kernel import _ring_store_kernel
from dsv4_kernels.ring_store._launch import RING_STORE
from dsv4_kernels.rows import TILE, Rows
from dsv4_kernels.target import target_of
from dsv4_kernels.targets_of_rows import two_pools


def ring_store(kv: torch.Tensor, src: torch.Tensor, pool: Rows, dst: torch.Tensor) -> None:
    """See :func:`dsv4_kernels.ring_store.ring_store_reference`; destinations of -1 are skipped."""
    ring_store_pools(kv, src, *two_pools(pool), dst)


def ring_store_pools(
    kv: torch.Tensor, src: torch.Tensor, pool: torch.Tensor, rope_pool: torch.Tensor | None, dst: torch.Tensor
) -> None:
    """As :func:`ring_store`, with the tensors of the pool: one, or the pair of the fp8 layout."""
    n, d = src.shape[0], kv.shape[1]
    require_shape("dst", dst, n)
    require_shape("pool", pool, -1, pool.shape[1] if rope_pool is not None else d)
    require_dtype("src", src, torch.int64, torch.int32)
    require_dtype("dst", dst, torch.int64, torch.int32)
    for name, tensor in (("kv", kv), ("pool", pool), ("src", src), ("dst", dst)):
        require_unit_stride(name, tensor)
    if n == 0:
        return
    rope = 0 if rope_pool is None else rope_pool.shape[1]
    chosen = RING_STORE.choose(target_of(kv.device), rows=n, rope=rope)
    wide = _wide(pool, d - rope) if rope and chosen["WHOLE"] else 0
    launch(
        _ring_store_kernel,
        (triton.cdiv(n, chosen["ROWS"]),),
        {
            "kv_ptr": kv, "src_ptr": src, "pool_ptr": pool, "rope_ptr": pool if rope_pool is None else rope_pool,
            "dst_ptr": dst, "n": n, "kv_stride": kv.stride(0), "pool_stride": pool.stride(0),
            "rope_stride": 0 if rope_pool is None else rope_pool.stride(0),
        },
        {
            "D": d, "BLOCK_D": triton.next_power_of_2(d), "ROPE": rope, "WIDE": wide,
            "PDL": pdl_of(kv, kv.shape[0]),
        },
        chosen,
    )  # fmt: skip


def _wide(pool: torch.Tensor, nope: int) -> int:
    """Bytes of a row of the fp8 layout if it can be written whole, words of 8 bytes behind whole tiles, else 0."""
    rest = pool.shape[1] - nope
    aligned = (pool.storage_offset() | pool.stride(0) | rest) % 8 == 0
    return pool.shape[1] if nope % TILE == 0 and aligned and rest >= 8 and rest & (rest - 1) == 0 else 0
