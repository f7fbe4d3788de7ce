"""Argument checks of the kernel wrappers: errors that name the argument, what it is and what it takes."""

from __future__ import annotations

import torch


def require(holds: bool, text: str) -> None:
    """Raise :class:`ValueError` with ``text`` unless ``holds``."""
    if not holds:
        raise ValueError(text)


def require_shape(name: str, tensor: torch.Tensor, *shape: int) -> None:
    """Raise unless ``tensor`` has ``shape``, in which -1 stands for any size."""
    matches = tensor.dim() == len(shape) and all(w in (-1, n) for w, n in zip(shape, tensor.shape, strict=True))
    require(matches, f"{name} is {list(tensor.shape)}, expected {['any' if n == -1 else n for n in shape]}")


def require_dtype(name: str, tensor: torch.Tensor, *dtypes: torch.dtype) -> None:
    """Raise unless ``tensor`` is of one of ``dtypes``."""
    require(tensor.dtype in dtypes, f"{name} is {tensor.dtype}, expected {' or '.join(str(d) for d in dtypes)}")


def require_unit_stride(name: str, tensor: torch.Tensor) -> None:
    """Raise unless neighbours of the last dim are neighbours in memory."""
    holds = tensor.shape[-1] <= 1 or tensor.stride(-1) == 1
    require(holds, f"{name} has stride {tensor.stride(-1)} in its last dim, expected 1")
