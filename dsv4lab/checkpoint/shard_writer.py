"""Tensors into safetensors files as they come: one file, or shards behind an index; memory holds one shard."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from dsv4lab.checkpoint.shards import INDEX, SINGLE
from dsv4lab.errors import CheckpointError


def write_shards(path: Path, tensors: Iterable[tuple[str, torch.Tensor]], limit: int | None = None) -> int:
    """Write ``tensors`` under ``path``; their bytes.

    Shards take at most ``limit`` bytes of tensors unless one alone is larger. Their names count them, so files get
    theirs when all are written, and a run that fails leaves none. Raises :class:`CheckpointError`.
    """
    writer = _Writer(path, limit)
    try:
        for name, tensor in tensors:
            writer.add(name, tensor)
        return writer.finish()
    finally:
        writer.clean()


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Appears whole or not at all."""
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    os.replace(draft, path)


class _Writer:
    def __init__(self, path: Path, limit: int | None) -> None:
        self._path, self._limit = path, limit
        self._pending: dict[str, torch.Tensor] = {}
        self._used = self._total = 0
        self._shards: list[tuple[str, ...]] = []

    def add(self, name: str, tensor: torch.Tensor) -> None:
        if self._limit is not None and self._pending and self._used + tensor.nbytes > self._limit:
            self._flush()
        self._pending[name] = tensor.to("cpu").contiguous()
        self._used += tensor.nbytes
        self._total += tensor.nbytes

    def finish(self) -> int:
        self._flush()
        count = len(self._shards)
        files = [SINGLE] if count == 1 else [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
        for number, file in enumerate(files):
            os.replace(self._part(number), self._path / file)
        if count > 1:
            places = {name: file for names, file in zip(self._shards, files, strict=True) for name in names}
            index = {"metadata": {"total_size": self._total}, "weight_map": dict(sorted(places.items()))}
            write_json(self._path / INDEX, index)
        return self._total

    def clean(self) -> None:
        """Remove shards that got no name."""
        for file in self._path.glob(".shard-*.part"):
            file.unlink()

    def _part(self, number: int) -> Path:
        return self._path / f".shard-{number:05d}.part"

    def _flush(self) -> None:
        file = self._part(len(self._shards))
        try:
            save_file(self._pending, file, {"format": "pt"})
        except (SafetensorError, OSError, RuntimeError) as error:
            raise CheckpointError(f"{file}: cannot be written ({' '.join(str(error).split())})") from None
        self._shards.append(tuple(self._pending))
        self._pending, self._used = {}, 0
