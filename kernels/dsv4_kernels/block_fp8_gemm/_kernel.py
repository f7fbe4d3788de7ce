"""fp8 matrix product. Each 128 columns of K are one sum in the matrix units, scaled and added in float32."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import arrives_last, power_of_e8m0


@triton.jit
def _as_fp8(bits, FNUZ: tl.constexpr):
    """Bytes of OCP e4m3 as the matrix units' fp8; as fnuz each value is half of what it was (and -0 is 0)."""
    if FNUZ:
        value = tl.where(bits == 0x80, 0, bits).to(tl.uint8).to(tl.float8e4b8, bitcast=True)
    else:
        value = bits.to(tl.float8e4nv, bitcast=True)
    return value


@triton.jit
def _block_fp8_gemm_kernel(
    codes_ptr, scales_ptr, weight_ptr, weight_scales_ptr, out_ptr, partial_ptr, counter_ptr,
    n_tokens, n, k, codes_stride, scales_stride, weight_stride, weight_scales_stride, out_stride, splits,
    FNUZ: tl.constexpr, SPLIT: tl.constexpr, PDL: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_T: tl.constexpr,
):  # fmt: skip
    """``out [n_tokens, n]``; grid: tiles (grouped so that neighbours share weights), splits of K.

    With ``SPLIT`` the sums of a split go to ``partial [splits, n_tokens, n]``; the program that arrives last at a
    tile adds them in order.
    """
    tiles_t, tiles_n = tl.cdiv(n_tokens, BLOCK_T), tl.cdiv(n, BLOCK_N)
    pid, split = tl.program_id(0), tl.program_id(1)
    wide = GROUP_T * tiles_n
    first = pid // wide * GROUP_T
    tall = tl.minimum(tiles_t - first, GROUP_T)
    tile_t, tile_n = first + pid % wide % tall, pid % wide // tall
    token = (tile_t * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    row = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    blocks = k // 128
    per = tl.cdiv(blocks, splits)
    begin, end = split * per, tl.minimum(split * per + per, blocks)
    col = tl.arange(0, 128)
    acc = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    x_at = codes_ptr + token[:, None] * codes_stride + col[None, :]
    w_at = weight_ptr + row[None, :] * weight_stride + col[:, None]
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for b in range(begin, end):
        x = tl.load(x_at + b * 128, mask=(token < n_tokens)[:, None], other=0)
        w = tl.load(w_at + b * 128, mask=(row < n)[None, :], other=0)
        sx = tl.load(scales_ptr + token * scales_stride + b, mask=token < n_tokens, other=127).to(tl.int32)
        sw = tl.load(weight_scales_ptr + row // 128 * weight_scales_stride + b, mask=row < n, other=127).to(tl.int32)
        sums = tl.dot(_as_fp8(x, FNUZ), _as_fp8(w, FNUZ))
        acc += sums * power_of_e8m0(sx)[:, None] * power_of_e8m0(sw)[None, :]
    if FNUZ:
        acc *= 4.0
    mask = (token < n_tokens)[:, None] & (row < n)[None, :]
    if SPLIT:
        at = partial_ptr + (split * n_tokens + token[:, None]) * n + row[None, :]
        tl.store(at, acc, mask=mask)
        if arrives_last(counter_ptr + pid, splits):
            whole = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
            for s in range(splits):
                part = partial_ptr + (s * n_tokens + token[:, None]) * n + row[None, :]
                whole += tl.load(part, mask=mask, other=0.0, cache_modifier=".cg")
            tl.store(
                out_ptr + token[:, None] * out_stride + row[None, :], whole.to(out_ptr.dtype.element_ty), mask=mask
            )
    else:
        tl.store(out_ptr + token[:, None] * out_stride + row[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)
