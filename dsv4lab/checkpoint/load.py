"""Weights of a checkpoint directory under canonical names, checked against the configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from dsv4lab.checkpoint.decode import decode_fp4, decode_fp8
from dsv4lab.checkpoint.draft import DraftKind, detect_draft_kind, expected_draft_tensors
from dsv4lab.checkpoint.match import FP4, FP8, Source, match
from dsv4lab.checkpoint.names import Role, TensorSpec, expected_tensors
from dsv4lab.checkpoint.shards import Shards, StoredTensor
from dsv4lab.checkpoint.spelling import canonical_name
from dsv4lab.checkpoint.stored import StoredWeight
from dsv4lab.config.model import ModelConfig
from dsv4lab.errors import CheckpointError

Progress = Callable[[int, int], None]
"""Called with (tensors done, tensors in all)."""


def load_weights(
    directory: str | Path, config: ModelConfig, dtype: torch.dtype = torch.float32, progress: Progress | None = None
) -> dict[str, torch.Tensor]:
    """Every tensor of ``expected_tensors(config)``, on the CPU, contiguous, each in memory of its own.

    Matrices come in ``dtype``; norms, mHC, sinks, ape and router biases in fp32; the hash table in int64. fp8 and fp4
    weights are decoded. Draft layers are left out. Raises :class:`CheckpointError` naming file and tensor; names,
    shapes and dtypes are all checked before the first tensor is read.
    """
    weights = dict(stream_weights(directory, config, dtype, progress))
    return {name: weights[name] for name in expected_tensors(config)}


def stream_weights(
    directory: str | Path, config: ModelConfig, dtype: torch.dtype = torch.float32, progress: Progress | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """As :func:`load_weights`, one tensor at a time in the order of the files.

    Memory holds one tensor, its stored form, and whatever the caller keeps (of experts packed into one tensor, that).
    """
    with Shards(directory) as shards:
        sources = match(shards.directory, shards.tensors, config)
        yield from _stream(shards, sources, expected_tensors(config), config, dtype, progress)


def stream_stored(
    directory: str | Path, config: ModelConfig, progress: Progress | None = None
) -> Iterator[tuple[str, StoredWeight]]:
    """Every tensor as it is stored, codes and scales not decoded: what a device that computes with them takes."""
    with Shards(directory) as shards:
        sources = match(shards.directory, shards.tensors, config)
        reader = _Reader(shards)
        for done, name in enumerate(_file_order(sources), start=1):
            source = sources[name]
            if source.expert is not None or source.scale is None:
                yield name, StoredWeight(reader.values(source))
            else:
                yield name, StoredWeight(shards.read(source.stored), shards.read(source.scale))
            if progress is not None:
                progress(done, len(sources))


def load_draft_weights(
    directory: str | Path, config: ModelConfig, kind: DraftKind, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """The drafter's tensors (``mtp.*``) as :func:`load_weights` gives the model's.

    Raises :class:`CheckpointError` if the checkpoint carries another drafter, or none: the names tell.
    """
    with Shards(directory) as shards:
        found = detect_draft_kind(canonical_name(name) for name in shards.tensors)
        if found != kind:
            raise CheckpointError(f"{directory}: holds {found or 'no'} draft layers, not those of {kind}")
        expected = expected_draft_tensors(config, kind)
        sources = match(shards.directory, shards.tensors, config, expected)
        weights = dict(_stream(shards, sources, expected, config, dtype))
        return {name: weights[name] for name in expected}


def _stream(
    shards: Shards,
    sources: Mapping[str, Source],
    expected: Mapping[str, TensorSpec],
    config: ModelConfig,
    dtype: torch.dtype,
    progress: Progress | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    reader = _Reader(shards)
    for done, name in enumerate(_file_order(sources), start=1):
        yield name, _finish(reader.values(sources[name]), sources[name], expected[name], config, dtype)
        if progress is not None:
            progress(done, len(sources))


def _file_order(sources: Mapping[str, Source]) -> list[str]:
    """File by file, and a packed tensor read once for all its experts."""
    return sorted(sources, key=lambda name: (str(sources[name].stored.file), sources[name].stored.name))


class _Reader:
    """Reads sources; keeps the last packed tensor, since its experts come one after another."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._packed: tuple[StoredTensor, torch.Tensor] | None = None

    def values(self, source: Source) -> torch.Tensor:
        """The source's values in the shape that the model wants, decoded, in whatever float type they are in."""
        if source.expert is not None:
            start, stop = source.rows
            return self._whole(source.stored)[source.expert, start:stop]
        tensor = self._shards.read(source.stored)
        if source.scale is None:
            return tensor
        scale = self._shards.read(source.scale)
        label = f"{source.scale.file}: {source.scale.name}"
        if source.stored.dtype in FP8:
            return decode_fp8(tensor, scale, label)
        assert source.stored.dtype in FP4
        return decode_fp4(tensor, scale, label)

    def _whole(self, stored: StoredTensor) -> torch.Tensor:
        if self._packed is None or self._packed[0] != stored:
            self._packed = None
            self._packed = (stored, self._shards.read(stored))
        return self._packed[1]


def _finish(
    values: torch.Tensor, source: Source, spec: TensorSpec, config: ModelConfig, dtype: torch.dtype
) -> torch.Tensor:
    where = f"{source.stored.file}: {source.stored.name}"
    if spec.role is Role.HASH_TABLE:
        table = values.to(torch.int64)
        if bool(((table < 0) | (table >= config.n_routed_experts)).any()):
            raise CheckpointError(f"{where}: names an expert outside 0..{config.n_routed_experts - 1}")
        return table
    wanted = dtype if spec.role.follows_model_dtype else torch.float32
    if source.expert is not None:
        return values.to(wanted, copy=True, memory_format=torch.contiguous_format)
    return values.to(wanted).contiguous()
