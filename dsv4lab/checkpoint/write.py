"""Checkpoints written in each layout that :mod:`dsv4lab.checkpoint.load` reads."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from dsv4lab.checkpoint.names import expected_tensors
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
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    present = [name for name in (SINGLE, INDEX, FILE_NAME) if (path / name).exists()]
    if present:
        raise CheckpointError(f"{path / present[0]}: already there; a checkpoint is only written to a fresh directory")
    dtype = str(weights["embed.weight"].dtype).removeprefix("torch.")
    data = (released_config if layout == "deepseek" else transformers_config)(config, dtype)
    _write_tensors(path, _groups(_renamed(weights, layout), max_shard_bytes))
    _write_json(path / FILE_NAME, data)


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


def _groups(tensors: Iterator[tuple[str, torch.Tensor]], limit: int | None) -> list[dict[str, torch.Tensor]]:
    """Consecutive tensors, at most ``limit`` bytes together unless one alone is larger."""
    groups: list[dict[str, torch.Tensor]] = [{}]
    used = 0
    for name, tensor in tensors:
        if limit is not None and groups[-1] and used + tensor.nbytes > limit:
            groups.append({})
            used = 0
        groups[-1][name] = tensor.contiguous()
        used += tensor.nbytes
    return groups


def _write_tensors(path: Path, groups: list[dict[str, torch.Tensor]]) -> None:
    if len(groups) == 1:
        _save(groups[0], path / SINGLE)
        return
    places: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        _save(group, path / file)
        places.update(dict.fromkeys(group, file))
    total = sum(tensor.nbytes for group in groups for tensor in group.values())
    _write_json(path / INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))})


def _save(tensors: dict[str, torch.Tensor], file: Path) -> None:
    try:
        save_file(tensors, file, {"format": "pt"})
    except (SafetensorError, OSError, RuntimeError) as error:
        raise CheckpointError(f"{file}: cannot be written ({' '.join(str(error).split())})") from None


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Appears whole or not at all."""
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    os.replace(draft, path)
