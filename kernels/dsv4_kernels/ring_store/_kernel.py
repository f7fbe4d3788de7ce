"""Copy of rows into the pool, plain or quantised."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import follow
from dsv4_kernels.pool_jit import store_rows


@triton.jit(do_not_specialize=["n"])
def _ring_store_kernel(
    kv_ptr, src_ptr, pool_ptr, rope_ptr, dst_ptr, n, kv_stride, pool_stride, rope_stride,
    D: tl.constexpr, BLOCK_D: tl.constexpr, ROPE: tl.constexpr, PDL: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A program copies ``ROWS`` of the ``n`` rows: ``pool[dst] = kv[src]``; a destination of -1 is skipped."""
    follow(PDL)
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    dst = tl.load(dst_ptr + place, place < n, -1)
    src = tl.load(src_ptr + place, place < n, 0).to(tl.int64)
    y = tl.load(kv_ptr + src[:, None] * kv_stride + d[None, :], (dst >= 0)[:, None] & (d < D)[None, :], 0.0)
    store_rows(pool_ptr, pool_stride, rope_ptr, rope_stride, dst, y.to(tl.float32), d, ROWS, D, BLOCK_D, ROPE)
