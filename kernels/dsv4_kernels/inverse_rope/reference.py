"""Inverse rotation of the attention output at the query position, in plain torch (dsv4-spec 2.7)."""

from __future__ import annotations

import torch

from dsv4_kernels.rope import rotate_tail


def inverse_rope_reference(o: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate the tail of ``o [T, H, d]`` by the negative angle, in place."""
    o.copy_(rotate_tail(o.float(), cos, sin, inverse=True))
