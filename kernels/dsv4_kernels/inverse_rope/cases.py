"""Cases and cost of the rotation kernels."""

from __future__ import annotations

import torch

from dsv4_kernels.inverse_rope._launch import ROPE_TABLE, ROTATE, ROTATE_QUANT
from dsv4_kernels.inverse_rope.reference import (
    inverse_rope_quant_reference,
    rope_table_reference,
    rotate_reference,
)
from dsv4_kernels.qk_norm_rope_store.cases import angles
from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec, Tolerance
from dsv4_kernels.rope import rope_frequencies
from dsv4_kernels.testing.inputs import Inputs


def _rotate(
    inputs: Inputs, tokens: int, heads: int, *, d: int = 512, rope: int = 64, inverse: bool = True,
    dtype: torch.dtype = torch.bfloat16,
) -> Arguments:  # fmt: skip
    return {
        "x": inputs.normal(tokens, heads, d, dtype=dtype), **angles(inputs, tokens, rope // 2), "inverse": inverse,
    }  # fmt: skip


def _quant(inputs: Inputs, tokens: int, heads: int) -> Arguments:
    return {
        "o": inputs.normal(tokens, heads, 512),
        **angles(inputs, tokens, 32),
        "codes": inputs.empty(tokens, heads * 512, dtype=torch.float8_e4m3fn),
        "scales": inputs.empty(tokens, heads * 4, dtype=torch.uint8),
    }


def _table(inputs: Inputs, tokens: int, rope: int = 64) -> Arguments:
    return {
        "positions": inputs.integers(0, 1 << 20, tokens),
        "frequencies": rope_frequencies(rope, 160000.0, factor=16.0).to(inputs.device),
        "out": inputs.empty(tokens, 2, rope // 2, dtype=torch.float32),
    }


def _table_cost(arguments: Arguments) -> Cost:
    out = arguments["out"]
    return Cost(4 * out.numel() + 8 * arguments["positions"].numel(), 20 * out.numel())


def _rotate_cost(arguments: Arguments) -> Cost:
    x, cos = arguments["x"], arguments["cos"]
    tail = x.shape[0] * x.shape[1] * 2 * cos.shape[1]
    return Cost(2 * tail * x.element_size() + 8 * cos.numel(), 3 * tail)


def _quant_cost(arguments: Arguments) -> Cost:
    o = arguments["o"]
    moved = o.numel() * (o.element_size() + 1) + o.numel() // 128 + 8 * arguments["cos"].numel()
    return Cost(moved, 4 * o.numel())


SPECS = (
    KernelSpec(
        "rope_table",
        rope_table_reference,
        "dsv4_kernels.inverse_rope.triton_op:rope_table",
        (
            Case("one", lambda i: _table(i, 1), compiled=True, bench=True),
            Case("narrow", lambda i: _table(i, 7, rope=24)),
            Case("none", lambda i: _table(i, 0)),
            Case("many", lambda i: _table(i, 900), small=False, compiled=True),
        ),
        _table_cost,
        (ROPE_TABLE,),
        outputs=("out",),
        tolerance=Tolerance(floor=2.0**-22),
    ),
    KernelSpec(
        "rotate",
        rotate_reference,
        "dsv4_kernels.inverse_rope.triton_op:rotate",
        (
            Case("one", lambda i: _rotate(i, 1, 64), compiled=True, bench=True),
            Case("index-queries", lambda i: _rotate(i, 5, 64, d=128, inverse=False)),
            Case("tiny", lambda i: _rotate(i, 5, 3, d=64, rope=16)),
            Case("float32", lambda i: _rotate(i, 5, 3, d=64, rope=16, dtype=torch.float32)),
            Case("none", lambda i: _rotate(i, 0, 64)),
            Case("many", lambda i: _rotate(i, 200, 128), small=False, compiled=True),
            Case("h64-t8192", lambda i: _rotate(i, 8192, 64), small=False, bench=True),
        ),
        _rotate_cost,
        (ROTATE,),
        updates=("x",),
    ),
    KernelSpec(
        "inverse_rope_quant",
        inverse_rope_quant_reference,
        "dsv4_kernels.inverse_rope.triton_op:inverse_rope_quant",
        (
            Case("one", lambda i: _quant(i, 1, 64), compiled=True, bench=True),
            Case("some", lambda i: _quant(i, 5, 3)),
            Case("none", lambda i: _quant(i, 0, 16)),
            Case("many", lambda i: _quant(i, 90, 128), small=False, compiled=True),
            Case("h64-t2048", lambda i: _quant(i, 2048, 64), small=False, bench=True),
        ),
        _quant_cost,
        (ROTATE_QUANT,),
        outputs=("codes", "scales"),
        verify=None,
        tolerance=Tolerance(factor=4.0),
    ),
)
