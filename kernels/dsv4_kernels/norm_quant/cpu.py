"""RMSNorm of few tokens."""

from __future__ import annotations

import numpy as np
import torch

from dsv4_kernels.norm_quant.reference import rms_norm_reference
from dsv4_kernels.small import inverse_rms, is_small


def rms_norm_cpu(x: torch.Tensor, weight: torch.Tensor | None, eps: float, out: torch.Tensor) -> None:
    """See :func:`rms_norm_reference`."""
    if not is_small(x, out) or (weight is not None and weight.dtype is not torch.float32):
        rms_norm_reference(x, weight, eps, out)
        return
    y = out.numpy()
    np.multiply(x.numpy(), inverse_rms(x.numpy(), eps), out=y)
    if weight is not None:
        y *= weight.numpy()
