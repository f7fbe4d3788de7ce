"""Sum of two tensors. A program does ``BLOCK`` columns of one row."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import follow


@triton.jit
def _add_kernel(
    a_ptr, b_ptr, out_ptr, a_stride_row, b_stride_row, out_stride_row, d, PDL: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """``out [T, d] = a [T, d] + b [T, d]``; grid: rows, blocks of columns."""
    follow(PDL)
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = col < d
    a = tl.load(a_ptr + row * a_stride_row + col, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + row * b_stride_row + col, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * out_stride_row + col, (a + b).to(out_ptr.dtype.element_ty), mask=mask)
