"""Clamped SwiGLU in plain torch (dsv4-spec 2.12)."""

from __future__ import annotations

import torch
from torch.nn import functional


def swiglu_reference(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    """``silu(min(gate, limit)) * clamp(up, -limit, limit)`` in float32: the clamp of the gate is one-sided."""
    return functional.silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)
