"""Rotary embedding shared by the ops that rotate: interleaved pairs on the trailing dims (dsv4-spec 2.6)."""

from __future__ import annotations

import math

import torch


def rope_frequencies(
    rope_dim: int,
    theta: float,
    *,
    factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    original_max_position: int = 65536,
) -> torch.Tensor:
    """Angular frequencies ``float64 [rope_dim / 2]`` in radians per token; ``factor`` > 1 applies YaRN.

    YaRN keeps frequencies that turn more than ``beta_fast`` times in ``original_max_position`` tokens, divides those
    that turn fewer than ``beta_slow`` times by ``factor``, and blends linearly in between. There is no attention
    factor: cos and sin are not scaled.
    """
    half = rope_dim // 2
    n = torch.arange(half, dtype=torch.float64)
    base = theta ** (-2.0 * n / rope_dim)
    if factor == 1.0:
        return base

    def correction(turns: float) -> float:
        return rope_dim * math.log(original_max_position / (2 * math.pi * turns)) / (2 * math.log(theta))

    low = max(math.floor(correction(beta_fast)), 0)
    high = min(math.ceil(correction(beta_slow)), rope_dim - 1)
    ramp = ((n - low) / max(high - low, 1e-3)).clamp(0.0, 1.0)
    return base * (1.0 - ramp) + base / factor * ramp


def rope_table(positions: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, ``float32 [n, rope_dim / 2]``, of integer ``positions [n]``; angles are taken in float64."""
    angles = positions.to(torch.float64)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def rotate_tail(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, inverse: bool = False) -> torch.Tensor:
    """Rotate the last ``2 * cos.shape[-1]`` entries of float32 ``x [n, ..., d]`` in place and return it.

    Pairs are neighbours: ``(a + ib) * exp(i * angle)``, conjugated if ``inverse``. ``cos`` and ``sin`` are
    ``[n, rope_dim / 2]`` and broadcast over the middle dims.
    """
    half = cos.shape[-1]
    shape = (cos.shape[0], *([1] * (x.dim() - 2)), half)
    c, s = cos.view(shape), sin.view(shape)
    if inverse:
        s = -s
    tail = x[..., x.shape[-1] - 2 * half :]
    pairs = tail.view(*tail.shape[:-1], half, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = torch.stack((even * c - odd * s, even * s + odd * c), dim=-1)
    pairs.copy_(turned)
    return x
