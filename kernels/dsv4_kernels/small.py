"""When an op's CPU sibling works in numpy: few float32 values, where the cost of a call outweighs the arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

SMALL = 1 << 15  # values; above it torch's vectorised loops win


def is_small(*tensors: torch.Tensor) -> bool:
    """Whether all ``tensors`` are float32 CPU memory of at most ``SMALL`` values together."""
    return sum(t.numel() for t in tensors) <= SMALL and all(
        t.dtype is torch.float32 and t.device.type == "cpu" for t in tensors
    )


def inverse_rms(x: Any, eps: float) -> Any:
    """``1 / sqrt(mean(x^2) + eps)`` over the last dim of a float32 array, that dim kept."""
    squares = np.einsum("...d,...d->...", x, x)
    squares /= np.float32(x.shape[-1])
    squares += np.float32(eps)
    np.sqrt(squares, out=squares)
    return np.reciprocal(squares, out=squares)[..., None]


def rotate_tail_small(x: Any, cos: Any, sin: Any, *, inverse: bool = False) -> None:
    """Rotate the trailing pairs of the float32 array ``x [T, ..., d]`` in place, as complex numbers.

    The last dim of ``x`` must be contiguous; ``cos`` and ``sin`` are ``[T, rope_dim / 2]``.
    """
    half = cos.shape[-1]
    turn = np.empty(cos.shape, np.complex64)
    turn.real = cos
    turn.imag = -sin if inverse else sin
    tail = x[..., x.shape[-1] - 2 * half :].view(np.complex64)
    tail *= turn.reshape(cos.shape[0], *([1] * (x.ndim - 2)), half)
