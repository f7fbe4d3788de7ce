"""Clamped SwiGLU of few values in float32 on the CPU; above that torch's vector exponential wins."""

from __future__ import annotations

import numpy as np
import torch

from dsv4_kernels.native import is_native
from dsv4_kernels.swiglu import _native
from dsv4_kernels.swiglu.reference import swiglu_reference

FEW_VALUES = 1 << 13


def swiglu_cpu(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    """See :func:`swiglu_reference`."""
    if gate.dim() != 2 or gate.numel() > FEW_VALUES or not is_native(gate, up):
        return swiglu_reference(gate, up, limit)
    out = torch.empty(gate.shape)
    _native.swiglu(gate.numpy(), up.numpy(), np.float32(limit), out.numpy())
    return out
