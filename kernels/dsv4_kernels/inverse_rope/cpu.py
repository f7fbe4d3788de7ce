"""Rotation in float32 on the CPU, forward or inverse, and the table of its angles."""

from __future__ import annotations

import numpy as np
import torch

from dsv4_kernels.inverse_rope import _native
from dsv4_kernels.native import is_native
from dsv4_kernels.rope import rope_table, rotate_tail

FEW_TOKENS = 64


def rotate_cpu(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, inverse: bool = False) -> None:
    """Rotate the tail of ``x [T, H, d]`` in place by the angle, or back by it."""
    if x.dim() == 3 and is_native(x):
        _native.rotate(x.numpy(), cos.numpy(), sin.numpy(), np.float32(-1.0 if inverse else 1.0))
    else:
        x.copy_(rotate_tail(x.float(), cos, sin, inverse=inverse))


def rope_table_cpu(positions: torch.Tensor, frequencies: torch.Tensor, out: torch.Tensor) -> None:
    """:func:`dsv4_kernels.rope.rope_table` of int64 ``positions [T]``: cosines ``out[:, 0]``, sines ``out[:, 1]``."""
    if positions.shape[0] <= FEW_TOKENS and out.is_cpu:
        _native.table(positions.numpy(), frequencies.numpy(), out.numpy())
    else:
        out[:, 0], out[:, 1] = rope_table(positions, frequencies)
