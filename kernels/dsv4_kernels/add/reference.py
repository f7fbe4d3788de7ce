"""Sum of two tensors in plain torch: routed experts and the shared one (dsv4-spec 2.12)."""

from __future__ import annotations

import torch


def add_reference(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """``out [T, D]`` = ``a + b`` in float32, rounded to ``out``'s dtype; floating-point types may differ."""
    out.copy_(a.float() + b.float())
