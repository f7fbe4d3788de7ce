"""Wrapper of the fp8 product; arguments as in ``reference.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.block_fp8_gemm._kernel import _block_fp8_gemm_kernel
from dsv4_kernels.block_fp8_gemm._launch import BLOCK_FP8_GEMM
from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.formats import FP8_GROUP
from dsv4_kernels.launch import launch
from dsv4_kernels.target import target_of
from dsv4_kernels.workspace import workspace, zeroed_workspace


def block_fp8_gemm(
    codes: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor, out: torch.Tensor
) -> None:
    """See :func:`dsv4_kernels.block_fp8_gemm.block_fp8_gemm_reference`; N and K are multiples of 128."""
    tokens, k = codes.shape
    n = weight.shape[0]
    require(k % FP8_GROUP == 0 and n % FP8_GROUP == 0, f"weight is {[n, k]}, expected multiples of {FP8_GROUP}")
    require_shape("weight", weight, n, k)
    require_shape("scales", scales, tokens, k // FP8_GROUP)
    require_shape("weight_scales", weight_scales, n // FP8_GROUP, k // FP8_GROUP)
    require_shape("out", out, tokens, n)
    for name, tensor in (("codes", codes), ("weight", weight)):
        require_dtype(name, tensor, torch.float8_e4m3fn)
        require_unit_stride(name, tensor)
    for name, tensor in (("scales", scales), ("weight_scales", weight_scales)):
        require_dtype(name, tensor, torch.uint8)
        require_unit_stride(name, tensor)
    require_unit_stride("out", out)
    target = target_of(codes.device)
    chosen = BLOCK_FP8_GEMM.choose(target, tokens=tokens, n=n)
    splits = min(chosen["SPLITS"], k // FP8_GROUP)
    tiles = triton.cdiv(tokens, chosen["BLOCK_T"]) * triton.cdiv(n, chosen["BLOCK_N"])
    split = splits > 1
    partial = workspace("block_fp8_gemm", (splits, tokens, n), torch.float32, codes.device) if split else None
    counters = zeroed_workspace("block_fp8_gemm", (max(tiles, 1),), torch.int32, codes.device) if split else None
    launch(
        _block_fp8_gemm_kernel,
        (tiles, splits),
        {
            "codes_ptr": codes.view(torch.uint8), "scales_ptr": scales, "weight_ptr": weight.view(torch.uint8),
            "weight_scales_ptr": weight_scales, "out_ptr": out, "partial_ptr": partial, "counter_ptr": counters,
            "n_tokens": tokens, "n": n, "k": k, "codes_stride": codes.stride(0), "scales_stride": scales.stride(0),
            "weight_stride": weight.stride(0), "weight_scales_stride": weight_scales.stride(0),
            "out_stride": out.stride(0), "splits": splits,
        },
        {"FNUZ": target.fp8 == "fnuz", "SPLIT": split},
        chosen,
    )  # fmt: skip
