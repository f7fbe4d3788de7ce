"""Inverse rotation of the attention output at the query position, in plain torch (dsv4-spec 2.7)."""

from __future__ import annotations

import torch

from dsv4_kernels.formats import quantise_e4m3
from dsv4_kernels.rope import rope_table, rotate_tail


def rope_table_reference(positions: torch.Tensor, frequencies: torch.Tensor, out: torch.Tensor) -> None:
    """Cosines and sines ``out [T, 2, rope_dim / 2]`` float32 of int64 ``positions [T]`` (dsv4-spec 2.6).

    ``frequencies``: float64 ``[rope_dim / 2]``, radians per token.
    """
    out[:, 0], out[:, 1] = rope_table(positions, frequencies)


def inverse_rope_reference(o: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate the tail of ``o [T, H, d]`` by the negative angle, in place."""
    o.copy_(rotate_tail(o.float(), cos, sin, inverse=True))


def rotate_reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, inverse: bool = False) -> None:
    """Rotate the tail of ``x [T, H, d]`` in place by the angle, or back by it."""
    x.copy_(rotate_tail(x.float(), cos, sin, inverse=inverse))


def inverse_rope_quant_reference(
    o: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> None:
    """The inverse rotation of ``o [T, H, d]``, rounded to its dtype, quantised for ``wo_a``; ``o`` stays as it is.

    e4m3 ``codes [T, H * d]`` and e8m0 bytes ``scales [T, H * d / 128]`` (dsv4-spec 2.8, 5.6).
    """
    turned = rotate_tail(o.float().clone(), cos, sin, inverse=True).to(o.dtype)
    values, exponents = quantise_e4m3(turned.flatten(1))
    codes.copy_(values)
    scales.copy_(exponents)
