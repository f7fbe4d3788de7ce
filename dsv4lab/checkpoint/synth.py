"""Synthetic checkpoints on disk, tensor by tensor: plain, or in the quantised formats of the released ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dsv4lab.checkpoint.draft import DraftKind, expected_draft_tensors
from dsv4lab.checkpoint.names import TensorSpec, expected_tensors
from dsv4lab.checkpoint.shard_writer import write_json, write_shards
from dsv4lab.checkpoint.spelling import saved_name
from dsv4lab.checkpoint.stored import FP8_BLOCK, WEIGHT_FORMATS, random_stored
from dsv4lab.checkpoint.synthetic import random_tensor
from dsv4lab.checkpoint.write import fresh_directory
from dsv4lab.config.from_json import FILE_NAME
from dsv4lab.config.model import ModelConfig
from dsv4lab.config.to_json import released_config, transformers_config
from dsv4lab.errors import UsageError

FORMATS = ("deepseek", "hf")
DEFAULT_SHARD_BYTES = 4 * 2**30

OnTensor = Callable[[int, int], None]
"""Called with (tensors done, tensors in all)."""


def synthetic_tensors(config: ModelConfig, draft: DraftKind | None) -> dict[str, TensorSpec]:
    """Tensors of the model, and of its drafter where one is wanted."""
    return expected_tensors(config) | ({} if draft is None else expected_draft_tensors(config, draft))


def write_synthetic(
    directory: str | Path,
    config: ModelConfig,
    *,
    seed: int = 0,
    layout: str = "deepseek",
    weights: str = "fp4",
    draft: DraftKind | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    progress: OnTensor | None = None,
) -> int:
    """Write a checkpoint of random weights; bytes of its tensors.

    ``layout`` "deepseek" is as released, "hf" as transformers' ``save_pretrained`` writes. ``weights`` "float32" and
    "bfloat16" hold what :func:`dsv4lab.checkpoint.synthetic.random_weights` gives for this seed (norms and all that
    stays fp32 included); "fp8" and "fp4" are random codes and scales. Memory holds one shard. Raises
    :class:`CheckpointError` if a checkpoint is there already, :class:`UsageError` on an unknown format.
    """
    for name, value, allowed in (("format", layout, FORMATS), ("weights", weights, WEIGHT_FORMATS)):
        if value not in allowed:
            raise UsageError(f"checkpoint {name} {value!r} is unknown; it takes one of {', '.join(allowed)}")
    if max_shard_bytes < 1:
        raise UsageError(f"max_shard_bytes: got {max_shard_bytes}, expected at least 1")
    tensors = synthetic_tensors(config, draft)
    path = fresh_directory(directory)
    rename = saved_name if layout == "hf" else str
    made = _made(config, tensors, seed, weights, progress)
    total = write_shards(path, ((rename(name), tensor) for name, tensor in made), max_shard_bytes)
    write_json(path / FILE_NAME, config_json(config, layout, weights, draft))
    return total


def _made(
    config: ModelConfig, tensors: dict[str, TensorSpec], seed: int, weights: str, progress: OnTensor | None
) -> Iterator[tuple[str, torch.Tensor]]:
    for done, (name, spec) in enumerate(tensors.items(), start=1):
        if weights in ("float32", "bfloat16"):
            yield name, random_tensor(name, spec, config, seed, getattr(torch, weights))
        else:
            stored = random_stored(name, spec, config, seed, weights)
            yield name, stored.values
            if stored.scale is not None:
                yield f"{name.removesuffix('.weight')}.scale", stored.scale
        if progress is not None:
            progress(done, len(tensors))


def config_json(config: ModelConfig, layout: str, weights: str, draft: DraftKind | None) -> dict[str, Any]:
    """``config.json`` of such a checkpoint."""
    plain = weights in ("float32", "bfloat16")
    written = _with_draft(config, draft)
    data = (released_config if layout == "deepseek" else transformers_config)(written, weights if plain else "bfloat16")
    if not plain:
        data["expert_dtype"] = weights
        data["quantization_config"] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
            "scale_fmt": "ue8m0",
        }
    return data


def _with_draft(config: ModelConfig, draft: DraftKind | None) -> ModelConfig:
    """``config`` as if it carried this drafter alone."""
    return replace(
        config,
        mtp_layers=config.mtp_layers if draft == "mtp" else 0,
        dspark=config.dspark if draft == "dspark" else None,
    )
