"""What a checkpoint holds, by part and by stored dtype, and whether it loads. Reads headers, no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dsv4lab.checkpoint.draft import detect_draft_kind, expected_draft_tensors
from dsv4lab.checkpoint.match import FP4, FP8, match
from dsv4lab.checkpoint.shards import Shards, StoredTensor
from dsv4lab.checkpoint.spelling import canonical_name, is_draft
from dsv4lab.config.from_json import load_model_config
from dsv4lab.config.model import ModelConfig
from dsv4lab.errors import LabError

_PARTS = (
    ("embed.", "embedding"),
    ("head.", "head"),
    (".shared_experts.", "shared expert"),
    (".experts.", "experts"),
    (".ffn.gate.", "router"),
    (".indexer.", "indexer"),
    (".compressor.", "compressor"),
    ("norm.", "norms"),
    (".attn.", "attention"),
    ("hc_", "hyper-connections"),
)
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors of one ``part`` of the model in one ``dtype``, as files spell it (fp4 and fp8 scales are ``F8_E8M0``)."""

    part: str
    dtype: str
    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """``weights`` is the format of the experts; ``draft`` the drafter carried; ``problem`` why it does not load."""

    directory: str
    config: ModelConfig
    files: int
    groups: tuple[Group, ...]
    weights: str
    draft: str | None
    problem: str | None

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(group.bytes for group in self.groups)

    def to_json(self) -> dict[str, Any]:
        """The documented keys."""
        return {
            "directory": self.directory,
            "model": asdict(self.config),
            "files": self.files,
            "tensors": sum(group.tensors for group in self.groups),
            "bytes": self.bytes,
            "weights": self.weights,
            "draft": self.draft,
            "groups": [asdict(group) for group in self.groups],
            "loadable": self.problem is None,
            "problem": self.problem,
        }


def inspect_checkpoint(directory: str | Path) -> Inspection:
    """Look at the checkpoint in ``directory``.

    Weights that do not fit the configuration are a finding; a configuration or a file that cannot be read, or a model
    that this runtime does not compute (V4.1), is an error: :class:`ConfigError` or :class:`CheckpointError`.
    """
    config = load_model_config(directory)
    with Shards(directory) as shards:
        tensors = shards.tensors
    names = {raw: canonical_name(raw) for raw in tensors}
    return Inspection(
        directory=str(directory),
        config=config,
        files=len({stored.file for stored in tensors.values()}),
        groups=_groups(tensors, names),
        weights=_weights(tensors, names),
        draft=detect_draft_kind(names.values()),
        problem=_problem(Path(directory), tensors, config),
    )


def _groups(tensors: Mapping[str, StoredTensor], names: Mapping[str, str]) -> tuple[Group, ...]:
    found: dict[tuple[str, str], list[int]] = {}
    for raw, stored in tensors.items():
        found.setdefault((part_of(names[raw]), stored.dtype), []).append(stored.nbytes)
    order = [part for _, part in _PARTS] + ["draft layers", "other"]
    ranked = sorted(found.items(), key=lambda item: (order.index(item[0][0]), -sum(item[1])))
    return tuple(Group(part, dtype, len(sizes), sum(sizes)) for (part, dtype), sizes in ranked)


def part_of(canonical: str) -> str:
    """The part of the model that a tensor belongs to."""
    if is_draft(canonical):
        return "draft layers"
    return next((part for mark, part in _PARTS if canonical.startswith(mark) or mark in canonical), "other")


def _weights(tensors: Mapping[str, StoredTensor], names: Mapping[str, str]) -> str:
    """The format that the routed experts' weights are in; "mixed" if they are in several."""
    dtypes = {
        stored.dtype
        for raw, stored in tensors.items()
        if part_of(names[raw]) == "experts" and not names[raw].endswith(".scale")
    }
    kinds = {"fp4" if d in FP4 else "fp8" if d in FP8 else _DTYPES.get(d, d) for d in dtypes}
    return kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "none"


def _problem(directory: Path, tensors: Mapping[str, StoredTensor], config: ModelConfig) -> str | None:
    kind = detect_draft_kind(canonical_name(raw) for raw in tensors)
    try:
        match(directory, tensors, config)
        if kind is not None:
            match(directory, tensors, config, expected_draft_tensors(config, kind))
    except LabError as error:
        return str(error)
    return None
