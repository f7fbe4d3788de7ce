"""Random arguments of a case, on any device: ``meta`` gives shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Inputs:
    """A source of fresh tensors on ``device``, repeatable by ``seed``."""

    def __init__(self, device: torch.device | str, seed: int) -> None:
        self.device = torch.device(device)
        self.seed = seed
        self._generator = torch.Generator("cpu" if self.meta else self.device).manual_seed(seed)

    @property
    def meta(self) -> bool:
        """Whether tensors have no values."""
        return self.device.type == "meta"

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
        """Gaussian values of standard deviation ``scale``."""
        if self.meta:
            return torch.empty(shape, dtype=dtype, device=self.device)
        drawn = torch.randn(shape, generator=self._generator, device=self.device, dtype=torch.float32)
        return (drawn * scale).to(dtype)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        """Float32 values of ``[low, high)``."""
        if self.meta:
            return torch.empty(shape, device=self.device)
        drawn = torch.rand(shape, generator=self._generator, device=self.device, dtype=torch.float32)
        return low + (high - low) * drawn

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Integers of ``[low, high)``."""
        if self.meta:
            return torch.empty(shape, dtype=dtype, device=self.device)
        return torch.randint(low, high, shape, generator=self._generator, device=self.device, dtype=dtype)

    def distinct(self, high: int, count: int, *, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """``count`` different integers of ``[0, high)`` in random order."""
        if self.meta:
            return torch.empty(count, dtype=dtype, device=self.device)
        if high > 4 * count + 1024:  # far fewer than there are: draw, and shift equal ones apart
            drawn = torch.randint(0, high - count, (count,), generator=self._generator, device=self.device)
            ordered = drawn.sort().values + torch.arange(count, device=self.device)
            return ordered[torch.randperm(count, generator=self._generator, device=self.device)].to(dtype)
        return torch.randperm(high, generator=self._generator, device=self.device)[:count].to(dtype)

    def tensor(self, values: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
        """The given values."""
        return torch.tensor(values, dtype=dtype, device=self.device)

    def empty(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """An output; the harness poisons it before each run."""
        return poison(torch.empty(shape, dtype=dtype, device=self.device))


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` filled with what no kernel writes: NaN, or for integers the least value (bytes: 0x7f)."""
    if tensor.device.type == "meta":
        return tensor
    if tensor.dtype in _BYTES:
        tensor.view(torch.uint8).fill_(0x7F)
    elif tensor.is_floating_point():
        tensor.fill_(float("nan"))
    elif tensor.dtype is torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).min if tensor.dtype is not torch.uint8 else 0x7F)
    return tensor


_BYTES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e8m0fnu)
