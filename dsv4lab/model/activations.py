"""Buffers of activations that only products read: in fp8, made once, where all of these quantise them anyway."""

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
    scales = f"{name}.scales"
    codes = b.buffer(name, width, dtype=torch.float8_e4m3fn)
    rows = QuantRows(codes, b.buffer(scales, width // QUANT_GROUP, dtype=torch.uint8))
    return Activations(rows, (name, scales))
