"""RMSNorm in float32 on the CPU."""

from __future__ import annotations

import numpy as np
import torch

from dsv4_kernels.native import is_native
from dsv4_kernels.norm_quant import _native
from dsv4_kernels.norm_quant.reference import rms_norm_reference


def rms_norm_cpu(x: torch.Tensor, weight: torch.Tensor | None, eps: float, out: torch.Tensor) -> None:
    """See :func:`rms_norm_reference`."""
    if weight is not None and x.dim() == 2 and is_native(x, weight, out):
        _native.rms_norm(x.numpy(), weight.numpy(), np.float32(eps), out.numpy())
    else:
        rms_norm_reference(x, weight, eps, out)
