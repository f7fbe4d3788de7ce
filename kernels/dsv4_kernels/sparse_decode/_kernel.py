"""Portable kernels of ``sparse_decode``: split-K over a token's list of pool rows, then a reduction.

Shapes: ``q, out [T, H, D]``, ``pool [rows, D]``, ``indices [nnz]``, ``indptr [T + 1]``, ``sink [H]``; partial results
``acc [T, splits, H, D]`` and ``stats [T, splits, 2, H]`` (maximum, sum), float32. Scores are in base 2. A split takes
whole blocks of keys; splits that begin beyond the end of the list write nothing, and the reduction knows which ones.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import power_of_e8m0

NEGATIVE = tl.constexpr(-3.0e38)  # finite, so that the difference of two maxima is never NaN
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def keys_of_split(length, splits, BLOCK_K: tl.constexpr):
    """Keys that one split takes; a whole number of blocks."""
    return tl.cdiv(tl.cdiv(length, BLOCK_K), splits) * BLOCK_K


@triton.jit
def load_rows(pool_ptr, pool_stride, rope_ptr, rope_stride, rows, d, D: tl.constexpr, ROPE: tl.constexpr):
    """Rows of the pool as ``[len(rows), len(d)]``; zeros where the row is -1.

    With ``ROPE`` > 0 a row of the pool is ``D - ROPE`` e4m3 values and their e8m0 scales, one per 64 and each twice,
    as bytes; the ``ROPE`` other values are rows of ``rope_ptr`` (dsv4-spec 3.4).
    """
    ok = rows >= 0
    row = tl.where(ok, rows, 0).to(tl.int64)
    if ROPE == 0:
        return tl.load(pool_ptr + row[:, None] * pool_stride + d[None, :], ok[:, None] & (d < D)[None, :], 0.0)
    NOPE: tl.constexpr = D - ROPE
    base = pool_ptr + row[:, None] * pool_stride
    is_nope = ok[:, None] & (d < NOPE)[None, :]
    code = tl.load(base + d[None, :], is_nope, 0)
    exponent = tl.load(base + NOPE + 2 * (d // 64)[None, :], is_nope, 0)
    is_rope = ok[:, None] & (d >= NOPE)[None, :] & (d < D)[None, :]
    tail = tl.load(rope_ptr + row[:, None] * rope_stride + (d - NOPE)[None, :], is_rope, 0.0)
    value = e4m3_value(code) * power_of_e8m0(exponent.to(tl.int32))
    return tl.where((d < NOPE)[None, :], value.to(tail.dtype), tail)


@triton.jit
def e4m3_value(code):
    """float32 value of e4m3 (OCP) bytes; by bits, so that targets whose fp8 is another read the same pool."""
    code = code.to(tl.int32)
    magnitude = ((code & 0x7F) << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2 ** 120
    return tl.where((code & 0x80) != 0, -magnitude, magnitude)


@triton.jit
def _store_result(
    acc, m, norm, sink_ptr, out_ptr, acc_ptr, stats_ptr, token, split, splits, heads, d, out_stride_t,
    out_stride_h, H: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr, KEYS_ON_ROWS: tl.constexpr,
):  # fmt: skip
    if KEYS_ON_ROWS:  # acc is [D, heads]
        place_h, place_d = heads[None, :], d[:, None]
    else:
        place_h, place_d = heads[:, None], d[None, :]
    mask = (place_h < H) & (place_d < D)
    if not PARTS:
        sink = tl.load(sink_ptr + heads, heads < H, 0.0).to(tl.float32) * LOG2E
        top = tl.maximum(m, sink)
        total = norm * tl.exp2(m - top) + tl.exp2(sink - top)
        alpha = tl.exp2(m - top)
        if KEYS_ON_ROWS:
            result = acc * alpha[None, :] / total[None, :]
        else:
            result = acc * alpha[:, None] / total[:, None]
        target = out_ptr + token.to(tl.int64) * out_stride_t + place_h * out_stride_h + place_d
        tl.store(target, result.to(out_ptr.dtype.element_ty), mask)
    else:
        part = token.to(tl.int64) * splits + split
        tl.store(acc_ptr + part * (H * D) + place_h * D + place_d, acc, mask)
        tl.store(stats_ptr + part * (2 * H) + heads, m, heads < H)
        tl.store(stats_ptr + part * (2 * H) + H + heads, norm, heads < H)


@triton.jit(do_not_specialize=["splits"])
def _sparse_decode_kernel(
    q_ptr, pool_ptr, rope_ptr, indices_ptr, indptr_ptr, sink_ptr, out_ptr, acc_ptr, stats_ptr, splits, scale,
    q_stride_t, q_stride_h, pool_stride, rope_stride, out_stride_t, out_stride_h,
    H: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
    PARTS: tl.constexpr, KEYS_ON_ROWS: tl.constexpr, ROPE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program per token, split and block of heads; blocks of heads of one split are neighbours (shared L2 rows).

    ``KEYS_ON_ROWS`` puts the keys on the rows of both products, which suits few heads: matrix units take 64 rows at a
    time on Hopper, and padding 16 heads to 64 would waste three quarters of them.
    """
    HEAD_BLOCKS: tl.constexpr = (H + BLOCK_H - 1) // BLOCK_H
    pid = tl.program_id(0)
    head_block = pid % HEAD_BLOCKS
    split = pid // HEAD_BLOCKS % splits
    token = pid // (HEAD_BLOCKS * splits)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    begin = tl.load(indptr_ptr + token)
    length = tl.load(indptr_ptr + token + 1) - begin
    per_split = keys_of_split(length, splits, BLOCK_K)
    first = split * per_split
    if PARTS and first >= length:
        return
    last = tl.minimum(first + per_split, length)

    heads = head_block * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_D)
    q = tl.load(
        q_ptr + token.to(tl.int64) * q_stride_t + heads[:, None] * q_stride_h + d[None, :],
        (heads < H)[:, None] & (d < D)[None, :],
        0.0,
    )
    m = tl.full((BLOCK_H,), NEGATIVE, tl.float32)
    norm = tl.zeros((BLOCK_H,), tl.float32)
    if KEYS_ON_ROWS:
        acc = tl.zeros((BLOCK_D, BLOCK_H), tl.float32)
    else:
        acc = tl.zeros((BLOCK_H, BLOCK_D), tl.float32)
    scale_log2 = scale * LOG2E
    k_offsets = tl.arange(0, BLOCK_K)
    for start in tl.range(first, last, BLOCK_K):
        rows = tl.load(indices_ptr + begin + start + k_offsets, start + k_offsets < last, -1)
        ok = rows >= 0
        kv = load_rows(pool_ptr, pool_stride, rope_ptr, rope_stride, rows, d, D, ROPE)
        if KEYS_ON_ROWS:
            s = tl.dot(kv, tl.trans(q), input_precision="ieee") * scale_log2
            s = tl.where(ok[:, None], s, NEGATIVE)
            m_new = tl.maximum(m, tl.max(s, 0))
            p = tl.where(ok[:, None], tl.exp2(s - m_new[None, :]), 0.0)
            alpha = tl.exp2(m - m_new)
            norm = norm * alpha + tl.sum(p, 0)
            acc = tl.dot(tl.trans(kv), p.to(kv.dtype), acc * alpha[None, :], input_precision="ieee")
        else:
            s = tl.dot(q, tl.trans(kv), input_precision="ieee") * scale_log2
            s = tl.where(ok[None, :], s, NEGATIVE)
            m_new = tl.maximum(m, tl.max(s, 1))
            p = tl.where(ok[None, :], tl.exp2(s - m_new[:, None]), 0.0)
            alpha = tl.exp2(m - m_new)
            norm = norm * alpha + tl.sum(p, 1)
            acc = tl.dot(p.to(kv.dtype), kv, acc * alpha[:, None], input_precision="ieee")
        m = m_new
    _store_result(
        acc, m, norm, sink_ptr, out_ptr, acc_ptr, stats_ptr, token, split, splits, heads, d, out_stride_t, out_stride_h,
        H, D, PARTS, KEYS_ON_ROWS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["splits"])
