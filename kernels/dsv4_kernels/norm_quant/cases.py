"""Cases and cost of the RMSNorm kernels."""

from __future__ import annotations

import torch

from dsv4_kernels.norm_quant._launch import NORM_QUANT, RMS_NORM
from dsv4_kernels.norm_quant.reference import quant_reference, rms_norm_quant_reference, rms_norm_reference
from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec, Tolerance
from dsv4_kernels.testing.inputs import Inputs


def _norm(inputs: Inputs, *shape: int, dtype: torch.dtype = torch.bfloat16, weighted: bool = True) -> Arguments:
    d = shape[-1]
    weight = inputs.normal(d, dtype=torch.bfloat16) if weighted else None
    return {
        "x": inputs.normal(*shape, dtype=dtype, scale=3.0), "weight": weight, "eps": 1e-6,
        "out": inputs.empty(*shape, dtype=dtype),
    }  # fmt: skip


def _strided(inputs: Inputs, n: int, d: int) -> Arguments:
    wide, out = inputs.normal(n, d + 64), inputs.empty(n, d + 16)
    return {"x": wide[:, :d], "weight": inputs.normal(d), "eps": 1e-6, "out": out[:, :d]}


def _quant(inputs: Inputs, n: int, d: int, *, norm: bool = True, weighted: bool = True) -> Arguments:
    arguments: Arguments = {"x": inputs.normal(n, d, scale=3.0)}
    if norm:
        arguments |= {"weight": inputs.normal(d) if weighted else None, "eps": 1e-6}
    outputs = {
        "codes": inputs.empty(n, d, dtype=torch.float8_e4m3fn),
        "scales": inputs.empty(n, d // 128, dtype=torch.uint8),
    }
    return arguments | outputs


def _tiny_rows(inputs: Inputs) -> Arguments:
    arguments = _quant(inputs, 4, 256, norm=False)
    if not inputs.meta:
        arguments["x"][0] = 0.0
        arguments["x"][1] *= 1e-9
        arguments["x"][2, :128] = 448.0
        arguments["x"][3, 5] = 450.0
    return arguments


def _cost(arguments: Arguments) -> Cost:
    x = arguments["x"]
    out = sum(arguments[n].numel() * arguments[n].element_size() for n in ("out", "codes", "scales") if n in arguments)
    weight = arguments.get("weight")
    read = x.numel() * x.element_size() + (0 if weight is None else weight.numel() * weight.element_size())
    return Cost(read + out, 5 * x.numel())


SPECS = (
    KernelSpec(
        "rms_norm",
        rms_norm_reference,
        "dsv4_kernels.norm_quant.triton_op:rms_norm",
        (
            Case("flash-1", lambda i: _norm(i, 1, 4096), compiled=True, bench=True),
            Case("pro-3", lambda i: _norm(i, 3, 7168)),
            Case("q-lora", lambda i: _norm(i, 5, 1536)),
            Case("heads", lambda i: _norm(i, 3, 4, 512, weighted=False), compiled=True),
            Case("float32", lambda i: _norm(i, 2, 512, dtype=torch.float32)),
            Case("odd", lambda i: _norm(i, 7, 100)),
            Case("strided", lambda i: _strided(i, 5, 512)),
            Case("empty", lambda i: _norm(i, 0, 512)),
            Case("flash-8192", lambda i: _norm(i, 8192, 4096), small=False, bench=True),
        ),
        _cost,
        (RMS_NORM,),
        outputs=("out",),
    ),
    KernelSpec(
        "rms_norm_quant",
        rms_norm_quant_reference,
        "dsv4_kernels.norm_quant.triton_op:rms_norm_quant",
        (
            Case("flash-1", lambda i: _quant(i, 1, 4096), compiled=True, bench=True),
            Case("pro-3", lambda i: _quant(i, 3, 7168)),
            Case("weightless", lambda i: _quant(i, 3, 512, weighted=False)),
            Case("empty", lambda i: _quant(i, 0, 512)),
            Case("flash-16384", lambda i: _quant(i, 16384, 4096), small=False, bench=True),
        ),
        _cost,
        (NORM_QUANT,),
        outputs=("codes", "scales"),
    ),
    KernelSpec(
        "quant",
        quant_reference,
        "dsv4_kernels.norm_quant.triton_op:quant",
        (
            Case("flash-1", lambda i: _quant(i, 1, 4096, norm=False), compiled=True, bench=True),
            Case("pro-3", lambda i: _quant(i, 3, 7168, norm=False)),
            Case("tiny-rows", _tiny_rows),
            Case("flash-16384", lambda i: _quant(i, 16384, 4096, norm=False), small=False, bench=True),
        ),
        _cost,
        (NORM_QUANT,),
        outputs=("codes", "scales"),
        tolerance=Tolerance(exact=frozenset({"codes", "scales"})),
    ),
)
