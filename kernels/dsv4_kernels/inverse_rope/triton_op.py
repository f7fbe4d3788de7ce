"""Wrappers of the rotation kernels; arguments as in ``reference.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.formats import FP8_GROUP
from dsv4_kernels.inverse_rope._kernel import (
    _inverse_rope_quant_kernel,
    _rope_table_kernel,
    _rotate_kernel,
)
from dsv4_kernels.inverse_rope._launch import ROPE_TABLE, ROTATE, ROTATE_QUANT
from dsv4_kernels.launch import launch, overlaps, pdl_of
from dsv4_kernels.target import target_of


def rope_table(positions: torch.Tensor, frequencies: torch.Tensor, out: torch.Tensor) -> None:
    """See :func:`dsv4_kernels.inverse_rope.reference.rope_table_reference`; ``out[t]`` is contiguous."""
    tokens, half = positions.shape[0], frequencies.shape[0]
    require_shape("out", out, tokens, 2, half)
    require_dtype("out", out, torch.float32)
    require_dtype("positions", positions, torch.int64)
    require_dtype("frequencies", frequencies, torch.float64)
    require(out[:1].is_contiguous(), "out has rows that are not contiguous")
    chosen = ROPE_TABLE.choose(target_of(out.device), rows=tokens)
    launch(
        _rope_table_kernel,
        (triton.cdiv(tokens, chosen["ROWS"]),),
        {
            "positions_ptr": positions, "frequencies_ptr": frequencies, "out_ptr": out, "n": tokens,
            "out_stride": out.stride(0),
        },
        {"HALF": half, "BLOCK": triton.next_power_of_2(half), "PDL": overlaps(out)},
        chosen,
    )  # fmt: skip


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, inverse: bool = False) -> None:
    """Rotate the tail of ``x [T, H, d]`` in place by the angle, or back by it."""
    _check(x, cos, sin)
    tokens, heads, d = x.shape
    chosen = ROTATE.choose(target_of(x.device), rows=tokens * heads)
    launch(
        _rotate_kernel,
        (triton.cdiv(tokens * heads, chosen["ROWS"]),),
        {
            "x_ptr": x, "cos_ptr": cos, "sin_ptr": sin, "n": tokens * heads, "x_stride_t": x.stride(0),
            "x_stride_h": x.stride(1), "cos_stride": cos.stride(0), "sin_stride": sin.stride(0),
        },
        {
            "H": heads, "D": d, "HALF": cos.shape[1], "BLOCK_T": triton.next_power_of_2(2 * cos.shape[1]),
            "INVERSE": inverse, "PDL": pdl_of(x, x.shape[0]),
        },
        chosen,
    )  # fmt: skip


def inverse_rope(o: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """See :func:`dsv4_kernels.inverse_rope.inverse_rope_reference`."""
    rotate(o, cos, sin, inverse=True)


def inverse_rope_quant(
    o: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> None:
    """See :func:`dsv4_kernels.inverse_rope.inverse_rope_quant_reference`; ``d`` is a power of two of at least 128."""
    _check(o, cos, sin)
    tokens, heads, d = o.shape
    require(d >= FP8_GROUP and d & (d - 1) == 0, f"o has heads of {d} values, expected a power of two >= {FP8_GROUP}")
    require_shape("codes", codes, tokens, heads * d)
    require_dtype("codes", codes, torch.float8_e4m3fn)
    require_shape("scales", scales, tokens, heads * d // FP8_GROUP)
    require_dtype("scales", scales, torch.uint8)
    require_unit_stride("codes", codes)
    require_unit_stride("scales", scales)
    chosen = ROTATE_QUANT.choose(target_of(o.device), rows=tokens * heads)
    launch(
        _inverse_rope_quant_kernel,
        (triton.cdiv(tokens * heads, chosen["ROWS"]),),
        {
            "o_ptr": o, "cos_ptr": cos, "sin_ptr": sin, "codes_ptr": codes, "scales_ptr": scales, "n": tokens * heads,
            "o_stride_t": o.stride(0), "o_stride_h": o.stride(1), "cos_stride": cos.stride(0),
            "sin_stride": sin.stride(0), "codes_stride": codes.stride(0), "scales_stride": scales.stride(0),
        },
        {"H": heads, "D": d, "HALF": cos.shape[1], "PDL": overlaps(o)},
        chosen,
    )  # fmt: skip


def _check(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    require_shape("x", x, cos.shape[0], -1, -1)
    require_shape("sin", sin, *cos.shape)
    require(2 * cos.shape[1] <= x.shape[2], f"cos has {cos.shape[1]} angles, more than half of {x.shape[2]} values")
    for name, tensor in (("x", x), ("cos", cos), ("sin", sin)):
        require_unit_stride(name, tensor)
