"""bf16 products with few tokens: what counts is that all of the weights are on their way at once.

Weights are nobody's output, so a launch that may overlap its predecessor (``PDL``) asks for them before it waits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _bf16_gemv_kernel(
    x_ptr, w_ptr, out_ptr, n, k, x_stride_t, x_stride_g, w_stride_g, w_stride, out_stride_t, out_stride_g,
    BLOCKS: tl.constexpr, PDL: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One token; grid: tiles of ``BLOCK_N`` rows of the weight, groups, tokens. ``BLOCKS * BLOCK_K >= k``."""
    group = tl.program_id(1).to(tl.int64)
    token = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    col = tl.arange(0, BLOCK_K)
    inside = (row < n)[:, None]
    w_at = w_ptr + group * w_stride_g + row.to(tl.int64)[:, None] * w_stride + col[None, :]
    x_at = x_ptr + token * x_stride_t + group * x_stride_g + col
    w = tl.load(w_at, mask=inside & (col < k)[None, :], other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    x = tl.load(x_at, mask=col < k, other=0.0)
    acc = w.to(tl.float32) * x.to(tl.float32)[None, :]
    for block in tl.static_range(1, BLOCKS):
        here = col + block * BLOCK_K < k
        w = tl.load(w_at + block * BLOCK_K, mask=inside & here[None, :], other=0.0)
        x = tl.load(x_at + block * BLOCK_K, mask=here, other=0.0)
        acc += w.to(tl.float32) * x.to(tl.float32)[None, :]
    y = tl.sum(acc, axis=1)
    at = out_ptr + token * out_stride_t + group * out_stride_g + row
    tl.store(at, y.to(out_ptr.dtype.element_ty), mask=row < n)


@triton.jit
def _bf16_gemm_kernel(
    x_ptr, w_ptr, out_ptr, n_tokens, n, k, x_stride_t, x_stride_g, w_stride_g, w_stride, out_stride_t, out_stride_g,
    PDL: tl.constexpr, CHAINS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Grid: tiles of ``BLOCK_N`` rows of the weight, groups, tiles of ``BLOCK_T`` tokens.

    Products of the matrix units that add to one sum wait for each other: a step is dealt to ``CHAINS`` sums, of
    ``BLOCK_K`` columns each, which warps make side by side.
    """
    group = tl.program_id(1).to(tl.int64)
    token = (tl.program_id(2) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    w_row = w_ptr + group * w_stride_g + row.to(tl.int64) * w_stride
    x_row = x_ptr + token * x_stride_t + group * x_stride_g
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if CHAINS == 1:
        col = tl.arange(0, BLOCK_K)
        acc = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
        for at in range(0, k, BLOCK_K):
            here = at + col < k
            w = tl.load((w_row + at)[None, :] + col[:, None], mask=(row < n)[None, :] & here[:, None], other=0.0)
            x = tl.load(
                (x_row + at)[:, None] + col[None, :], mask=(token < n_tokens)[:, None] & here[None, :], other=0.0
            )
            acc = tl.dot(x, w, acc)
        y = acc
    else:
        cols = tl.arange(0, CHAINS)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
        accs = tl.zeros((CHAINS, BLOCK_T, BLOCK_N), tl.float32)
        for at in range(0, k, CHAINS * BLOCK_K):
            here = at + cols < k
            w = tl.load(
                (w_row + at)[None, None, :] + cols[:, :, None], mask=(row < n)[None, None, :] & here[:, :, None],
                other=0.0,
            )  # fmt: skip
            x = tl.load(
                (x_row + at)[None, :, None] + cols[:, None, :],
                mask=(token < n_tokens)[None, :, None] & here[:, None, :], other=0.0,
            )  # fmt: skip
            accs = tl.dot(x, w, accs)
        y = tl.sum(accs, axis=0)
    at = out_ptr + token[:, None] * out_stride_t + group * out_stride_g + row[None, :]
    tl.store(at, y.to(out_ptr.dtype.element_ty), mask=(token < n_tokens)[:, None] & (row < n)[None, :])