def _reduce_kernel(
    acc_ptr, stats_ptr, indptr_ptr, sink_ptr, out_ptr, splits, out_stride_t, out_stride_h,
    H: tl.constexpr, D: tl.constexpr, SPLITS_PADDED: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program per token, head and block of dims: combine the splits that exist, add the sink, divide."""
    token, head = tl.program_id(0), tl.program_id(1)
    d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    split = tl.arange(0, SPLITS_PADDED)
    length = tl.load(indptr_ptr + token + 1) - tl.load(indptr_ptr + token)
    sink = tl.load(sink_ptr + head).to(tl.float32) * LOG2E
    active = tl.cdiv(length, tl.maximum(keys_of_split(length, splits, BLOCK_K), 1))
    if PDL:
        tl.extra.cuda.gdc_wait()
    part = token.to(tl.int64) * splits + split
    live = split < active
    m = tl.load(stats_ptr + part * (2 * H) + head, live, NEGATIVE)
    norm = tl.load(stats_ptr + part * (2 * H) + H + head, live, 0.0)
    acc = tl.load(acc_ptr + (part * H + head)[:, None] * D + d[None, :], live[:, None] & (d < D)[None, :], 0.0)
    top = tl.maximum(tl.max(m, 0), sink)
    alpha = tl.where(live, tl.exp2(m - top), 0.0)
    total = tl.sum(norm * alpha, 0) + tl.exp2(sink - top)
    result = tl.sum(acc * alpha[:, None], 0) / total
    tl.store(
        out_ptr + token.to(tl.int64) * out_stride_t + head * out_stride_h + d,
        result.to(out_ptr.dtype.element_ty),
        d < D,
    )
