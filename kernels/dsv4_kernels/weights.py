"""Matrices that stay as a checkpoint stores them, where a dense tensor could stand instead (dsv4-spec 5.6, 9.1).

Leading dimensions count experts. ``shape`` is that of the values, as a tensor's would be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dsv4_kernels.formats import FP4_GROUP, FP8_GROUP, dequantise_e2m1, dequantise_e4m3_blocks


@dataclass(frozen=True, slots=True, eq=False)
class _Scaled:
    codes: torch.Tensor
    scales: torch.Tensor

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Weight(_Scaled):
    """e4m3 ``codes [..., N, K]`` with an e8m0 byte per 128 × 128, ``scales`` uint8 ``[..., N / 128, K / 128]``."""

    @property
    def shape(self) -> torch.Size:
        """``[..., N, K]``."""
        return self.codes.shape

    def decoded(self, dtype: torch.dtype) -> torch.Tensor:
        """The values, dense."""
        return dequantise_e4m3_blocks(self.codes, self.scales).to(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Fp4Weight(_Scaled):
    """Two e2m1 codes a byte, low nibble first: ``codes`` uint8 ``[..., N, K / 2]``, an e8m0 byte per 32 columns."""

    @property
    def shape(self) -> torch.Size:
        """``[..., N, K]``."""
        return torch.Size((*self.codes.shape[:-1], 2 * self.codes.shape[-1]))

    def decoded(self, dtype: torch.dtype) -> torch.Tensor:
        """The values, dense."""
        return dequantise_e2m1(self.codes, self.scales).to(dtype)


Quantised = Fp8Weight | Fp4Weight
Weight = torch.Tensor | Quantised
Join = Callable[[Sequence[torch.Tensor]], torch.Tensor]


def kept(codes: torch.Tensor, scales: torch.Tensor) -> Quantised | None:
    """The weight ``[N, K]`` of a checkpoint's codes and scales, or None where a block is cut short: kernels take none.

    ``codes`` are e4m3, or packed e2m1 of any byte type; ``scales`` e8m0.
    """
    scale = scales.view(torch.uint8)
    if codes.dtype is torch.float8_e4m3fn:
        whole = tuple(n * FP8_GROUP for n in scale.shape) == tuple(codes.shape)
        return Fp8Weight(codes, scale) if whole else None
    whole = (scale.shape[0], scale.shape[1] * FP4_GROUP) == (codes.shape[0], 2 * codes.shape[1])
    return Fp4Weight(codes.view(torch.uint8), scale) if whole else None


def concatenated(weights: Sequence[Weight]) -> Weight:
    """One weight of all rows: quantised if all are, and alike; :class:`TypeError` for two formats."""
    return _joined(weights, lambda tensors: torch.cat(list(tensors)))


def stacked(weights: Sequence[Weight]) -> Weight:
    """``[len(weights), N, K]``, as :func:`concatenated`."""
    return _joined(weights, lambda tensors: torch.stack(list(tensors)))


def moved(weight: Weight, device: torch.device) -> Weight:
    """``weight`` on ``device``."""
    if isinstance(weight, torch.Tensor):
        return weight.to(device)
    return type(weight)(weight.codes.to(device), weight.scales.to(device))


def dense(weight: Weight, dtype: torch.dtype) -> torch.Tensor:
    """``weight`` itself if it is a tensor, else its values in ``dtype``."""
    return weight if isinstance(weight, torch.Tensor) else weight.decoded(dtype)


def quantised(weight: Weight) -> Quantised:
    """``weight``; :class:`TypeError` if it is dense beside a quantised one."""
    if isinstance(weight, torch.Tensor):
        raise TypeError("w13 and w2 are quantised alike, or both dense")
    return weight


def _joined(weights: Sequence[Weight], join: Join) -> Weight:
    """Dense in the dtype of those that are dense, if there are any: blocks that were cut short make such."""
    plain = [w for w in weights if isinstance(w, torch.Tensor)]
    if plain:
        return join([dense(w, plain[0].dtype) for w in weights])
    fp8, fp4 = ([w for w in weights if isinstance(w, kind)] for kind in (Fp8Weight, Fp4Weight))
    if fp8 and fp4:
        raise TypeError("weights of two quantised formats cannot be joined")
    kind = Fp8Weight if fp8 else Fp4Weight
    codes, scales = [w.codes for w in (*fp8, *fp4)], [w.scales for w in (*fp8, *fp4)]
    return kind(_bytes(join, codes), _bytes(join, scales))


def _bytes(join: Join, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return join([t.view(torch.uint8) for t in tensors]).view(tensors[0].dtype)
