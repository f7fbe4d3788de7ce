"""A forward's metadata on a device: all of its tensors travel in one copy, to addresses that can stay the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from dsv4lab.errors import PoolError
from dsv4lab.kv.metadata import StepMetadata

ALIGN = 16  # bytes


class PackedMetadata:
    """Room on ``device`` for metadata of one layout (shapes and dtypes of every tensor), and ``meta`` that lives in it.

    A graph that was captured on ``meta`` reads what :meth:`load` brought last. Copies are asynchronous on the current
    stream; the host's buffer is not written again before the last copy has read it.
    """

    def __init__(self, like: StepMetadata, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._layout = _layout(like)
        size = sum(_aligned(tensor.nbytes) for tensor in _tensors(like))
        on_gpu = self._device.type == "cuda"
        self._host = torch.zeros(max(size, ALIGN), dtype=torch.uint8, pin_memory=on_gpu)
        self._memory = torch.zeros(max(size, ALIGN), dtype=torch.uint8, device=self._device)
        self._copied: torch.cuda.Event | None = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self._sources = list(_tensors(_views(like, self._host)))
        self.meta = _views(like, self._memory)

    def load(self, meta: StepMetadata) -> None:
        """Copy ``meta`` in. Raises :class:`PoolError` if its layout is another."""
        if _layout(meta) != self._layout:
            raise PoolError(f"metadata of {meta.T} tokens does not have the layout that was packed first")
        if self._copied is not None:
            self._copied.synchronize()
        for target, tensor in zip(self._sources, _tensors(meta), strict=True):
            target.copy_(tensor)
        self._memory.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


def on_device(meta: StepMetadata, device: torch.device | str) -> StepMetadata:
    """``meta`` itself on the CPU, else its copy on ``device``."""
    if torch.device(device).type == "cpu":
        return meta
    packed = PackedMetadata(meta, device)
    packed.load(meta)
    return packed.meta


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def _layout(meta: StepMetadata) -> tuple[Any, ...]:
    return meta.mode, meta.T, *((t.shape, t.dtype) for t in _tensors(meta))


def _tensors(meta: StepMetadata) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    _mapped(meta, keep)
    return found


def _views(like: StepMetadata, memory: torch.Tensor) -> StepMetadata:
    offset = 0

    def view(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal offset
        part = memory[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        offset += _aligned(tensor.nbytes)
        return part

    changed: StepMetadata = _mapped(like, view)
    return changed


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with every tensor in its fields changed, in the order of the fields."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(entry, change) for key, entry in value.items()}
    if is_dataclass(value):
        kind: Callable[..., Any] = type(value)
        return kind(**{f.name: _mapped(getattr(value, f.name), change) for f in fields(value)})
    return value
