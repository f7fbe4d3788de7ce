"""What becomes of collapsed streams: their norm, and that in fp8."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.formats import FP8_GROUP
from dsv4_kernels.norm_quant.triton_op import quant, rms_norm


@dataclass(frozen=True, slots=True)
class After:
    """Norm weights, normed rows, and codes and scales of these; None for what is not wanted."""

    norm: torch.Tensor | None = None
    normed: torch.Tensor | None = None
    codes: torch.Tensor | None = None
    scales: torch.Tensor | None = None


NOTHING = After()


def check_out(x: torch.Tensor, out: torch.Tensor, after: After) -> None:
    """Raise :class:`ValueError` where outputs do not fit streams ``x [T, 4, D]`` or each other."""
    tokens, _, d = x.shape
    require_shape("out", out, tokens, d)
    require_unit_stride("out", out)
    require((after.norm is None) == (after.normed is None), "norm and normed go together")
    require((after.codes is None) == (after.scales is None), "codes and scales go together")
    require(after.codes is None or after.norm is not None, "codes are those of normed rows: norm is missing")
    if after.norm is not None and after.normed is not None:
        require_shape("norm", after.norm, d)
        require_shape("normed", after.normed, tokens, d)
        require_unit_stride("normed", after.normed)
    if after.codes is not None and after.scales is not None:
        require(d % FP8_GROUP == 0, f"rows are {d} long, expected a multiple of {FP8_GROUP}")
        require_shape("codes", after.codes, tokens, d)
        require_dtype("codes", after.codes, torch.float8_e4m3fn)
        require_shape("scales", after.scales, tokens, d // FP8_GROUP)
        require_dtype("scales", after.scales, torch.uint8)
        for name, tensor in (("codes", after.codes), ("scales", after.scales)):
            require_unit_stride(name, tensor)


def norm_after(out: torch.Tensor, eps: float, after: After) -> None:
    """Norm ``out [T, D]``, and quantise, by launches of their own."""
    if after.norm is not None and after.normed is not None:
        rms_norm(out, after.norm, eps, after.normed)
        quant_after(after)


def quant_after(after: After) -> None:
    """Quantise the normed rows by a launch of its own."""
    if after.normed is not None and after.codes is not None and after.scales is not None:
        quant(after.normed, after.codes, after.scales)


def stride(rows: torch.Tensor | None) -> int:
    """Of rows that may not be wanted."""
    return 0 if rows is None else rows.stride(0)
