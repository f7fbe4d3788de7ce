"""The table of angles, rotation of row tails in place, and inverse rotation with quantisation for ``wo_a``."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import e8m0_of_amax, follow, power_of_e8m0, to_e4m3


@triton.jit(do_not_specialize=["n"])
def _rope_table_kernel(
    positions_ptr, frequencies_ptr, out_ptr, n, out_stride,
    HALF: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """``out [n, 2, HALF]``: cosines and sines; angles are reduced to a turn in float64."""
    TURN: tl.constexpr = 6.283185307179586
    follow(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pair = tl.arange(0, BLOCK)
    position = tl.load(positions_ptr + row, mask=row < n, other=0).to(tl.float64)
    frequency = tl.load(frequencies_ptr + pair, mask=pair < HALF, other=0.0)
    turns = position[:, None] * (frequency * (1.0 / TURN))[None, :]
    angle = ((turns - tl.floor(turns + 0.5)) * TURN).to(tl.float32)
    at = out_ptr + row.to(tl.int64)[:, None] * out_stride + pair[None, :]
    mask = (row < n)[:, None] & (pair < HALF)[None, :]
    tl.store(at, tl.cos(angle), mask=mask)
    tl.store(at + HALF, tl.sin(angle), mask=mask)


@triton.jit
def _angles(cos_ptr, sin_ptr, token, cos_stride, sin_stride, HALF: tl.constexpr, PAIRS: tl.constexpr):
    """Cosines and sines of the rows' tokens, or one row of them where ``token`` is one for all."""
    pair = tl.arange(0, PAIRS)
    if len(token.shape) == 0:
        cos = tl.load(cos_ptr + token * cos_stride + pair, pair < HALF, 1.0)[None, :]
        sin = tl.load(sin_ptr + token * sin_stride + pair, pair < HALF, 0.0)[None, :]
    else:
        inside = (pair < HALF)[None, :]
        cos = tl.load(cos_ptr + (token * cos_stride)[:, None] + pair[None, :], inside, 1.0)
        sin = tl.load(sin_ptr + (token * sin_stride)[:, None] + pair[None, :], inside, 0.0)
    return cos, sin


@triton.jit(do_not_specialize=["n"])
def _rotate_kernel(
    x_ptr, cos_ptr, sin_ptr, n, x_stride_t, x_stride_h, cos_stride, sin_stride,
    H: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, BLOCK_T: tl.constexpr, INVERSE: tl.constexpr,
    PDL: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A program rotates the last ``2 * HALF`` values of ``ROWS`` of the ``n = T * H`` rows of ``D`` values."""
    follow(PDL)
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)
    own = tl.where(row < n, row // H, 0).to(tl.int64)
    d = tl.arange(0, BLOCK_T)
    mask = (row < n)[:, None] & (d < 2 * HALF)[None, :]
    place = x_ptr + (own * x_stride_t + (row % H) * x_stride_h + D - 2 * HALF)[:, None] + d[None, :]
    y = tl.load(place, mask, 0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(y, (ROWS, BLOCK_T // 2, 2)))
    token = own
    if H % ROWS == 0:
        token = (first // H).to(tl.int64)
    cos, sin = _angles(cos_ptr, sin_ptr, token, cos_stride, sin_stride, HALF, BLOCK_T // 2)
    if INVERSE:
        sin = -sin
    y = tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (ROWS, BLOCK_T))
    tl.store(place, y.to(x_ptr.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["n"])
def _inverse_rope_quant_kernel(
    o_ptr, cos_ptr, sin_ptr, codes_ptr, scales_ptr, n, o_stride_t, o_stride_h, cos_stride, sin_stride, codes_stride,
    scales_stride, H: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, PDL: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """As above, out of place: e4m3 codes and an e8m0 scale per 128 values of the value rounded to ``o``'s dtype."""
    follow(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.where(row < n, row // H, 0).to(tl.int64)
    head = row % H
    inside = row < n
    o_at = o_ptr + token * o_stride_t + head * o_stride_h
    codes_at = codes_ptr + token * codes_stride + head * D
    scales_at = scales_ptr + token * scales_stride + head * (D // 128)
    lane, pair = tl.arange(0, 128), tl.arange(0, 64)
    for group in tl.static_range(D // 128):  # only groups that the rotation reaches pay for it
        y = tl.load(o_at[:, None] + group * 128 + lane[None, :], inside[:, None], 0.0).to(tl.float32)
        if group * 128 + 128 > D - 2 * HALF:
            even, odd = tl.split(tl.reshape(y, (ROWS, 64, 2)))
            angle = group * 64 + pair - (D // 2 - HALF)
            turned = (angle >= 0)[None, :]
            cos = tl.load(cos_ptr + (token * cos_stride)[:, None] + angle[None, :], turned, 1.0)
            sin = tl.load(sin_ptr + (token * sin_stride)[:, None] + angle[None, :], turned, 0.0)
            y = tl.reshape(tl.join(even * cos + odd * sin, odd * cos - even * sin), (ROWS, 128))
            y = y.to(o_ptr.dtype.element_ty).to(tl.float32)
        exponent = e8m0_of_amax(tl.max(tl.abs(y), 1))
        codes = to_e4m3(y * power_of_e8m0(254 - exponent)[:, None])
        tl.store(codes_at[:, None] + group * 128 + lane[None, :], codes, inside[:, None])
        tl.store(scales_at + group, exponent.to(tl.uint8), inside)
