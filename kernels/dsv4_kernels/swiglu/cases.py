"""Cases and cost of the SwiGLU kernels."""

from __future__ import annotations

import torch

from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec
from dsv4_kernels.swiglu._launch import SWIGLU
from dsv4_kernels.swiglu.reference import swiglu_quant_reference, swiglu_rows_reference
from dsv4_kernels.testing.inputs import Inputs


def _rows(inputs: Inputs, n: int, inter: int, pad: int = 0) -> Arguments:
    h = inputs.normal(n, 2 * inter + pad, scale=8.0)[:, : 2 * inter]
    return {"h": h, "limit": 10.0, "out": inputs.empty(n, inter + pad)[:, :inter]}


def _quant(inputs: Inputs, n: int, inter: int) -> Arguments:
    return {
        "h": inputs.normal(n, 2 * inter, scale=8.0), "limit": 10.0,
        "codes": inputs.empty(n, inter, dtype=torch.float8_e4m3fn),
        "scales": inputs.empty(n, inter // 128, dtype=torch.uint8),
    }  # fmt: skip


def _cost(arguments: Arguments) -> Cost:
    moved = sum(t.numel() * t.element_size() for t in arguments.values() if isinstance(t, torch.Tensor))
    return Cost(moved, 4 * arguments["h"].numel())


SPECS = (
    KernelSpec(
        "swiglu",
        swiglu_rows_reference,
        "dsv4_kernels.swiglu.triton_op:swiglu_rows",
        (
            Case("flash-1", lambda i: _rows(i, 1, 2048), compiled=True, bench=True),
            Case("pro-3", lambda i: _rows(i, 3, 3072)),
            Case("strided", lambda i: _rows(i, 5, 384, pad=16)),
            Case("odd", lambda i: _rows(i, 2, 100)),
            Case("empty", lambda i: _rows(i, 0, 256)),
            Case("flash-16384", lambda i: _rows(i, 16384, 2048), small=False, bench=True),
        ),
        _cost,
        (SWIGLU,),
        outputs=("out",),
    ),
    KernelSpec(
        "swiglu_quant",
        swiglu_quant_reference,
        "dsv4_kernels.swiglu.triton_op:swiglu_quant",
        (
            Case("flash-1", lambda i: _quant(i, 1, 2048), compiled=True, bench=True),
            Case("pro-3", lambda i: _quant(i, 3, 3072)),
            Case("empty", lambda i: _quant(i, 0, 256)),
            Case("flash-16384", lambda i: _quant(i, 16384, 2048), small=False, bench=True),
        ),
        _cost,
        (SWIGLU,),
        outputs=("codes", "scales"),
    ),
)
