"""RMSNorm kernels. A program does ``ROWS`` rows; a row is ``d`` long, padded to ``BLOCK_D``."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import e8m0_of_amax, follow, power_of_e8m0, to_e4m3


@triton.jit
def _load_normed(
    x_ptr, x_stride_row, weight_ptr, n_rows, d, eps,
    HAS_WEIGHT: tl.constexpr, NORM: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Rows of this program, normed in float32 ``[ROWS, BLOCK_D]``, with their numbers, columns and mask."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK_D)
    mask = (row < n_rows)[:, None] & (col < d)[None, :]
    x = tl.load(x_ptr + row[:, None] * x_stride_row + col[None, :], mask=mask, other=0.0).to(tl.float32)
    if NORM:
        x = x * tl.rsqrt(tl.sum(x * x, axis=1) / d + eps)[:, None]
        if HAS_WEIGHT:
            x = x * tl.load(weight_ptr + col, mask=col < d, other=0.0).to(tl.float32)[None, :]
    return x, row, col, mask


@triton.jit
def _rms_norm_kernel(
    x_ptr, weight_ptr, out_ptr, x_stride_row, out_stride_row, n_rows, d, eps,
    HAS_WEIGHT: tl.constexpr, PDL: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """``out [n_rows, d]`` = RMSNorm of ``x [n_rows, d]``."""
    follow(PDL)
    y, row, col, mask = _load_normed(x_ptr, x_stride_row, weight_ptr, n_rows, d, eps, HAS_WEIGHT, True, ROWS, BLOCK_D)
    tl.store(out_ptr + row[:, None] * out_stride_row + col[None, :], y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _norm_quant_kernel(
    x_ptr, weight_ptr, codes_ptr, scales_ptr, x_stride_row, codes_stride_row, scales_stride_row, n_rows, d, eps,
    HAS_WEIGHT: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """e4m3 ``codes [n_rows, d]`` and e8m0 ``scales [n_rows, d / 128]`` of ``x``, normed first if ``NORM``."""
    follow(PDL)
    y, row, col, mask = _load_normed(x_ptr, x_stride_row, weight_ptr, n_rows, d, eps, HAS_WEIGHT, NORM, ROWS, BLOCK_D)
    y = y.to(x_ptr.dtype.element_ty).to(tl.float32)
    groups = tl.reshape(y, (ROWS, BLOCK_D // 128, 128))
    exponent = e8m0_of_amax(tl.max(tl.abs(groups), axis=2))
    inverse = power_of_e8m0(254 - exponent)
    codes = tl.reshape(to_e4m3(groups * inverse[:, :, None]), (ROWS, BLOCK_D))
    tl.store(codes_ptr + row[:, None] * codes_stride_row + col[None, :], codes, mask=mask)
    group = tl.arange(0, BLOCK_D // 128)
    inside = (row < n_rows)[:, None] & (group < d // 128)[None, :]
    tl.store(scales_ptr + row[:, None] * scales_stride_row + group[None, :], exponent.to(tl.uint8), mask=inside)
