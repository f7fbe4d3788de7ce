"""RMSNorm in plain torch."""

from __future__ import annotations

import torch


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor | None, eps: float, out: torch.Tensor) -> None:
    """``out = x * rsqrt(mean(x^2) + eps) * weight`` over the last dim, in float32 with one cast at the end.

    ``x`` and ``out``: ``[..., d]``; ``weight``: ``[d]`` or ``None`` (Q heads). ``out`` may be ``x`` (dsv4-spec 2.3).
    """
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    out.copy_(y if weight is None else y * weight.float())
