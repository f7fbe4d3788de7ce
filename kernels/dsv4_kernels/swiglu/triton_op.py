"""Wrappers of the SwiGLU kernel; arguments as in ``reference.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.formats import FP8_GROUP
from dsv4_kernels.launch import launch, overlaps
from dsv4_kernels.swiglu._kernel import _swiglu_kernel
from dsv4_kernels.swiglu._launch import SWIGLU
from dsv4_kernels.target import target_of


def swiglu_rows(h: torch.Tensor, limit: float, out: torch.Tensor) -> None:
    """See :func:`dsv4_kernels.swiglu.swiglu_rows_reference`."""
    _swiglu(h, limit, out, None)


def swiglu_quant(h: torch.Tensor, limit: float, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """See :func:`dsv4_kernels.swiglu.swiglu_quant_reference`."""
    inter = h.shape[1] // 2
    require(inter % FP8_GROUP == 0, f"h has {inter} gate columns, expected a multiple of {FP8_GROUP}")
    require_dtype("codes", codes, torch.float8_e4m3fn)
    require_shape("scales", scales, h.shape[0], inter // FP8_GROUP)
    require_dtype("scales", scales, torch.uint8)
    _swiglu(h, limit, codes, scales)


def _swiglu(h: torch.Tensor, limit: float, out: torch.Tensor, scales: torch.Tensor | None) -> None:
    tokens, inter = h.shape[0], h.shape[1] // 2
    require(h.shape[1] % 2 == 0, f"h is {list(h.shape)}, expected [T, 2 I]")
    require_shape("out", out, tokens, inter)
    for name, tensor in (("h", h), ("out", out)):
        require_unit_stride(name, tensor)
    chosen = SWIGLU.choose(target_of(h.device), tokens=tokens)
    launch(
        _swiglu_kernel,
        (tokens, triton.cdiv(inter, chosen["BLOCK"])),
        {
            "h_ptr": h, "out_ptr": out, "scales_ptr": scales, "h_stride_row": h.stride(0),
            "out_stride_row": out.stride(0), "scales_stride_row": 0 if scales is None else scales.stride(0),
            "inter": inter, "limit": float(limit),
        },
        {"QUANT": scales is not None, "PDL": overlaps(h)},
        chosen,
    )  # fmt: skip
