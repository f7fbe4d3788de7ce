"""Matrix product of fp8 operands with block scales in plain torch (dsv4-spec 2.14)."""

from __future__ import annotations

import torch

from dsv4_kernels.formats import dequantise_e4m3, dequantise_e4m3_blocks, quantise_e4m3
from dsv4_kernels.swiglu.reference import swiglu_reference


def block_fp8_gemm_reference(
    codes: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """``out [T, N] = x @ w.T`` with float32 sums.

    ``x``: e4m3 ``codes [T, K]``, an e8m0 byte per 128 columns, ``scales`` uint8 ``[T, K / 128]``. ``w``: e4m3
    ``weight [N, K]``, an e8m0 byte per 128 × 128, ``weight_scales`` uint8 ``[N / 128, K / 128]``. ``norm_quant.quant``
    makes the first two.
    """
    x, w = dequantise_e4m3(codes, scales), dequantise_e4m3_blocks(weight, weight_scales)
    out.copy_(x @ w.t())


def block_fp8_gemm_quant_reference(
    x: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor, out: torch.Tensor
) -> None:
    """As :func:`block_fp8_gemm_reference` with the codes and scales that ``quant`` makes of ``x [T, K]``."""
    block_fp8_gemm_reference(*quantise_e4m3(x), weight, weight_scales, out)


def block_fp8_gemm_swiglu_reference(
    h: torch.Tensor, limit: float, weight: torch.Tensor, weight_scales: torch.Tensor, out: torch.Tensor
) -> None:
    """As :func:`block_fp8_gemm_quant_reference` of the SwiGLU of ``h [T, 2 K]``, rounded to ``h``'s dtype.

    ``h``: gate columns, then up columns. ``limit``: see ``swiglu``.
    """
    k = h.shape[1] // 2
    y = swiglu_reference(h[:, :k], h[:, k:], limit).to(h.dtype)
    block_fp8_gemm_quant_reference(y, weight, weight_scales, out)
