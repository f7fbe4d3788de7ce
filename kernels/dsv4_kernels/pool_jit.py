"""Device functions that read and write rows of the KV pool, plain or in the fp8 layout. Imports triton.

With ``ROPE`` > 0 a row of the pool is ``D - ROPE`` e4m3 values and their e8m0 scales, one per 64 and each twice, as
bytes; the ``ROPE`` other values are rows of a second pool (dsv4-spec 3.4). ``d`` is the range of the columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import e8m0_of_amax, e8m0_of_fp4, power_of_e8m0, to_e2m1, to_e4m3


@triton.jit
def load_rows(
    pool_ptr, pool_stride, rope_ptr, rope_stride, rows, d, D: tl.constexpr, ROPE: tl.constexpr, NATIVE: tl.constexpr
):
    """Rows of the pool as ``[len(rows), len(d)]``; zeros where the row is -1."""
    ok = rows >= 0
    row = tl.where(ok, rows, 0).to(tl.int64)
    base = pool_ptr + row[:, None] * pool_stride
    if ROPE == 0:
        value = tl.load(base + d[None, :], ok[:, None] & (d < D)[None, :], 0.0)
    else:
        NOPE: tl.constexpr = D - ROPE
        TILES: tl.constexpr = d.shape[0] // 64
        tile = tl.arange(0, TILES)
        code = tl.load(base + d[None, :], ok[:, None] & (d < NOPE)[None, :], 0)
        exponent = tl.load(base + NOPE + 2 * tile[None, :], ok[:, None] & (tile * 64 < NOPE)[None, :], 0)
        is_rope = ok[:, None] & (d >= NOPE)[None, :] & (d < D)[None, :]
        tail = tl.load(rope_ptr + row[:, None] * rope_stride + (d - NOPE)[None, :], is_rope, 0.0)
        nope = tl.reshape(e4m3_value(code, NATIVE), (rows.shape[0], TILES, 64))
        nope = tl.reshape(nope * power_of_e8m0(exponent.to(tl.int32))[:, :, None], (rows.shape[0], d.shape[0]))
        value = tl.where((d < NOPE)[None, :], nope.to(tail.dtype), tail)
    return value


@triton.jit
def e4m3_value(code, NATIVE: tl.constexpr):
    """float32 value of e4m3 (OCP) bytes; by bits unless ``NATIVE``, for targets whose fp8 is another or none."""
    if NATIVE:
        value = code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        bits = code.to(tl.int32)
        magnitude = ((bits & 0x7F) << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2 ** 120
        value = tl.where((bits & 0x80) != 0, -magnitude, magnitude)
    return value


@triton.jit
def store_rows(
    pool_ptr, pool_stride, rope_ptr, rope_stride, rows, y, d,
    ROWS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    """Write float32 ``y [ROWS, BLOCK_D]`` to rows of the pool; rows of -1 are skipped."""
    ok = (rows >= 0)[:, None]
    row = tl.where(rows >= 0, rows, 0).to(tl.int64)
    if ROPE == 0:
        tl.store(
            pool_ptr + row[:, None] * pool_stride + d[None, :], y.to(pool_ptr.dtype.element_ty), ok & (d < D)[None, :]
        )
    else:
        NOPE: tl.constexpr = D - ROPE
        TILES: tl.constexpr = BLOCK_D // 64
        base = pool_ptr + row[:, None] * pool_stride
        rope_mask = ok & ((d >= NOPE) & (d < D))[None, :]
        tl.store(
            rope_ptr + row[:, None] * rope_stride + (d - NOPE)[None, :], y.to(rope_ptr.dtype.element_ty), rope_mask
        )
        rounded = tl.where((d < NOPE)[None, :], y.to(rope_ptr.dtype.element_ty).to(tl.float32), 0.0)
        tiles = tl.reshape(rounded, (ROWS, TILES, 64))
        exponent = e8m0_of_amax(tl.max(tl.abs(tiles), 2))
        codes = tl.reshape(to_e4m3(tiles * power_of_e8m0(254 - exponent)[:, :, None]), (ROWS, BLOCK_D))
        tl.store(base + d[None, :], codes.to(tl.uint8, bitcast=True), ok & (d < NOPE)[None, :])
        tile = tl.arange(0, TILES)
        present = ok & (tile * 64 < NOPE)[None, :]
        tl.store(base + NOPE + 2 * tile[None, :], exponent.to(tl.uint8), present)
        tl.store(base + NOPE + 2 * tile[None, :] + 1, exponent.to(tl.uint8), present)


@triton.jit
def hadamard_row(y, D: tl.constexpr, STAGES: tl.constexpr):
    """``y [D]`` times the Sylvester-Hadamard matrix, unscaled; ``D`` is ``2 ** STAGES``.

    Each stage adds and subtracts the neighbours that differ in the lowest bit of their place, and makes it the highest.
    """
    for _ in tl.static_range(STAGES):
        even, odd = tl.split(tl.reshape(y, (D // 2, 2)))
        y = tl.reshape(tl.trans(tl.join(even + odd, even - odd)), (D,))
    return y


@triton.jit
def store_index_key(
    pages_ptr, page_bytes, row, y, ROOT: tl.constexpr, STAGES: tl.constexpr, D: tl.constexpr, PER_PAGE: tl.constexpr,
    FP4: tl.constexpr,
):  # fmt: skip
    """Rotate float32 ``y [1, D]``, rounded to bf16, and quantise it into place ``row % PER_PAGE`` of its page.

    ``row`` int64 ``[1]``, not negative; ``ROOT`` is ``D ** -0.5``, ``D`` is ``2 ** STAGES``. The formats are those of
    ``dsv4_kernels.paged_rows.IndexFp8Pages`` and ``IndexFp4Pages``.
    """
    x = hadamard_row(tl.reshape(y.to(tl.bfloat16).to(tl.float32), (D,)), D, STAGES) * ROOT
    base = pages_ptr + tl.sum(row // PER_PAGE, 0) * page_bytes
    place = tl.sum(row % PER_PAGE, 0)
    if FP4:
        groups = tl.reshape(x, (D // 32, 32))
        exponent = e8m0_of_fp4(tl.max(tl.abs(groups), 1))
        codes = to_e2m1(groups * power_of_e8m0(254 - exponent)[:, None])
        low, high = tl.split(tl.reshape(codes, (D // 2, 2)))
        half, group = tl.arange(0, D // 2), tl.arange(0, D // 32)
        tl.store(base + place * (D // 2) + half, (low | (high << 4)).to(tl.uint8))
        tl.store(base + PER_PAGE * (D // 2) + place * (D // 32) + group, exponent.to(tl.uint8))
    else:
        scale = tl.div_rn(tl.maximum(tl.max(tl.abs(x), 0), 1e-4), 448.0)
        codes = to_e4m3(tl.div_rn(x, scale))
        tl.store(base + place * D + tl.arange(0, D), codes.to(tl.uint8, bitcast=True))
        tl.store((base + PER_PAGE * D).to(tl.pointer_type(tl.float32)) + place, scale)
