"""Clamped SwiGLU in plain torch (dsv4-spec 2.12)."""

from __future__ import annotations

import torch
from torch.nn import functional

from dsv4_kernels.formats import quantise_e4m3


def swiglu_reference(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    """``silu(min(gate, limit)) * clamp(up, -limit, limit)`` in float32: the clamp of the gate is one-sided."""
    return functional.silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)


def swiglu_rows_reference(h: torch.Tensor, limit: float, out: torch.Tensor) -> None:
    """:func:`swiglu_reference` of ``h [T, 2 I]`` (gate columns, then up columns) into ``out [T, I]``."""
    inter = h.shape[1] // 2
    out.copy_(swiglu_reference(h[:, :inter], h[:, inter:], limit))


def swiglu_quant_reference(h: torch.Tensor, limit: float, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """As :func:`swiglu_rows_reference`, rounded to ``h``'s dtype, as e4m3 ``codes [T, I]`` with e8m0 per 128 columns.

    ``scales``: ``uint8 [T, I / 128]``.
    """
    inter = h.shape[1] // 2
    values, bytes_ = quantise_e4m3(swiglu_reference(h[:, :inter], h[:, inter:], limit).to(h.dtype))
    codes.copy_(values)
    scales.copy_(bytes_)
