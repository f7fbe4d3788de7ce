"""Wrapper of the bf16 product; arguments as in ``reference.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.bf16_gemm._kernel import _bf16_gemm_kernel, _bf16_gemv_kernel
from dsv4_kernels.bf16_gemm._launch import BF16_GEMM, BF16_GEMV, BF16_LANES, LANES_TOKENS, VECTOR_TOKENS
from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.invariant import counted
from dsv4_kernels.launch import launch, overlaps
from dsv4_kernels.target import target_of

COLUMNS = 128
"""Rows of NVIDIA's own kernel are multiples of so many columns."""


def bf16_gemm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """See :func:`dsv4_kernels.bf16_gemm.bf16_gemm_reference`; last dims have neighbours side by side.

    How a row is summed depends on tokens and K alone: a row of the weight gives the same bits whatever is beside it.
    """
    if weight.dim() == 2:
        require(x.dim() == 2 and out.dim() == 2, "a weight of two dims takes x and out of two")
        x, weight, out = x[:, None], weight[None], out[:, None]
    tokens, groups, k = x.shape
    n = weight.shape[1]
    require_shape("weight", weight, groups, n, k)
    require_shape("out", out, tokens, groups, n)
    require_dtype("x", x, torch.bfloat16)
    require_dtype("weight", weight, torch.bfloat16)
    require_dtype("out", out, torch.bfloat16, torch.float32)
    for name, tensor in (("x", x), ("weight", weight), ("out", out)):
        require_unit_stride(name, tensor)
    arguments = {
        "x_ptr": x, "w_ptr": weight, "out_ptr": out, "n": n, "k": k, "x_stride_t": x.stride(0),
        "x_stride_g": x.stride(1), "w_stride_g": weight.stride(0), "w_stride": weight.stride(1),
        "out_stride_t": out.stride(0), "out_stride_g": out.stride(1),
    }  # fmt: skip
    target, constants = target_of(x.device), {"PDL": overlaps(x)}
    few = counted("tokens", tokens)
    if 1 < few <= LANES_TOKENS and overlaps(x) and k % COLUMNS == 0 and _in_sixteens(x, weight):
        _lanes(x, weight, out)
        return
    if few <= VECTOR_TOKENS:
        chosen = BF16_GEMV.choose(target, tokens=tokens, k=k)
        grid = (triton.cdiv(n, chosen["BLOCK_N"]), groups, tokens)
        launch(_bf16_gemv_kernel, grid, arguments, {**constants, "BLOCKS": triton.cdiv(k, chosen["BLOCK_K"])}, chosen)
        return
    chosen = BF16_GEMM.choose(target, tokens=tokens, k=k)
    grid = (triton.cdiv(n, chosen["BLOCK_N"]), groups, triton.cdiv(tokens, chosen["BLOCK_T"]))
    launch(_bf16_gemm_kernel, grid, {**arguments, "n_tokens": tokens}, constants, chosen)


def _in_sixteens(*tensors: torch.Tensor) -> bool:
    """Whether every row begins at a multiple of 16 bytes."""
    places = [place for t in tensors for place in (t.storage_offset(), *t.stride()[:-1])]
    return all(place % 8 == 0 for place in places)


def _lanes(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """As :func:`bf16_gemm`, of tensors with groups, by NVIDIA's own kernel."""
    from dsv4_kernels.bf16_gemm._nvidia import _bf16_lanes_kernel

    tokens, groups, k = x.shape
    n = weight.shape[1]
    chosen = BF16_LANES.choose(target_of(x.device), tokens=tokens, n=groups * n, k=k)
    x, weight = x.view(torch.int32), weight.view(torch.int32)
    steps = triton.cdiv(k, chosen["BLOCK_K"])
    launch(
        _bf16_lanes_kernel,
        (triton.cdiv(n, chosen["BLOCK_N"]), groups),
        {
            "x_ptr": x, "w_ptr": weight, "out_ptr": out, "n_tokens": tokens, "n": n, "x_stride_t": x.stride(0),
            "x_stride_g": x.stride(1), "w_stride_g": weight.stride(0), "w_stride": weight.stride(1),
            "out_stride_t": out.stride(0), "out_stride_g": out.stride(1),
        },
        {
            "PDL": overlaps(x), "BLOCKS": k // COLUMNS, "TILES": triton.cdiv(tokens, 4 if chosen["TWICE"] else 8),
            "AHEAD": min(chosen.num_stages, steps),
        },
        chosen,
    )  # fmt: skip
