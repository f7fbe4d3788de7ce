"""What the name of a model stands for: a preset with synthetic weights, or a checkpoint directory."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from dsv4lab.checkpoint.draft import DraftKind, random_draft_weights
from dsv4lab.checkpoint.load import Progress, load_draft_weights, load_weights
from dsv4lab.checkpoint.names import Role, TensorSpec, expected_tensors, held_tensors
from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.from_json import load_model_config
from dsv4lab.config.model import ModelConfig
from dsv4lab.config.presets import PRESETS
from dsv4lab.errors import CheckpointError, ConfigError
from dsv4lab.host import memory_bytes
from dsv4lab.parallel.sharding import Sharding


def model_config(model: str) -> ModelConfig:
    """Configuration of ``model``: a preset if one has that name, else the checkpoint in that directory."""
    if model in PRESETS:
        return PRESETS[model]
    if not Path(model).is_dir():
        presets = ", ".join(PRESETS)
        raise ConfigError(f"model {model!r} is neither a preset ({presets}) nor a checkpoint directory")
    return load_model_config(model)


def model_weights(
    model: str,
    config: ModelConfig,
    seed: int,
    dtype: torch.dtype,
    progress: Progress | None = None,
    sharding: Sharding | None = None,
) -> dict[str, torch.Tensor]:
    """Weights of ``model`` (see :func:`model_config`): synthetic ones from ``seed`` for a preset, else those on disk.

    With ``sharding``, the parts of its rank: the very numbers that one process would have there.

    Raises :class:`CheckpointError` before allocating when a preset's weights exceed this machine's memory.
    """
    if model not in PRESETS:
        return load_weights(model, config, dtype, progress, sharding)
    need, have = weight_bytes(config, dtype, sharding), memory_bytes()
    if have is not None and need > have:
        raise CheckpointError(
            f"preset {model}: synthetic weights take {need / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}, "
            f"this machine has {have / 1e9:.1f} GB of memory"
        )
    return random_weights(config, seed, dtype, sharding)


def draft_weights(
    model: str,
    config: ModelConfig,
    kind: DraftKind,
    seed: int,
    dtype: torch.dtype,
    sharding: Sharding | None = None,
) -> dict[str, torch.Tensor]:
    """The drafter's weights: synthetic ones from a seed of their own for a preset, else those on disk."""
    if model in PRESETS:
        return random_draft_weights(config, kind, seed, dtype, sharding)
    return load_draft_weights(model, config, kind, dtype, sharding)


def weight_bytes(config: ModelConfig, dtype: torch.dtype, sharding: Sharding | None = None) -> int:
    """Size of all weights of ``config`` in memory, or of a rank's parts, bytes."""
    tensors = expected_tensors(config)
    held = tensors if sharding is None else held_tensors(tensors, sharding)
    return sum(math.prod(spec.shape) * _width(spec, dtype) for spec in held.values())


def _width(spec: TensorSpec, dtype: torch.dtype) -> int:
    if spec.role is Role.HASH_TABLE:
        return 8
    return dtype.itemsize if spec.role.follows_model_dtype else 4
