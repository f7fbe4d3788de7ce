"""Clamped SwiGLU of few values."""

from __future__ import annotations

import numpy as np
import torch

from dsv4_kernels.small import is_small
from dsv4_kernels.swiglu.reference import swiglu_reference


def swiglu_cpu(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    """See :func:`swiglu_reference`."""
    if not is_small(gate, up):
        return swiglu_reference(gate, up, limit)
    g = np.minimum(gate.numpy(), np.float32(limit))
    with np.errstate(over="ignore"):
        g /= 1.0 + np.exp(-g)
    g *= np.clip(up.numpy(), np.float32(-limit), np.float32(limit))
    return torch.from_numpy(g)
