"""Cases and cost of the bf16 product."""

from __future__ import annotations

import torch

from dsv4_kernels.bf16_gemm._launch import BF16_GEMM, BF16_GEMV, BF16_LANES
from dsv4_kernels.bf16_gemm.reference import bf16_gemm_reference
from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec, Tolerance
from dsv4_kernels.testing.inputs import Inputs


def _product(inputs: Inputs, tokens: int, n: int, k: int, dtype: torch.dtype = torch.float32) -> Arguments:
    return {
        "x": inputs.normal(tokens, k),
        "weight": inputs.normal(n, k, scale=k**-0.5),
        "out": inputs.empty(tokens, n, dtype=dtype),
    }


def _grouped(inputs: Inputs, tokens: int, groups: int, n: int, k: int) -> Arguments:
    return {
        "x": inputs.normal(tokens, groups, k),
        "weight": inputs.normal(groups, n, k, scale=k**-0.5),
        "out": inputs.empty(tokens, groups, n),
    }


def _strided(inputs: Inputs, tokens: int, n: int, k: int) -> Arguments:
    """Part of the columns of wider ``x`` and ``out``."""
    wide = inputs.normal(tokens, k + 24)
    out = inputs.empty(tokens, n + 40, dtype=torch.float32)
    return {"x": wide[:, 8 : 8 + k], "weight": inputs.normal(n, k, scale=k**-0.5), "out": out[:, 16 : 16 + n]}


def _cost(arguments: Arguments) -> Cost:
    moved = sum(t.numel() * t.element_size() for t in arguments.values())
    tokens, weight = arguments["x"].shape[0], arguments["weight"]
    return Cost(moved, 2 * tokens * weight.numel())


SPECS = (
    KernelSpec(
        "bf16_gemm",
        bf16_gemm_reference,
        "dsv4_kernels.bf16_gemm.triton_op:bf16_gemm",
        (
            Case("kv_gate-1", lambda i: _product(i, 1, 2048, 4096), small=False, compiled=True, bench=True),
            Case("kv_gate-8", lambda i: _product(i, 8, 2048, 4096), small=False, compiled=True, bench=True),
            Case("fused-1", lambda i: _product(i, 1, 2624, 4096), small=False, bench=True),
            Case("fused-8", lambda i: _product(i, 8, 2624, 4096), small=False, bench=True),
            Case("fused-pro-1", lambda i: _product(i, 1, 2624, 7168), small=False, bench=True),
            Case("weights_proj-1", lambda i: _product(i, 1, 64, 4096), small=False, bench=True),
            Case("wo_a-1", lambda i: _grouped(i, 1, 8, 1024, 4096), small=False, bench=True),
            Case("wo_a-tp8-1", lambda i: _grouped(i, 1, 1, 1024, 4096), small=False, bench=True),
            Case("wo_a-tp8-8", lambda i: _grouped(i, 8, 1, 1024, 4096), small=False, bench=True),
            Case("wo_a-tp8-4", lambda i: _grouped(i, 4, 1, 1024, 4096), small=False, bench=True),
            Case("wo_a-16", lambda i: _grouped(i, 16, 8, 1024, 4096), small=False),
            Case("fused-4", lambda i: _product(i, 4, 2624, 4096), small=False, bench=True),
            Case("fused-16", lambda i: _product(i, 16, 2624, 4096), small=False),
            Case("fused-pro-4", lambda i: _product(i, 4, 2624, 7168), small=False, bench=True),
            Case("fused-pro-8", lambda i: _product(i, 8, 2624, 7168), small=False),
            Case("fused-pro-16", lambda i: _product(i, 16, 2624, 7168), small=False),
            Case("kv_gate-pro-3", lambda i: _product(i, 3, 2048, 7168), small=False),
            Case("kv_gate-pro-6", lambda i: _product(i, 6, 1024, 7168), small=False),
            Case("wo_a-pro-tp8-12", lambda i: _grouped(i, 12, 2, 1024, 4096), small=False),
            Case("lanes-3", lambda i: _product(i, 3, 40, 384)),
            Case("lanes-grouped-11", lambda i: _grouped(i, 11, 3, 20, 640)),
            Case("lanes-strided-7", lambda i: _strided(i, 7, 48, 256)),
            Case("small-1", lambda i: _product(i, 1, 40, 96)),
            Case("small-2-bf16", lambda i: _product(i, 2, 24, 1100, torch.bfloat16)),
            Case("small-5", lambda i: _product(i, 5, 40, 328)),
            Case("grouped-2", lambda i: _grouped(i, 2, 3, 20, 72)),
            Case("grouped-20", lambda i: _grouped(i, 20, 2, 36, 128)),
            Case("strided-1", lambda i: _strided(i, 1, 48, 160)),
            Case("strided-9", lambda i: _strided(i, 9, 48, 160)),
            Case("empty", lambda i: _product(i, 0, 32, 64)),
            Case("ragged-200", lambda i: _product(i, 200, 392, 1056), small=False, compiled=True),
        ),
        _cost,
        (BF16_GEMV, BF16_LANES, BF16_GEMM),
        outputs=("out",),
        # The matrix units cut bits off the sums that they hold: 4e-6 over 4096 columns on an H200, as in its library.
        tolerance=Tolerance(floor=2.0**-17),
    ),
)
