"""Checkpoints written in each layout that :mod:`dsv4lab.checkpoint.load` reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from dsv4lab.checkpoint.names import expected_tensors
from dsv4lab.checkpoint.shard_writer import write_json, write_shards
from dsv4lab.checkpoint.shards import INDEX, SINGLE
from dsv4lab.checkpoint.spelling import module_name, saved_name
from dsv4lab.config.from_json import FILE_NAME
from dsv4lab.config.model import ModelConfig
from dsv4lab.config.to_json import released_config, transformers_config
from dsv4lab.errors import CheckpointError, UsageError

LAYOUTS = ("hf", "deepseek", "hf-modules")
_EXPERT = re.compile(r"(layers\.\d+\.ffn\.experts)\.(\d+)\.(w[123])\.weight")


def write_checkpoint(
    directory: str | Path,
    config: ModelConfig,
    weights: Mapping[str, torch.Tensor],
    layout: str = "hf",
    max_shard_bytes: int | None = None,
) -> None:
    """Write ``config.json`` and the canonical ``weights`` into ``directory``, which is made if need be.

    ``layout``: "hf" as transformers' ``save_pretrained`` writes; "deepseek" as released (``compress_ratios``, canonical
    names); "hf-modules" with transformers' module names and experts packed. Above ``max_shard_bytes`` the tensors are
    spread over shards with an index. Raises :class:`CheckpointError` when the weights do not fit ``config`` or the
    directory already holds weights, :class:`UsageError` on an unknown layout.
    """
    if layout not in LAYOUTS:
        raise UsageError(f"checkpoint layout {layout!r} is unknown; it takes one of {', '.join(LAYOUTS)}")
    if max_shard_bytes is not None and max_shard_bytes < 1:
        raise UsageError(f"max_shard_bytes: got {max_shard_bytes}, expected at least 1")
    check_weights(config, weights)
    path = fresh_directory(directory)
    dtype = str(weights["embed.weight"].dtype).removeprefix("torch.")
    data = (released_config if layout == "deepseek" else transformers_config)(config, dtype)
    write_shards(path, _renamed(weights, layout), max_shard_bytes)
    write_json(path / FILE_NAME, data)


def fresh_directory(directory: str | Path) -> Path:
    """``directory``, made if need be; :class:`CheckpointError` if a checkpoint is there already."""
    path = Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be made ({error.strerror})") from None
    present = [name for name in (SINGLE, INDEX, FILE_NAME) if (path / name).exists()]
    if present:
        raise CheckpointError(f"{path / present[0]}: already there; a checkpoint is only written to a fresh directory")
    return path


def check_weights(config: ModelConfig, weights: Mapping[str, torch.Tensor]) -> None:
    """Refuse a canonical dict that lacks a tensor of ``config``, has another besides, or a wrong shape."""
    expected = expected_tensors(config)
    for name, spec in expected.items():
        if name not in weights:
            raise CheckpointError(f"weights of {config.name}: {name} {list(spec.shape)} is missing")
        if tuple(weights[name].shape) != spec.shape:
            got = list(weights[name].shape)
            raise CheckpointError(f"weights of {config.name}: {name}: got shape {got}, expected {list(spec.shape)}")
    for name in weights:
        if name not in expected:
            raise CheckpointError(f"weights of {config.name}: the configuration has no place for {name}")


def _renamed(weights: Mapping[str, torch.Tensor], layout: str) -> Iterator[tuple[str, torch.Tensor]]:
    if layout != "hf-modules":
        rename = saved_name if layout == "hf" else str
        yield from ((rename(name), tensor) for name, tensor in weights.items())
        return
    experts: dict[str, dict[str, list[torch.Tensor]]] = {}
    for name, tensor in weights.items():
        expert = _EXPERT.fullmatch(name)
        if expert is None:
            yield module_name(name), tensor
        else:
            experts.setdefault(expert[1], {}).setdefault(expert[3], []).append(tensor)
    for prefix, parts in experts.items():
        packed = module_name(f"{prefix}.gate_up_proj")
        yield packed, torch.cat((torch.stack(parts["w1"]), torch.stack(parts["w3"])), dim=1)
        yield module_name(f"{prefix}.down_proj"), torch.stack(parts["w2"])
