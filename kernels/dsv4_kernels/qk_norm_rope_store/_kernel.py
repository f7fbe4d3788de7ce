"""Norm and rope of Q heads and of KV rows in one launch, with the store of the KV rows."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import follow
from dsv4_kernels.pool_jit import store_rows


@triton.jit
def rotated(y, row_cos, row_sin, d, D: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """``y [ROWS, BLOCK_D]`` with its last ``2 * HALF`` columns rotated; ``row_cos``, ``row_sin``: ``[ROWS]``."""
    even, odd = tl.split(tl.reshape(y, (ROWS, BLOCK_D // 2, 2)))
    pair = tl.arange(0, BLOCK_D // 2)
    angle = pair - (D // 2 - HALF)
    inside = ((angle >= 0) & (angle < HALF))[None, :]
    cos = tl.load(row_cos[:, None] + angle[None, :], inside, 1.0)
    sin = tl.load(row_sin[:, None] + angle[None, :], inside, 0.0)
    return tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (ROWS, BLOCK_D))


@triton.jit(do_not_specialize=["n_q", "n_kv"])
def _qk_norm_rope_store_kernel(
    q_ptr, kv_ptr, weight_ptr, cos_ptr, sin_ptr, pool_ptr, rope_ptr, rows_ptr, n_q, n_kv, eps,
    q_stride_t, q_stride_h, kv_stride, cos_stride, sin_stride, pool_stride, rope_stride,
    H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, HALF: tl.constexpr, ROPE: tl.constexpr,
    LISTED: tl.constexpr, PDL: tl.constexpr, Q_ROWS: tl.constexpr, KV_ROWS: tl.constexpr,
):  # fmt: skip
    """``n_q = T * H`` head rows are normed without weight and rotated in place, then ``n_kv`` KV rows stored.

    KV row ``t`` goes to row ``rows[t]`` of the pool with ``LISTED`` (-1: nowhere), else to row ``t``.
    """
    follow(PDL)
    q_programs = tl.cdiv(n_q, Q_ROWS)
    d = tl.arange(0, BLOCK_D)
    column = (d < D)[None, :]
    if tl.program_id(0) < q_programs:
        row = tl.program_id(0) * Q_ROWS + tl.arange(0, Q_ROWS)
        token = (row // H).to(tl.int64)
        mask = (row < n_q)[:, None] & column
        place = q_ptr + (token * q_stride_t + (row % H) * q_stride_h)[:, None] + d[None, :]
        y = tl.load(place, mask, 0.0).to(tl.float32)
        y = y * tl.rsqrt(tl.sum(y * y, 1) / D + eps)[:, None]
        token = tl.where(row < n_q, token, 0)
        y = rotated(y, cos_ptr + token * cos_stride, sin_ptr + token * sin_stride, d, D, HALF, Q_ROWS, BLOCK_D)
        tl.store(place, y.to(q_ptr.dtype.element_ty), mask)
    else:
        t = (tl.program_id(0) - q_programs) * KV_ROWS + tl.arange(0, KV_ROWS)
        at = tl.where(t < n_kv, t, 0).to(tl.int64)
        x = tl.load(kv_ptr + at[:, None] * kv_stride + d[None, :], (t < n_kv)[:, None] & column, 0.0).to(tl.float32)
        weight = tl.load(weight_ptr + d, d < D, 0.0).to(tl.float32)
        x = x * tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None] * weight[None, :]
        x = rotated(x, cos_ptr + at * cos_stride, sin_ptr + at * sin_stride, d, D, HALF, KV_ROWS, BLOCK_D)
        if LISTED:
            target = tl.load(rows_ptr + t, t < n_kv, -1)
        else:
            target = tl.where(t < n_kv, t, -1)
        store_rows(pool_ptr, pool_stride, rope_ptr, rope_stride, target, x, d, KV_ROWS, D, BLOCK_D, ROPE)
