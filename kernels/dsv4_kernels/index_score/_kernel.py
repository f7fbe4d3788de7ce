"""Indexer scores of paged keys: bf16, e4m3 with a scale per key, or e2m1 with a scale per 32 values."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import follow, power_of_e8m0
from dsv4_kernels.pool_jit import e4m3_value


@triton.jit
def _e2m1_value(code):
    """float32 value of 4-bit codes, int32."""
    exponent = (code >> 1) & 3
    bits = tl.where(exponent > 0, ((exponent + 126) << 23) | ((code & 1) << 22), (code & 1) * 0x3F000000)
    return (bits | ((code & 8) << 28)).to(tl.float32, bitcast=True)


@triton.jit
def _load_keys(
    keys_ptr,
    page_bytes,
    page,
    place,
    ok,
    dtype,
    DIM: tl.constexpr,
    PER_PAGE: tl.constexpr,
    KIND: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Keys ``[len(page), DIM]`` of ``dtype`` and their float32 scales ``[len(page)]``; zeros where not ``ok``.

    ``KIND`` 0: plain rows (``page_bytes`` counts values). 1, 2: pages of bytes, all values before all scales.
    """
    base = keys_ptr + page.to(tl.int64) * page_bytes
    if KIND == 0:
        d = tl.arange(0, DIM)
        k = tl.load((base + place * DIM)[:, None] + d[None, :], ok[:, None] & (d >= 0)[None, :], 0.0)
        return k.to(dtype), tl.where(ok, 1.0, 0.0)
    if KIND == 1:
        d = tl.arange(0, DIM)
        code = tl.load((base + place * DIM)[:, None] + d[None, :], ok[:, None] & (d >= 0)[None, :], 0)
        scales = (base + PER_PAGE * DIM).to(tl.pointer_type(tl.float32))
        return e4m3_value(code, NATIVE).to(dtype), tl.load(scales + place, ok, 0.0)
    half = tl.arange(0, DIM // 2)
    code = tl.load((base + place * (DIM // 2))[:, None] + half[None, :], ok[:, None] & (half >= 0)[None, :], 0)
    scales = base + PER_PAGE * (DIM // 2) + place * (DIM // 32)
    exponent = tl.load(scales[:, None] + (half // 16)[None, :], ok[:, None] & (half >= 0)[None, :], 127)
    power = power_of_e8m0(exponent.to(tl.int32))
    code = code.to(tl.int32)
    k = tl.join(_e2m1_value(code & 15) * power, _e2m1_value(code >> 4) * power)
    return tl.reshape(k, (page.shape[0], DIM)).to(dtype), tl.where(ok, 1.0, 0.0)


@triton.jit
def _score(
    q_ptr,
    weights_ptr,
    factor,
    q_stride_t,
    q_stride_h,
    w_stride,
    token,
    k,
    scale,
    HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    DIM: tl.constexpr,
):
    """Scores ``[keys]`` of one token, whose weights are times ``factor``."""
    h = tl.arange(0, BLOCK_HEADS)
    d = tl.arange(0, DIM)
    place = q_ptr + tl.cast(token, tl.int64) * q_stride_t + (h * q_stride_h)[:, None] + d[None, :]
    q = tl.load(place, (h < HEADS)[:, None] & (d >= 0)[None, :], 0.0).to(k.dtype)
    w = tl.load(weights_ptr + tl.cast(token, tl.int64) * w_stride + h, h < HEADS, 0.0).to(tl.float32) * factor
    s = tl.dot(k, tl.trans(q), input_precision="ieee")
    return tl.sum(tl.maximum(s, 0.0) * w[None, :], 1) * scale


@triton.jit(do_not_specialize=["n_tokens", "n_entries"])
def _index_score_kernel(
    q_ptr, weights_ptr, keys_ptr, page_table_ptr, request_ptr, visible_ptr, out_ptr, n_tokens, n_entries, factor,
    q_stride_t, q_stride_h, w_stride, page_bytes, page_table_stride, out_stride,
    HEADS: tl.constexpr, BLOCK_HEADS: tl.constexpr, DIM: tl.constexpr, PER_PAGE: tl.constexpr, KIND: tl.constexpr,
    NATIVE: tl.constexpr, PAGED: tl.constexpr, PDL: tl.constexpr, BLOCK_E: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """A program scores ``BLOCK_E`` entries for ``TOKENS`` tokens; keys are loaded once if these share a request."""
    follow(PDL)
    first = tl.program_id(1) * TOKENS
    last = tl.minimum(first + TOKENS, n_tokens)
    e = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    request = 0
    limit = n_entries
    shared = True
    if PAGED:
        request = tl.load(request_ptr + first).to(tl.int32)
        t = first + tl.arange(0, TOKENS)
        limit = tl.max(tl.load(visible_ptr + t, t < last, 0).to(tl.int32), 0)
        others = tl.load(request_ptr + t, t < last, 0).to(tl.int32)
        shared = tl.max(tl.where(t < last, (others != request).to(tl.int32), 0), 0) == 0
    if tl.program_id(0) * BLOCK_E >= limit:
        return
    if shared:
        ok = e < limit
        page = e // PER_PAGE
        if PAGED:
            page = tl.load(page_table_ptr + request * page_table_stride + e // PER_PAGE, ok, 0)
        k, scale = _load_keys(
            keys_ptr, page_bytes, page, e % PER_PAGE, ok, q_ptr.dtype.element_ty, DIM, PER_PAGE, KIND, NATIVE
        )
        for token in range(first, last):
            s = _score(
                q_ptr, weights_ptr, factor, q_stride_t, q_stride_h, w_stride, token, k, scale, HEADS, BLOCK_HEADS, DIM
            )
            seen = e < limit
            if PAGED:
                seen = e < tl.load(visible_ptr + token).to(tl.int32)
            tl.store(out_ptr + tl.cast(token, tl.int64) * out_stride + e, s, seen)
    else:
        for token in range(first, last):
            ok = e < tl.load(visible_ptr + token).to(tl.int32)
            own = tl.load(request_ptr + token).to(tl.int32)
            page = tl.load(page_table_ptr + own * page_table_stride + e // PER_PAGE, ok, 0)
            k, scale = _load_keys(
                keys_ptr, page_bytes, page, e % PER_PAGE, ok, q_ptr.dtype.element_ty, DIM, PER_PAGE, KIND, NATIVE
            )
            s = _score(
                q_ptr, weights_ptr, factor, q_stride_t, q_stride_h, w_stride, token, k, scale, HEADS, BLOCK_HEADS, DIM
            )
            tl.store(out_ptr + tl.cast(token, tl.int64) * out_stride + e, s, ok)
