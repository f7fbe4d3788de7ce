"""SwiGLU kernels. A program does ``BLOCK`` columns of one row."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import clamped_swiglu, e8m0_of_amax, power_of_e8m0, to_e4m3


@triton.jit
def _swiglu_kernel(
    h_ptr, out_ptr, scales_ptr, h_stride_row, out_stride_row, scales_stride_row, inter, limit,
    QUANT: tl.constexpr, PDL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``out [T, inter]`` of ``h [T, 2 inter]``; with ``QUANT`` as e4m3 with e8m0 ``scales [T, inter / 128]``."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = col < inter
    gate = tl.load(h_ptr + row * h_stride_row + col, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(h_ptr + row * h_stride_row + inter + col, mask=mask, other=0.0).to(tl.float32)
    y = clamped_swiglu(gate, up, limit)
    if QUANT:
        groups = tl.reshape(y.to(h_ptr.dtype.element_ty).to(tl.float32), (BLOCK // 128, 128))
        exponent = e8m0_of_amax(tl.max(tl.abs(groups), axis=1))
        codes = tl.reshape(to_e4m3(groups * power_of_e8m0(254 - exponent)[:, None]), (BLOCK,))
        tl.store(out_ptr + row * out_stride_row + col, codes, mask=mask)
        group = tl.program_id(1) * (BLOCK // 128) + tl.arange(0, BLOCK // 128)
        tl.store(scales_ptr + row * scales_stride_row + group, exponent.to(tl.uint8), mask=group < inter // 128)
    else:
        tl.store(out_ptr + row * out_stride_row + col, y.to(out_ptr.dtype.element_ty), mask=mask)
