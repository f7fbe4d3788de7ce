"""Cases and cost of the sum of two tensors."""

from __future__ import annotations

import torch

from dsv4_kernels.add._launch import ADD
from dsv4_kernels.add.reference import add_reference
from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec
from dsv4_kernels.testing.inputs import Inputs


def _rows(inputs: Inputs, n: int, d: int, pad: int = 0) -> Arguments:
    return {
        "a": inputs.normal(n, d + pad, dtype=torch.float32)[:, :d],
        "b": inputs.normal(n, d + pad)[:, :d],
        "out": inputs.empty(n, d + pad)[:, :d],
    }


def _cost(arguments: Arguments) -> Cost:
    moved = sum(t.numel() * t.element_size() for t in arguments.values())
    return Cost(moved, arguments["out"].numel())


SPECS = (
    KernelSpec(
        "add",
        add_reference,
        "dsv4_kernels.add.triton_op:add",
        (
            Case("flash-1", lambda i: _rows(i, 1, 4096), compiled=True, bench=True),
            Case("pro-3", lambda i: _rows(i, 3, 7168)),
            Case("strided", lambda i: _rows(i, 5, 384, pad=16)),
            Case("odd", lambda i: _rows(i, 2, 100)),
            Case("empty", lambda i: _rows(i, 0, 256)),
            Case("flash-8192", lambda i: _rows(i, 8192, 4096), small=False, bench=True),
        ),
        _cost,
        (ADD,),
        outputs=("out",),
    ),
)
