"""Cases and cost of the fp8 product."""

from __future__ import annotations

import torch

from dsv4_kernels.block_fp8_gemm._launch import BLOCK_FP8_GEMM, FEW, FEW_SWIGLU
from dsv4_kernels.block_fp8_gemm.reference import (
    block_fp8_gemm_quant_reference,
    block_fp8_gemm_reference,
    block_fp8_gemm_swiglu_reference,
)
from dsv4_kernels.formats import quantise_e4m3, quantise_e4m3_blocks
from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec, Tolerance
from dsv4_kernels.testing.inputs import Inputs


def _product(inputs: Inputs, tokens: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16) -> Arguments:
    if inputs.meta:
        codes, scales = (
            inputs.empty(tokens, k, dtype=torch.float8_e4m3fn),
            inputs.empty(tokens, k // 128, dtype=torch.uint8),
        )
        weight = inputs.empty(n, k, dtype=torch.float8_e4m3fn)
        weight_scales = inputs.empty(n // 128, k // 128, dtype=torch.uint8)
    else:
        spread = 2.0 ** inputs.integers(-6, 7, tokens, 1).float()
        codes, scales = quantise_e4m3(inputs.normal(tokens, k, dtype=torch.float32) * spread)
        weight, weight_scales = quantise_e4m3_blocks(inputs.normal(n, k, dtype=torch.float32, scale=k**-0.5))
    return {
        "codes": codes, "scales": scales, "weight": weight, "weight_scales": weight_scales,
        "out": inputs.empty(tokens, n, dtype=dtype),
    }  # fmt: skip


def _quantising(inputs: Inputs, tokens: int, n: int, k: int) -> Arguments:
    arguments = _product(inputs, tokens, n, k)
    x = inputs.normal(tokens, k) * (2.0 ** inputs.integers(-6, 7, tokens, 1).float()).bfloat16()
    return {"x": x, **{name: arguments[name] for name in ("weight", "weight_scales", "out")}}


def _swiglu(inputs: Inputs, tokens: int, n: int, k: int, pad: int = 0) -> Arguments:
    arguments = _product(inputs, tokens, n, k)
    h = inputs.normal(tokens, 2 * k + pad, scale=8.0)[:, : 2 * k]
    return {"h": h, "limit": 10.0, **{name: arguments[name] for name in ("weight", "weight_scales", "out")}}


def _cost(arguments: Arguments) -> Cost:
    moved = sum(t.numel() * t.element_size() for t in arguments.values() if isinstance(t, torch.Tensor))
    tokens, (n, k) = arguments["out"].shape[0], arguments["weight"].shape
    return Cost(moved, 2 * tokens * n * k)


SPECS = (
    KernelSpec(
        "block_fp8_gemm",
        block_fp8_gemm_reference,
        "dsv4_kernels.block_fp8_gemm.triton_op:block_fp8_gemm",
        (
            Case("wo_b-1", lambda i: _product(i, 1, 4096, 8192), small=False, compiled=True, bench=True),
            Case("wq_b-8", lambda i: _product(i, 8, 32768, 1024), small=False, bench=True),
            Case("small-3", lambda i: _product(i, 3, 256, 640)),
            Case("small-20", lambda i: _product(i, 20, 128, 256)),
            Case("float32", lambda i: _product(i, 5, 128, 384, torch.float32)),
            Case("empty", lambda i: _product(i, 0, 128, 256)),
            Case("long-1", lambda i: _product(i, 1, 128, 4224)),
            Case("q_b-tp8-1", lambda i: _product(i, 1, 4096, 1024), small=False, bench=True),
            Case("q_b-tp8-16", lambda i: _product(i, 16, 4096, 1024), small=False, bench=True),
            Case("qkv_a-1", lambda i: _product(i, 1, 1536, 4096), small=False, bench=True),
            Case("qkv_a-pro-8", lambda i: _product(i, 8, 2048, 7168), small=False, bench=True),
            Case("w13-tp8-1", lambda i: _product(i, 1, 512, 4096), small=False, bench=True),
            Case("w2-tp8-4", lambda i: _product(i, 4, 4096, 256), small=False, bench=True),
            Case("w2-pro-tp8-1", lambda i: _product(i, 1, 7168, 384), small=False, bench=True),
            Case("ragged-200", lambda i: _product(i, 200, 384, 1024), small=False, compiled=True),
            Case("wo_b-4096", lambda i: _product(i, 4096, 4096, 8192), small=False, bench=True),
        ),
        _cost,
        (BLOCK_FP8_GEMM, FEW),
        outputs=("out",),
        # The matrix units of Hopper keep about 14 bits of a sum of 32 fp8 products.
        tolerance=Tolerance(floor=2.0**-10),
    ),
    KernelSpec(
        "block_fp8_gemm_quant",
        block_fp8_gemm_quant_reference,
        "dsv4_kernels.block_fp8_gemm.triton_op:block_fp8_gemm_quant",
        (
            Case("small-1", lambda i: _quantising(i, 1, 128, 640)),
            Case("small-5", lambda i: _quantising(i, 5, 256, 384)),
            Case("small-20", lambda i: _quantising(i, 20, 128, 256)),
            Case("empty", lambda i: _quantising(i, 0, 128, 256)),
            Case("q_b-tp8-1", lambda i: _quantising(i, 1, 4096, 1024), small=False, bench=True),
            Case("q_b-tp8-8", lambda i: _quantising(i, 8, 4096, 1024), small=False, compiled=True, bench=True),
            Case("qkv_a-1", lambda i: _quantising(i, 1, 1536, 4096), small=False, compiled=True, bench=True),
            Case("qkv_a-4", lambda i: _quantising(i, 4, 1536, 4096), small=False, bench=True),
            Case("wo_b-pro-1", lambda i: _quantising(i, 1, 7168, 16384), small=False, bench=True),
        ),
        _cost,
        (FEW, BLOCK_FP8_GEMM),
        outputs=("out",),
        tolerance=Tolerance(floor=2.0**-10),
    ),
    KernelSpec(
        "block_fp8_gemm_swiglu",
        block_fp8_gemm_swiglu_reference,
        "dsv4_kernels.block_fp8_gemm.triton_op:block_fp8_gemm_swiglu",
        (
            Case("small-1", lambda i: _swiglu(i, 1, 128, 640)),
            Case("small-2", lambda i: _swiglu(i, 2, 128, 256)),
            Case("small-5", lambda i: _swiglu(i, 5, 256, 384, pad=128)),
            Case("small-20", lambda i: _swiglu(i, 20, 128, 256)),
            Case("empty", lambda i: _swiglu(i, 0, 128, 256)),
            Case("w2-1", lambda i: _swiglu(i, 1, 4096, 2048), small=False, compiled=True, bench=True),
            Case("w2-8", lambda i: _swiglu(i, 8, 4096, 2048), small=False, bench=True),
            Case("w2-pro-1", lambda i: _swiglu(i, 1, 7168, 3072), small=False),
            Case("w2-tp8-1", lambda i: _swiglu(i, 1, 4096, 256), small=False),
            Case("w2-tp8-4", lambda i: _swiglu(i, 4, 4096, 256), small=False, compiled=True, bench=True),
            Case("w2-pro-tp8-1", lambda i: _swiglu(i, 1, 7168, 384), small=False, bench=True),
            Case("w2-pro-tp8-8", lambda i: _swiglu(i, 8, 7168, 384), small=False),
        ),
        _cost,
        (FEW_SWIGLU, FEW, BLOCK_FP8_GEMM),
        outputs=("out",),
        tolerance=Tolerance(floor=2.0**-10),
    ),
)
