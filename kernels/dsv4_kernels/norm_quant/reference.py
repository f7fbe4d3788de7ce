"""RMSNorm in plain torch, with and without a group quantisation of its result."""

from __future__ import annotations

import torch

from dsv4_kernels.formats import quantise_e4m3


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor | None, eps: float, out: torch.Tensor) -> None:
    """``out = x * rsqrt(mean(x^2) + eps) * weight`` over the last dim, in float32 with one cast at the end.

    ``x`` and ``out``: ``[..., d]``; ``weight``: ``[d]`` or ``None`` (Q heads). ``out`` may be ``x`` (dsv4-spec 2.3).
    """
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    out.copy_(y if weight is None else y * weight.float())


def rms_norm_quant_reference(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, codes: torch.Tensor, scales: torch.Tensor
) -> None:
    """RMSNorm of ``x [T, d]``, rounded to ``x``'s dtype, as e4m3 ``codes [T, d]`` with an e8m0 byte per 128 columns.

    ``scales``: ``uint8 [T, d / 128]`` (dsv4-spec 2.14, 5.6). Equal to the norm followed by the quantisation.
    """
    y = torch.empty_like(x)
    rms_norm_reference(x, weight, eps, y)
    values, bytes_ = quantise_e4m3(y)
    codes.copy_(values)
    scales.copy_(bytes_)


def quant_reference(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """``x [T, d]`` as e4m3 ``codes`` with e8m0 ``scales``, as in :func:`rms_norm_quant_reference`."""
    values, bytes_ = quantise_e4m3(x)
    codes.copy_(values)
    scales.copy_(bytes_)
