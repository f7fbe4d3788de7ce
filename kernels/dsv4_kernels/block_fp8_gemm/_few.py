"""fp8 products of few tokens: a program reads whole rows of the weight.

Both kernels may quantise bf16 activations themselves, to the codes and scales of ``norm_quant.quant``, and make them
first, by the SwiGLU of a product before (``SWIGLU``). With ``PDL`` and what fits one step, the weights are on their way
before the kernel that made the activations has ended.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.block_fp8_gemm._kernel import _as_fp8
from dsv4_kernels.jit import clamped_swiglu, e8m0_of_amax, power_of_e8m0, to_e4m3


@triton.jit
def _exponents(ptr, block, blocks):
    """e8m0 bytes of these blocks of a row as int32; 127 past its end."""
    return tl.load(ptr + block, mask=block < blocks, other=127).to(tl.int32)


@triton.jit
def _wide(at, mask, k, limit, SWIGLU: tl.constexpr):
    """float32 activations that are to be quantised; ``SWIGLU``: of gates, whose ups are ``k`` columns on, rounded."""
    x = tl.load(at, mask=mask, other=0.0)
    wide = x.to(tl.float32)
    if SWIGLU:
        up = tl.load(at + k, mask=mask, other=0.0).to(tl.float32)
        wide = clamped_swiglu(wide, up, limit).to(x.dtype).to(tl.float32)
    return wide


@triton.jit
def _few_vector_kernel(
    x_ptr, x_scales_ptr, weight_ptr, weight_scales_ptr, out_ptr,
    n, k, x_stride, x_scales_stride, weight_stride, weight_scales_stride, out_stride, limit,
    QUANT: tl.constexpr, SWIGLU: tl.constexpr, FNUZ: tl.constexpr, PDL: tl.constexpr, ONE: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """``out [T, n]``, without matrix units; grid: row tiles, tokens. ``ONE``: a row is one step of ``BLOCK_K``."""
    GROUPS: tl.constexpr = BLOCK_K // 16
    token = tl.program_id(1).to(tl.int64)
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    group, byte = tl.arange(0, GROUPS), tl.arange(0, 16)
    blocks = k // 128
    x_at = x_ptr + token * x_stride + group[:, None] * 16 + byte[None, :]
    w_at = weight_ptr + row[None, :, None] * weight_stride + (group[:, None] * 16 + byte[None, :])[:, None, :]
    sw_at = weight_scales_ptr + tl.program_id(0) * BLOCK_N // 128 * weight_scales_stride
    total = tl.zeros((GROUPS, BLOCK_N), tl.float32)
    if ONE:
        w = tl.load(w_at, mask=(group * 16 < k)[:, None, None], other=0)
        sw = _exponents(sw_at, group // 8, blocks)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for at in range(0, k, BLOCK_K):
        inside = at + group * 16 < k
        if not ONE:
            w = tl.load(w_at + at, mask=inside[:, None, None], other=0)
            sw = _exponents(sw_at, (at // 16 + group) // 8, blocks)
        if QUANT:
            wide = _wide(x_at + at, inside[:, None], k, limit, SWIGLU)
            amax = tl.max(tl.reshape(tl.max(tl.abs(wide), axis=1), (GROUPS // 8, 8)), axis=1)
            exponent = e8m0_of_amax(amax)
            spread = tl.reshape(tl.broadcast_to(exponent[:, None], (GROUPS // 8, 8)), (GROUPS,))
            codes = to_e4m3(wide * power_of_e8m0(254 - spread)[:, None])
            value = codes.to(tl.float32)
        else:
            spread = _exponents(x_scales_ptr + token * x_scales_stride, (at // 16 + group) // 8, blocks)
            value = _as_fp8(tl.load(x_at + at, mask=inside[:, None], other=0), FNUZ).to(tl.float32)
        sums = tl.sum(_as_fp8(w, FNUZ).to(tl.float32) * value[:, None, :], axis=2)
        total += sums * (power_of_e8m0(spread) * power_of_e8m0(sw))[:, None]
    y = tl.sum(total, axis=0)
    if FNUZ:
        y *= 2.0 if QUANT else 4.0
    tl.store(out_ptr + token * out_stride + row, y.to(out_ptr.dtype.element_ty), mask=row < n)


@triton.jit
def _few_dot_kernel(
    x_ptr, x_scales_ptr, weight_ptr, weight_scales_ptr, out_ptr,
    n_tokens, n, k, x_stride, x_scales_stride, weight_stride, weight_scales_stride, out_stride, limit,
    QUANT: tl.constexpr, SWIGLU: tl.constexpr, FNUZ: tl.constexpr, PDL: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """``out [T, n]`` in tiles of 16 tokens; all blocks of 128 columns, ``k <= BLOCK_K``, are products side by side.

    Grid: row tiles, token tiles. The sums of a block are scaled in float32.
    """
    SIDE: tl.constexpr = BLOCK_K // 128
    token = (tl.program_id(1) * 16 + tl.arange(0, 16)).to(tl.int64)
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    block, col = tl.arange(0, SIDE), tl.arange(0, 128)
    inside, there = token < n_tokens, block < k // 128
    w_at = weight_ptr + row[None, None, :] * weight_stride + (block[:, None] * 128 + col[None, :])[:, :, None]
    w = tl.load(w_at, mask=there[:, None, None], other=0)
    sw = _exponents(weight_scales_ptr + tl.program_id(0) * BLOCK_N // 128 * weight_scales_stride, block, k // 128)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    mask = there[:, None] & inside[None, :]
    x_at = x_ptr + token[None, :, None] * x_stride + block[:, None, None] * 128 + col[None, None, :]
    if QUANT:
        wide = _wide(x_at, mask[:, :, None], k, limit, SWIGLU)
        exponent = e8m0_of_amax(tl.max(tl.abs(wide), axis=2))
        codes = to_e4m3(wide * power_of_e8m0(254 - exponent)[:, :, None])
        a = _as_fp8(codes.to(tl.uint8, bitcast=True), FNUZ)
    else:
        at = x_scales_ptr + token[None, :] * x_scales_stride + block[:, None]
        exponent = tl.load(at, mask=mask, other=127).to(tl.int32)
        a = _as_fp8(tl.load(x_at, mask=mask[:, :, None], other=0), FNUZ)
    sums = tl.dot(a, _as_fp8(w, FNUZ))
    y = tl.sum(sums * power_of_e8m0(exponent)[:, :, None] * power_of_e8m0(sw)[:, None, None], axis=0)
    if FNUZ:
        y *= 4.0
    mask = inside[:, None] & (row < n)[None, :]
    tl.store(out_ptr + token[:, None] * out_stride + row[None, :], y.to(out_ptr.dtype.element_ty), mask=mask)
