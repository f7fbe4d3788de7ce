"""Weights of a checkpoint directory under canonical names, checked against the configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from dsv4lab.checkpoint.draft import DraftKind, detect_draft_kind, expected_draft_tensors
from dsv4lab.checkpoint.match import Source, match
from dsv4lab.checkpoint.names import Role, TensorSpec, expected_tensors
from dsv4lab.checkpoint.reader import Reader
from dsv4lab.checkpoint.shards import Shards
from dsv4lab.checkpoint.spelling import canonical_name
from dsv4lab.checkpoint.stored import StoredWeight
from dsv4lab.config.model import ModelConfig
from dsv4lab.errors import CheckpointError
from dsv4lab.parallel.sharding import Part, Sharding

Progress = Callable[[int, int], None]
"""Called with (tensors done, tensors in all)."""


def load_weights(
    directory: str | Path,
    config: ModelConfig,
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
    sharding: Sharding | None = None,
) -> dict[str, torch.Tensor]:
    """Every tensor of ``expected_tensors(config)``, on the CPU, contiguous, each in memory of its own.

    Matrices come in ``dtype``; norms, mHC, sinks, ape and router biases in fp32; the hash table in int64. fp8 and fp4
    weights are decoded. Draft layers are left out. With ``sharding``, the parts that its rank holds, and no more than
    these is read (other columns of a row but passing). Raises :class:`CheckpointError` naming file and tensor; names,
    shapes and dtypes are all checked before the first tensor is read.
    """
    weights = dict(stream_weights(directory, config, dtype, progress, sharding))
    return {name: weights[name] for name in expected_tensors(config) if name in weights}


def stream_weights(
    directory: str | Path,
    config: ModelConfig,
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
    sharding: Sharding | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """As :func:`load_weights`, one tensor at a time in the order of the files.

    Memory holds one tensor (of experts packed into one, one expert), its stored form, and whatever the caller keeps.
    """
    with Shards(directory) as shards:
        sources = match(shards.directory, shards.tensors, config)
        yield from _stream(shards, sources, expected_tensors(config), config, dtype, progress, sharding)


def stream_stored(
    directory: str | Path,
    config: ModelConfig,
    progress: Progress | None = None,
    sharding: Sharding | None = None,
) -> Iterator[tuple[str, StoredWeight]]:
    """Every tensor as it is stored, codes and scales not decoded: what a device that computes with them takes.

    With ``sharding``, its rank's parts; :class:`CheckpointError` if one begins or ends inside a block of scales.
    """
    with Shards(directory) as shards:
        sources = match(shards.directory, shards.tensors, config)
        reader = Reader(shards)
        names = _file_order(sources, sharding)
        for done, name in enumerate(names, start=1):
            yield name, reader.stored(sources[name], _part(sharding, name, sources[name]))
            if progress is not None:
                progress(done, len(names))


def load_draft_weights(
    directory: str | Path,
    config: ModelConfig,
    kind: DraftKind,
    dtype: torch.dtype = torch.float32,
    sharding: Sharding | None = None,
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
        weights = dict(_stream(shards, sources, expected, config, dtype, sharding=sharding))
        return {name: weights[name] for name in expected if name in weights}


def _stream(
    shards: Shards,
    sources: Mapping[str, Source],
    expected: Mapping[str, TensorSpec],
    config: ModelConfig,
    dtype: torch.dtype,
    progress: Progress | None = None,
    sharding: Sharding | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    reader = Reader(shards)
    names = _file_order(sources, sharding)
    for done, name in enumerate(names, start=1):
        values = reader.values(sources[name], _part(sharding, name, sources[name]))
        yield name, _finish(values, sources[name], expected[name], config, dtype)
        if progress is not None:
            progress(done, len(names))


def _file_order(sources: Mapping[str, Source], sharding: Sharding | None) -> list[str]:
    """What is held, file by file and from the front of each to its end."""
    held = [name for name in sources if sharding is None or sharding.holds(name)]
    return sorted(held, key=lambda name: (str(sources[name].stored.file), sources[name].begin))


def _part(sharding: Sharding | None, name: str, source: Source) -> Part | None:
    return None if sharding is None else sharding.part(name, source.shape)


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
    return values.to(wanted).contiguous()
