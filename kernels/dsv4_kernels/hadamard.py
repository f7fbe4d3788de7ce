"""The Hadamard rotation of index queries and keys (dsv4-spec 2.9, 2.10): it spreads outliers before quantisation."""

from __future__ import annotations

import torch


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """``x [..., n]`` times the Sylvester-Hadamard matrix over ``sqrt(n)``, float32; ``n`` is a power of two.

    Orthonormal and its own inverse, so scores of rotated queries and keys are those of plain ones.
    """
    n = x.shape[-1]
    if n & (n - 1):
        raise ValueError(f"a Hadamard rotation takes a power of two of values, got {n}")
    y, half = x.float(), 1
    while half < n:
        a, b = y.reshape(*x.shape[:-1], n // (2 * half), 2, half).unbind(-2)
        y = torch.stack((a + b, a - b), dim=-2).flatten(-3)
        half *= 2
    return y * float(n**-0.5)
