"""What the name of a model stands for: a preset with synthetic weights, or a checkpoint directory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from dsv4lab.backends.weights import Weight, kept
from dsv4lab.checkpoint.decode import decode_fp4, decode_fp8
from dsv4lab.checkpoint.draft import DraftKind, random_draft_weights
from dsv4lab.checkpoint.load import Progress, load_draft_weights, load_weights, stream_stored
from dsv4lab.checkpoint.names import Role, TensorSpec, expected_tensors, held_tensors
from dsv4lab.checkpoint.stored import StoredWeight, random_stored, stored_bytes
from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.from_json import load_model_config
from dsv4lab.config.model import ModelConfig
from dsv4lab.config.presets import PRESETS
from dsv4lab.errors import CheckpointError, ConfigError
from dsv4lab.host import memory_bytes
from dsv4lab.parallel.sharding import Sharding

RELEASED = "fp4"
"""How releases store a model: fp8, with fp4 experts."""


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
    """Weights of ``model`` (see :func:`model_config`), dense: synthetic from ``seed`` for a preset, else those on disk.

    With ``sharding``, the parts of its rank: the very numbers that one process would have there.

    Raises :class:`CheckpointError` before allocating when a preset's weights exceed this machine's memory.
    """
    if model not in PRESETS:
        return load_weights(model, config, dtype, progress, sharding)
    _check_room(model, f"in {str(dtype).removeprefix('torch.')}", weight_bytes(config, dtype, sharding))
    return random_weights(config, seed, dtype, sharding)


def stored_weights(
    model: str,
    config: ModelConfig,
    seed: int,
    dtype: torch.dtype,
    progress: Progress | None = None,
    sharding: Sharding | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Weight]:
    """As :func:`model_weights`, with matrices in the formats that they are stored in, fp8 and fp4; a preset's as in a
    release: fp8, experts fp4.

    Others come dense in ``dtype``: those whose blocks are cut short, and ``wo_a``, whose product is grouped. A preset's
    are made on ``device``, with the same bits on every one; a checkpoint's come to the CPU.
    """
    expected = expected_tensors(config)
    if model in PRESETS:
        held = expected if sharding is None else held_tensors(expected, sharding)
        _check_room(model, "as stored", stored_bytes(held, RELEASED), device)
        return synthetic_weights(config, seed, dtype, device, progress, sharding)
    pairs = stream_stored(model, config, progress, sharding)
    return {name: _as_weight(name, stored, expected[name], dtype) for name, stored in pairs}


def synthetic_weights(
    config: ModelConfig,
    seed: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    sharding: Sharding | None = None,
) -> dict[str, Weight]:
    """Random weights of a model of any configuration, as a release stores them, made where ``device`` has them."""
    expected = expected_tensors(config)
    pairs = _random_stored(config, expected, seed, progress, sharding, device)
    return {name: _as_weight(name, stored, expected[name], dtype) for name, stored in pairs}


def _check_room(model: str, form: str, need: int, device: torch.device | str = "cpu") -> None:
    on_gpu = torch.device(device).type == "cuda"
    have = torch.cuda.mem_get_info(device)[0] if on_gpu else memory_bytes()
    if have is not None and need > have:
        here = f"{device} has {have / 1e9:.1f} GB free" if on_gpu else f"this machine has {have / 1e9:.1f} GB of memory"
        raise CheckpointError(f"preset {model}: synthetic weights take {need / 1e9:.1f} GB {form}, {here}")


def _random_stored(
    config: ModelConfig,
    expected: Mapping[str, TensorSpec],
    seed: int,
    progress: Progress | None,
    sharding: Sharding | None,
    device: torch.device | str,
) -> Iterator[tuple[str, StoredWeight]]:
    names = expected if sharding is None else held_tensors(expected, sharding)
    for done, name in enumerate(names, start=1):
        spec = expected[name]
        part = None if sharding is None else sharding.part(name, spec.shape)
        yield name, random_stored(name, spec, config, seed, RELEASED, device, part)
        if progress is not None:
            progress(done, len(names))


def _as_weight(name: str, stored: StoredWeight, spec: TensorSpec, dtype: torch.dtype) -> Weight:
    if stored.scale is None:
        if spec.role is Role.HASH_TABLE:
            return stored.values
        return stored.values.to(dtype if spec.role.follows_model_dtype else torch.float32)
    whole = kept(stored.values, stored.scale)
    if whole is not None and not name.endswith("attn.wo_a.weight"):
        return whole
    decode = decode_fp8 if stored.values.dtype is torch.float8_e4m3fn else decode_fp4
    return decode(stored.values, stored.scale, name).to(dtype)


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
