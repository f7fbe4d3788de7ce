"""Draft layers of a checkpoint (``mtp.*``): which kind it carries, their tensors, synthetic ones (dsv4-spec 9.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import torch

from dsv4lab.checkpoint.names import Role, TensorSpec, expected_tensors
from dsv4lab.checkpoint.synthetic import random_tensors
from dsv4lab.config.model import ModelConfig
from dsv4lab.errors import ConfigError
from dsv4lab.parallel.sharding import Sharding

DraftKind = Literal["mtp", "dspark"]
KINDS: tuple[DraftKind, ...] = ("mtp", "dspark")


def draft_kinds(config: ModelConfig) -> tuple[DraftKind, ...]:
    """Drafters that a model of ``config`` carries."""
    return tuple(k for k, there in (("mtp", config.mtp_layers > 0), ("dspark", config.dspark is not None)) if there)  # type: ignore[misc]


def detect_draft_kind(names: Iterable[str]) -> DraftKind | None:
    """The drafter that a checkpoint with these canonical ``names`` carries; the two never share a file."""
    listed = set(names)
    if "mtp.0.main_proj.weight" in listed:
        return "dspark"
    return "mtp" if "mtp.0.e_proj.weight" in listed else None


def draft_stages(config: ModelConfig, kind: DraftKind) -> int:
    """Decoder blocks of the drafter; :class:`ConfigError` if the model carries none of this kind."""
    if kind not in draft_kinds(config):
        have = " or ".join(draft_kinds(config)) or "no drafter"
        raise ConfigError(f"speculative {kind!r}: model {config.name} carries {have}")
    return config.mtp_layers if kind == "mtp" else config.dspark.stages  # type: ignore[union-attr]


def draft_layers_config(config: ModelConfig, kind: DraftKind) -> ModelConfig:
    """The drafter's blocks as a model of their own: sliding window only, no hash routing, plain rope."""
    return replace(config, compress_ratios=(0,) * draft_stages(config, kind), num_hash_layers=0)


def expected_draft_tensors(config: ModelConfig, kind: DraftKind) -> dict[str, TensorSpec]:
    """Every tensor of the drafter under its canonical name; embedding and head are the model's own."""
    stages = draft_stages(config, kind)
    blocks = expected_tensors(draft_layers_config(config, kind))
    tensors = {f"mtp.{n.removeprefix('layers.')}": spec for n, spec in blocks.items() if n.startswith("layers.")}
    last = stages - 1
    tensors[f"mtp.{last}.norm.weight"] = blocks["norm.weight"]
    for part in ("fn", "base", "scale"):
        tensors[f"mtp.{last}.hc_head_{part}"] = blocks[f"hc_head_{part}"]
    hidden = config.hidden_size
    if kind == "mtp":
        for part in ("e", "h"):
            tensors[f"mtp.0.{part}_proj.weight"] = TensorSpec((hidden, hidden), Role.LINEAR)
            tensors[f"mtp.0.{part}norm.weight"] = TensorSpec((hidden,), Role.NORM)
        return tensors
    assert config.dspark is not None
    rank, taps = config.dspark.markov_rank, len(config.dspark.target_layer_ids)
    tensors["mtp.0.main_proj.weight"] = TensorSpec((hidden, taps * hidden), Role.LINEAR)
    tensors["mtp.0.main_norm.weight"] = TensorSpec((hidden,), Role.NORM)
    for i in (1, 2):
        tensors[f"mtp.{last}.markov_head.markov_w{i}.weight"] = TensorSpec((config.vocab_size, rank), Role.LINEAR)
    tensors[f"mtp.{last}.confidence_head.proj.weight"] = TensorSpec((1, hidden + rank), Role.LINEAR)
    return tensors


def random_draft_weights(
    config: ModelConfig,
    kind: DraftKind,
    seed: int,
    dtype: torch.dtype = torch.float32,
    sharding: Sharding | None = None,
) -> dict[str, torch.Tensor]:
    """Synthetic drafter from a seed of its own; the model's weights do not depend on it."""
    return random_tensors(expected_draft_tensors(config, kind), config, seed, dtype, sharding)
