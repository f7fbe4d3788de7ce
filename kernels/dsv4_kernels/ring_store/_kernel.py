"""Copy of rows into the pool, plain or quantised."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import e8m0_of_amax, follow, power_of_e8m0
from dsv4_kernels.pool_jit import store_rows


@triton.jit
def _store_whole_rows(
    pool_ptr, pool_stride, rope_ptr, rope_stride, rows, y, d,
    ROWS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, ROPE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """As ``store_rows`` of the fp8 layout, and zeros into the padding behind the scales, so that rows are whole.

    The memory reads a sector of 32 bytes that was written in part, to complete it. Scales and padding are ``int64``
    words of one store. ``D - ROPE`` is whole tiles; ``WIDE`` bytes of a row leave a power of two of words for the rest.
    Nothing but infinities is above what e4m3 holds once it is scaled, so codes are not clamped: NaN stays NaN.
    """
    NOPE: tl.constexpr = D - ROPE
    TILES: tl.constexpr = BLOCK_D // 64
    WORDS: tl.constexpr = (WIDE - NOPE) // 8
    ok = (rows >= 0)[:, None]
    row = tl.where(rows >= 0, rows, 0).to(tl.int64)[:, None]
    base = pool_ptr + row * pool_stride
    kept = y.to(rope_ptr.dtype.element_ty)
    tl.store(rope_ptr + row * rope_stride + (d - NOPE)[None, :], kept, ok & ((d >= NOPE) & (d < D))[None, :])
    tiles = tl.reshape(kept.to(tl.float32), (ROWS, TILES, 64))
    exponent = e8m0_of_amax(tl.max(tl.abs(tiles), 2))
    codes = tl.reshape((tiles * power_of_e8m0(254 - exponent)[:, :, None]).to(tl.float8e4nv), (ROWS, BLOCK_D))
    tl.store(base + d[None, :], codes.to(tl.uint8, bitcast=True), ok & (d < NOPE)[None, :])
    tile, word = tl.arange(0, TILES), tl.arange(0, WORDS)
    twice = tl.where((tile * 64 < NOPE)[None, :], exponent, 0).to(tl.int64) * 257 << ((tile % 4) * 16).to(tl.int64)
    own = (tile // 4)[None, None, :] == word[None, :, None]
    words = tl.sum(tl.where(own, twice[:, None, :], 0), 2)
    tl.store((base + NOPE).to(tl.pointer_type(tl.int64)) + word[None, :], words, ok)


@triton.jit(do_not_specialize=["n"])
def _ring_store_kernel(
    kv_ptr, src_ptr, pool_ptr, rope_ptr, dst_ptr, n, kv_stride, pool_stride, rope_stride,
    D: tl.constexpr, BLOCK_D: tl.constexpr, ROPE: tl.constexpr, WIDE: tl.constexpr, PDL: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """A program copies ``ROWS`` of the ``n`` rows: ``pool[dst] = kv[src]``; a destination of -1 is skipped.

    ``WIDE``: bytes of a row of the fp8 layout whose padding is written too, 0 where it is left alone.
    """
    follow(PDL)
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    dst = tl.load(dst_ptr + place, place < n, -1)
    src = tl.load(src_ptr + place, place < n, 0).to(tl.int64)
    y = tl.load(kv_ptr + src[:, None] * kv_stride + d[None, :], (dst >= 0)[:, None] & (d < D)[None, :], 0.0)
    if WIDE:
        _store_whole_rows(
            pool_ptr, pool_stride, rope_ptr, rope_stride, dst, y, d, ROWS, D, BLOCK_D, ROPE, WIDE,
        )  # fmt: skip
    else:
        store_rows(pool_ptr, pool_stride, rope_ptr, rope_stride, dst, y.to(tl.float32), d, ROWS, D, BLOCK_D, ROPE)
