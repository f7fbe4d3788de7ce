"""Portable kernel of ``sparse_prefill``: rows of the pool, then rows of this forward, under one softmax.

Shapes as in ``reference.py``. A program does ``TOKENS`` neighbouring tokens times ``BLOCK_H`` heads, which are the
rows of its matrix products ("lanes" below).
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.pool_jit import load_rows
from dsv4_kernels.sparse_decode._kernel import LOG2E, NEGATIVE


@triton.jit
def _attend(q, kv, ok, m, norm, acc, scale_log2, KEYS_ON_ROWS: tl.constexpr):
    """One block of keys; ``ok`` is ``[lanes, keys]``, or ``[keys, lanes]`` with the keys on the rows."""
    if KEYS_ON_ROWS:
        s = tl.dot(kv, tl.trans(q), input_precision="ieee") * scale_log2
        s = tl.where(ok, s, NEGATIVE)
        m_new = tl.maximum(m, tl.max(s, 0))
        p = tl.where(ok, tl.exp2(s - m_new[None, :]), 0.0)
        alpha = tl.exp2(m - m_new)
        norm = norm * alpha + tl.sum(p, 0)
        acc = tl.dot(tl.trans(kv), p.to(kv.dtype), acc * alpha[None, :], input_precision="ieee")
    else:
        s = tl.dot(q, tl.trans(kv), input_precision="ieee") * scale_log2
        s = tl.where(ok, s, NEGATIVE)
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.where(ok, tl.exp2(s - m_new[:, None]), 0.0)
        alpha = tl.exp2(m - m_new)
        norm = norm * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(kv.dtype), kv, acc * alpha[:, None], input_precision="ieee")
    return m_new, norm, acc


@triton.jit(do_not_specialize=["n_tokens"])
def _sparse_prefill_kernel(
    q_ptr, pool_ptr, rope_ptr, prefix_indices, prefix_indptr, kv_ptr, extend_indices, extend_indptr, sink_ptr, out_ptr,
    n_tokens, scale, q_stride_t, q_stride_h, pool_stride, rope_stride, kv_stride, out_stride_t, out_stride_h,
    H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, ROPE: tl.constexpr,
    NATIVE: tl.constexpr, TOKENS: tl.constexpr, BLOCK_K: tl.constexpr, KEYS_ON_ROWS: tl.constexpr,
):  # fmt: skip
    """With ``TOKENS`` > 1 each token's extend list must be a run of consecutive rows, as window lists are.

    The runs' union is then read once for all tokens; prefix lists are still read token by token.
    """
    HEAD_BLOCKS: tl.constexpr = (H + BLOCK_H - 1) // BLOCK_H
    LANES: tl.constexpr = TOKENS * BLOCK_H
    pid = tl.program_id(0)
    first_token = pid // HEAD_BLOCKS * TOKENS
    lane = tl.arange(0, LANES)
    token = first_token + lane // BLOCK_H
    head = pid % HEAD_BLOCKS * BLOCK_H + lane % BLOCK_H
    d = tl.arange(0, BLOCK_D)
    k = tl.arange(0, BLOCK_K)
    in_range = (token < n_tokens) & (head < H)
    q_row = q_ptr + token.to(tl.int64) * q_stride_t + head * q_stride_h
    q = tl.load(q_row[:, None] + d[None, :], in_range[:, None] & (d < D)[None, :], 0.0)
    m = tl.full((LANES,), NEGATIVE, tl.float32)
    norm = tl.zeros((LANES,), tl.float32)
    if KEYS_ON_ROWS:
        acc = tl.zeros((BLOCK_D, LANES), tl.float32)
    else:
        acc = tl.zeros((LANES, BLOCK_D), tl.float32)
    scale_log2 = scale * LOG2E

    for n in tl.static_range(TOKENS):
        exists = first_token + n < n_tokens
        begin = tl.load(prefix_indptr + first_token + n, exists, 0)
        end = tl.load(prefix_indptr + first_token + n + 1, exists, 0)
        for start in tl.range(begin, end, BLOCK_K):
            rows = tl.load(prefix_indices + start + k, start + k < end, -1)
            kv = load_rows(pool_ptr, pool_stride, rope_ptr, rope_stride, rows, d, D, ROPE, NATIVE)
            if KEYS_ON_ROWS:
                ok = (rows >= 0)[:, None] & (lane // BLOCK_H == n)[None, :]
            else:
                ok = (rows >= 0)[None, :] & (lane // BLOCK_H == n)[:, None]
            m, norm, acc = _attend(q, kv, ok, m, norm, acc, scale_log2, KEYS_ON_ROWS)

    if TOKENS == 1:
        begin = tl.load(extend_indptr + first_token)
        end = tl.load(extend_indptr + first_token + 1)
        for start in tl.range(begin, end, BLOCK_K):
            rows = tl.load(extend_indices + start + k, start + k < end, -1)
            kv = load_rows(kv_ptr, kv_stride, kv_ptr, kv_stride, rows, d, D, 0, NATIVE)
            if KEYS_ON_ROWS:
                ok = (rows >= 0)[:, None] & (lane >= 0)[None, :]
            else:
                ok = (rows >= 0)[None, :] & (lane >= 0)[:, None]
            m, norm, acc = _attend(q, kv, ok, m, norm, acc, scale_log2, KEYS_ON_ROWS)
    else:
        begins = tl.load(extend_indptr + token, token < n_tokens, 0)
        counts = tl.load(extend_indptr + token + 1, token < n_tokens, 0) - begins
        low = tl.load(extend_indices + begins, counts > 0, 2147483647)
        high = tl.where(counts > 0, low + counts, 0)
        for start in tl.range(tl.min(low, 0), tl.max(high, 0), BLOCK_K):
            rows = start + k
            present = tl.where(rows < tl.max(high, 0), rows, -1)
            kv = load_rows(kv_ptr, kv_stride, kv_ptr, kv_stride, present, d, D, 0, NATIVE)
            if KEYS_ON_ROWS:
                ok = (rows[:, None] >= low[None, :]) & (rows[:, None] < high[None, :])
            else:
                ok = (rows[None, :] >= low[:, None]) & (rows[None, :] < high[:, None])
            m, norm, acc = _attend(q, kv, ok, m, norm, acc, scale_log2, KEYS_ON_ROWS)

    sink = tl.load(sink_ptr + head, head < H, 0.0).to(tl.float32) * LOG2E
    top = tl.maximum(m, sink)
    alpha = tl.exp2(m - top)
    total = norm * alpha + tl.exp2(sink - top)
    out_row = out_ptr + token.to(tl.int64) * out_stride_t + head * out_stride_h
    if KEYS_ON_ROWS:
        result = acc * alpha[None, :] / total[None, :]
        mask = (d < D)[:, None] & in_range[None, :]
        tl.store(out_row[None, :] + d[:, None], result.to(out_ptr.dtype.element_ty), mask)
    else:
        result = acc * alpha[:, None] / total[:, None]
        tl.store(
            out_row[:, None] + d[None, :], result.to(out_ptr.dtype.element_ty), in_range[:, None] & (d < D)[None, :]
        )
