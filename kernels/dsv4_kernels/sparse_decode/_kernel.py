"""Portable kernels of ``sparse_decode``: split-K over a token's list of pool rows, then a reduction.

Shapes: ``q, out [T, H, D]``, ``pool [rows, D]``, ``indices [nnz]``, ``indptr [T + 1]``, ``sink [H]``; partial results
``acc [T, splits, H, D]`` and ``stats [T, splits, 2, H]`` (maximum, sum), float32. Scores are in base 2. A split takes
whole blocks of keys; splits without keys leave the least maximum and nothing else.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import follow
from dsv4_kernels.pool_jit import load_rows

NEGATIVE = tl.constexpr(-3.0e38)  # finite, so that the difference of two maxima is never NaN
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def keys_of_split(length, splits, BLOCK_K: tl.constexpr):
    """Keys that one split takes; a whole number of blocks."""
    return tl.cdiv(tl.cdiv(length, BLOCK_K), splits) * BLOCK_K


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
    PARTS: tl.constexpr, KEYS_ON_ROWS: tl.constexpr, ROPE: tl.constexpr, NATIVE: tl.constexpr,
    PDL: tl.constexpr,
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
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    begin = tl.load(indptr_ptr + token)
    length = tl.load(indptr_ptr + token + 1) - begin
    per_split = keys_of_split(length, splits, BLOCK_K)
    first = split * per_split
    heads = head_block * BLOCK_H + tl.arange(0, BLOCK_H)
    if PARTS and first >= length:
        stats = stats_ptr + (token.to(tl.int64) * splits + split) * (2 * H)
        tl.store(stats + heads, tl.full((BLOCK_H,), NEGATIVE, tl.float32), heads < H)
        return
    last = tl.minimum(first + per_split, length)

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
        kv = load_rows(pool_ptr, pool_stride, rope_ptr, rope_stride, rows, d, D, ROPE, NATIVE)
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
    acc_ptr, stats_ptr, sink_ptr, out_ptr, splits, out_stride_t, out_stride_h,
    H: tl.constexpr, D: tl.constexpr, SPLITS_PADDED: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program per token, head and block of dims: combine the splits, add the sink, divide.

    Everything is loaded at once; what splits without keys left in ``acc`` is never used, for their maximum says so.
    """
    token, head = tl.program_id(0), tl.program_id(1)
    d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    split = tl.arange(0, SPLITS_PADDED)
    part = token.to(tl.int64) * splits + split
    stats = stats_ptr + part * (2 * H) + head
    follow(PDL)
    sink = tl.load(sink_ptr + head).to(tl.float32) * LOG2E
    m = tl.load(stats, split < splits, NEGATIVE)
    norm = tl.load(stats + H, split < splits, 0.0)
    acc = tl.load(
        acc_ptr + (part * H + head)[:, None] * D + d[None, :], (split < splits)[:, None] & (d < D)[None, :], 0.0
    )
    live = m > NEGATIVE
    top = tl.maximum(tl.max(m, 0), sink)
    alpha = tl.where(live, tl.exp2(m - top), 0.0)
    total = tl.sum(tl.where(live, norm * alpha, 0.0), 0) + tl.exp2(sink - top)
    result = tl.sum(tl.where(live[:, None], acc * alpha[:, None], 0.0), 0) / total
    tl.store(
        out_ptr + token.to(tl.int64) * out_stride_t + head * out_stride_h + d,
        result.to(out_ptr.dtype.element_ty),
        d < D,
    )
