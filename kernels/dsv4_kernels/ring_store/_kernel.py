"""Copy of rows into the pool, plain or quantised."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.pool_jit import store_rows, store_tiles


@triton.jit(do_not_specialize=["n"])
def _ring_store_kernel(
    kv_ptr, src_ptr, pool_ptr, rope_ptr, dst_ptr, n, kv_stride, pool_stride, rope_stride,
    D: tl.constexpr, BLOCK_D: tl.constexpr, ROPE: tl.constexpr, BLOCK_ROPE: tl.constexpr, PADDED: tl.constexpr,
    PDL: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A program copies ``ROWS`` of the ``n`` rows: ``pool[dst] = kv[src]``; a destination of -1 is skipped.

    Rows of the fp8 layout take ``PADDED`` bytes; those at the end, which nobody reads, become zeros.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    dst = tl.load(dst_ptr + place, place < n, -1)
    src = tl.load(src_ptr + place, place < n, 0).to(tl.int64)
    ok = (dst >= 0)[:, None]
    at = kv_ptr + src[:, None] * kv_stride
    if ROPE == 0:
        y = tl.load(at + d[None, :], ok & (d < D)[None, :], 0.0)
        store_rows(pool_ptr, pool_stride, rope_ptr, rope_stride, dst, y.to(tl.float32), d, ROWS, D, BLOCK_D, 0)
    else:  # the tail by itself: within the row it would be in as many lanes as all of the row
        tail = tl.arange(0, BLOCK_ROPE)
        turned = ok & (tail < ROPE)[None, :]
        value = tl.load(at + D - ROPE + tail[None, :], turned, 0.0)
        y = tl.load(at + d[None, :], ok & (d < D - ROPE)[None, :], 0.0)
        row = tl.where(dst >= 0, dst, 0).to(tl.int64)
        tl.store(rope_ptr + row[:, None] * rope_stride + tail[None, :], value.to(rope_ptr.dtype.element_ty), turned)
        rounded = y.to(rope_ptr.dtype.element_ty).to(tl.float32)
        store_tiles(pool_ptr + row[:, None] * pool_stride, ok, rounded, d, ROWS, D - ROPE, BLOCK_D, PADDED)
