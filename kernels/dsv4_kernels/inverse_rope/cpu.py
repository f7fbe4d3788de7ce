"""Rotation of few tokens, forward or inverse."""

from __future__ import annotations

import torch

from dsv4_kernels.rope import rotate_tail
from dsv4_kernels.small import is_small, rotate_tail_small


def rotate_cpu(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, inverse: bool = False) -> None:
    """Rotate the tail of ``x [T, H, d]`` in place by the angle, or back by it."""
    if is_small(x):
        rotate_tail_small(x.numpy(), cos.numpy(), sin.numpy(), inverse=inverse)
    else:
        x.copy_(rotate_tail(x.float(), cos, sin, inverse=inverse))
