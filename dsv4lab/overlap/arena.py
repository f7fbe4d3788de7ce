"""Named, preallocated buffers for a step's ops, and scratch keyed by stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from dsv4lab.errors import EngineError


class Arena:
    """Buffers by name, each with room for ``capacity`` rows; programs bind views of the first ``tokens`` rows.

    A buffer keeps its address for the life of the arena, so a compiled program can be replayed (and captured).
    """

    def __init__(self, capacity: int, device: torch.device | str = "cpu") -> None:
        self.capacity = capacity
        self.device = torch.device(device)
        self._buffers: dict[str, torch.Tensor] = {}
        self._wholes: dict[tuple[str, ...], torch.Tensor] = {}
        self._scratch: dict[tuple[str, str], torch.Tensor] = {}
        self._sealed = False

    def view(self, name: str, rows: int, row_shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """``[rows, *row_shape]`` of buffer ``name``, allocated with full capacity on first use."""
        if rows > self.capacity:
            raise EngineError(f"buffer {name}: {rows} rows asked for, the arena holds {self.capacity}")
        buffer = self._buffers.get(name)
        if buffer is None:
            self._refuse_if_sealed(name)
            buffer = torch.zeros((self.capacity, *row_shape), dtype=dtype, device=self.device)
            self._buffers[name] = buffer
        if buffer.shape[1:] != row_shape or buffer.dtype != dtype:
            raise EngineError(
                f"buffer {name} is {list(buffer.shape[1:])} {buffer.dtype}, asked for {list(row_shape)} {dtype}"
            )
        return buffer[:rows]

    def side_by_side(self, rows: int, columns: Mapping[str, int], dtype: torch.dtype) -> torch.Tensor:
        """``[rows, sum of widths]`` whose columns are buffers, by name and width: an op that writes it writes them."""
        key = tuple(columns)
        whole = self._wholes.get(key)
        if whole is None:
            if taken := [name for name in columns if name in self._buffers]:
                raise EngineError(f"buffer {taken[0]} has memory of its own already")
            self._refuse_if_sealed(" and ".join(columns))
            widths = list(columns.values())
            whole = torch.zeros((self.capacity, sum(widths)), dtype=dtype, device=self.device)
            self._wholes[key] = whole
            self._buffers |= zip(columns, torch.split(whole, widths, dim=1), strict=True)
        for name, width in columns.items():
            self.view(name, rows, (width,), dtype)
        return whole[:rows]

    def scratch(self, stream: str, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised work space private to ``(stream, name)``; it grows to the largest shape seen."""
        size = 1
        for n in shape:
            size *= n
        flat = self._scratch.get((stream, name))
        if flat is None or flat.numel() < size or flat.dtype != dtype:
            self._refuse_if_sealed(f"scratch {name} of stream {stream}")
            flat = torch.empty(size, dtype=dtype, device=self.device)
            self._scratch[(stream, name)] = flat
        return flat[:size].view(shape)

    @property
    def buffers(self) -> dict[str, torch.Tensor]:
        """All buffers by resource name (full capacity)."""
        return dict(self._buffers)

    @contextmanager
    def no_alloc(self) -> Iterator[None]:
        """Within it, a request for a new buffer or for more scratch is an error: a replay must not allocate."""
        self._sealed = True
        try:
            yield
        finally:
            self._sealed = False

    def _refuse_if_sealed(self, what: str) -> None:
        if self._sealed:
            raise EngineError(f"{what} would be allocated inside no_alloc()")


@dataclass(frozen=True, slots=True)
class Lane:
    """What an op sees of where it runs: its stream's name and that stream's scratch."""

    stream: str
    arena: Arena
    kept: list[torch.Tensor] | None = None
    """What ops of this run have handed over with :meth:`keep`; None on the CPU, where a reference is enough."""

    def scratch(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Work space of this stream; see :meth:`Arena.scratch`."""
        return self.arena.scratch(self.stream, name, shape, dtype)

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor``, which this op allocated for later ops to read: it lives until their streams have passed it."""
        if self.kept is not None:
            self.kept.append(tensor)
        return tensor
