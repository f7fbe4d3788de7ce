"""Buffers of activations for products: in fp8, made once, where these quantise them anyway."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dsv4lab.backends.base import QUANT_GROUP, QuantRows
from dsv4lab.backends.weights import Weight
from dsv4lab.model.builder import OpListBuilder


@dataclass(frozen=True, slots=True)
class Activations:
    """``rows [T, width]``, and the names of the buffers that they are."""

    rows: torch.Tensor | QuantRows
    names: tuple[str, ...]


def activations(b: OpListBuilder, name: str, width: int, *weights: Weight) -> Activations:
    """Buffer ``name [T, width]`` for products with ``weights``."""
    if not all(b.ops.quantises(weight) for weight in weights):
        return Activations(b.buffer(name, width), (name,))
    return _in_fp8(b, name, width)


def twin(b: OpListBuilder, name: str, width: int, *weights: Weight | None) -> Activations:
    """What ``weights`` are multiplied by of a normed buffer ``name [T, width]``, which others read too: a twin in fp8,
    where the norm can give it, or the buffer.
    """
    wanted = all(weight is not None and b.ops.quantises(weight) for weight in weights)
    if not wanted or not b.ops.norms_to_fp8(width):
        return Activations(b.buffer(name, width), (name,))
    return _in_fp8(b, f"{name}.codes", width)


def _in_fp8(b: OpListBuilder, name: str, width: int) -> Activations:
    scales = f"{name}.scales"
    codes = b.buffer(name, width, dtype=torch.float8_e4m3fn)
    rows = QuantRows(codes, b.buffer(scales, width // QUANT_GROUP, dtype=torch.uint8))
    return Activations(rows, (name, scales))
