"""Wrappers of the RMSNorm kernels; arguments as in ``reference.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.formats import FP8_GROUP
from dsv4_kernels.launch import launch, pdl_of
from dsv4_kernels.norm_quant._kernel import _norm_quant_kernel, _rms_norm_kernel
from dsv4_kernels.norm_quant._launch import NORM_QUANT, RMS_NORM
from dsv4_kernels.target import target_of


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float, out: torch.Tensor) -> None:
    """See :func:`dsv4_kernels.norm_quant.rms_norm_reference`. Leading dims must fold into rows of one stride."""
    require(x.shape == out.shape, f"out is {list(out.shape)}, expected the shape of x, {list(x.shape)}")
    d = x.shape[-1]
    if weight is not None:
        require_shape("weight", weight, d)
    flat, flat_out = _rows("x", x), _rows("out", out)
    n_rows = flat.shape[0]
    chosen = RMS_NORM.choose(target_of(x.device), d=d, rows=n_rows)
    launch(
        _rms_norm_kernel,
        (triton.cdiv(n_rows, chosen["ROWS"]),),
        {
            "x_ptr": flat, "weight_ptr": weight, "out_ptr": flat_out,
            "x_stride_row": flat.stride(0), "out_stride_row": flat_out.stride(0),
            "n_rows": n_rows, "d": d, "eps": eps,
        },
        {"HAS_WEIGHT": weight is not None, "PDL": pdl_of(x, x.shape[0]), "BLOCK_D": triton.next_power_of_2(d)},
        chosen,
    )  # fmt: skip


def rms_norm_quant(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, codes: torch.Tensor, scales: torch.Tensor
) -> None:
    """See :func:`dsv4_kernels.norm_quant.rms_norm_quant_reference`."""
    _norm_quant(x, weight, eps, codes, scales, norm=True)


def quant(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """See :func:`dsv4_kernels.norm_quant.quant_reference`."""
    _norm_quant(x, None, 0.0, codes, scales, norm=False)


def _norm_quant(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, codes: torch.Tensor, scales: torch.Tensor, *, norm: bool
) -> None:
    require(x.dim() == 2, f"x is {list(x.shape)}, expected [T, d]")
    n_rows, d = x.shape
    require(d % FP8_GROUP == 0, f"rows of x are {d} long, expected a multiple of {FP8_GROUP}")
    require_shape("codes", codes, n_rows, d)
    require_dtype("codes", codes, torch.float8_e4m3fn)
    require_shape("scales", scales, n_rows, d // FP8_GROUP)
    require_dtype("scales", scales, torch.uint8)
    for name, tensor in (("x", x), ("codes", codes), ("scales", scales)):
        require_unit_stride(name, tensor)
    chosen = NORM_QUANT.choose(target_of(x.device), d=d, rows=n_rows)
    launch(
        _norm_quant_kernel,
        (triton.cdiv(n_rows, chosen["ROWS"]),),
        {
            "x_ptr": x, "weight_ptr": weight, "codes_ptr": codes, "scales_ptr": scales,
            "x_stride_row": x.stride(0), "codes_stride_row": codes.stride(0), "scales_stride_row": scales.stride(0),
            "n_rows": n_rows, "d": d, "eps": eps,
        },
        {
            "HAS_WEIGHT": weight is not None, "NORM": norm, "PDL": pdl_of(x, x.shape[0]),
            "BLOCK_D": triton.next_power_of_2(d),
        },
        chosen,
    )  # fmt: skip


def _rows(name: str, tensor: torch.Tensor) -> torch.Tensor:
    require_unit_stride(name, tensor)
    if tensor.dim() == 2:
        return tensor
    try:
        return tensor.view(-1, tensor.shape[-1])
    except RuntimeError:
        raise ValueError(f"{name} has strides {tensor.stride()}, which do not fold into rows of one stride") from None
