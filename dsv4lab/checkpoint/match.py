"""Which stored tensor gives which canonical one, checked against the configuration before anything is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dsv4lab.checkpoint.names import Role, TensorSpec, expected_tensors
from dsv4lab.checkpoint.shards import StoredTensor
from dsv4lab.checkpoint.spelling import canonical_name, is_draft, is_shared_copy
from dsv4lab.config.model import ModelConfig
from dsv4lab.errors import CheckpointError

FLOATS = ("F64", "F32", "F16", "BF16")
INTEGERS = ("I64", "I32")
FP8 = ("F8_E4M3",)
FP4 = ("I8", "U8", "F4")

_PACKED = re.compile(r"(layers\.\d+\.ffn\.experts)\.(gate_up_proj|down_proj)")
_SHOWN = 3
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a canonical tensor comes from: ``stored``, or one expert's rows ``[start, stop)`` of it; maybe scaled."""

    stored: StoredTensor
    scale: StoredTensor | None = None
    expert: int | None = None
    rows: tuple[int, int] = (0, 0)

    @property
    def begin(self) -> int:
        """Where its bytes begin in the file."""
        if self.expert is None:
            return self.stored.begin
        rows = self.stored.shape[0] * self.stored.shape[1]
        return self.stored.begin + (self.expert * self.stored.shape[1] + self.rows[0]) * (self.stored.nbytes // rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape after decoding and taking the part."""
        shape = self.stored.shape
        if self.expert is not None:
            return (self.rows[1] - self.rows[0], *shape[2:])
        return (*shape[:-1], shape[-1] * 2) if self.stored.dtype in ("I8", "U8") else shape


def match(
    directory: Path,
    tensors: Mapping[str, StoredTensor],
    config: ModelConfig,
    draft: Mapping[str, TensorSpec] | None = None,
) -> dict[str, Source]:
    """Canonical name to source, in canonical order; :class:`CheckpointError` on what is missing, extra or misshapen.

    The model's own tensors, or with ``draft`` (what a drafter of some kind has) those of the draft layers.
    """
    expected = expected_tensors(config) if draft is None else draft
    sources: dict[str, Source] = {}
    scales: dict[str, StoredTensor] = {}
    for stored in tensors.values():
        name = canonical_name(stored.name)
        if is_draft(name) != (draft is not None) or is_shared_copy(name):
            continue
        if name.endswith(".scale"):
            _add(scales, f"{name.removesuffix('.scale')}.weight", stored, stored)
            continue
        for part, source in _parts(name, stored, config):
            _add(sources, part, source, stored)
    _check_names(directory, expected, sources, scales)
    for name, spec in expected.items():
        _check_tensor(name, spec, sources[name], scales.get(name))
    return {
        name: Source(found.stored, scales.get(name), found.expert, found.rows)
        for name, found in ((name, sources[name]) for name in expected)
    }


def _parts(name: str, stored: StoredTensor, config: ModelConfig) -> Iterator[tuple[str, Source]]:
    """One source, or those of every expert in a packed tensor: w1 above w3, or w2 (dsv4-spec 9.3)."""
    packed = _PACKED.fullmatch(name)
    if packed is None:
        yield name, Source(stored)
        return
    inner, hidden = config.moe_intermediate_size, config.hidden_size
    halves = ("w1", "w3") if packed[2] == "gate_up_proj" else ("w2",)
    height = inner if len(halves) == 2 else hidden
    wanted = (config.n_routed_experts, len(halves) * height, hidden if len(halves) == 2 else inner)
    if stored.shape != wanted:
        raise CheckpointError(f"{stored.file}: {stored.name}: got shape {list(stored.shape)}, expected {list(wanted)}")
    for expert in range(config.n_routed_experts):
        for i, half in enumerate(halves):
            rows = (i * height, (i + 1) * height)
            yield f"{packed[1]}.{expert}.{half}.weight", Source(stored, None, expert, rows)


def _add(found: dict[str, _T], name: str, value: _T, stored: StoredTensor) -> None:
    if name in found:
        raise CheckpointError(f"{stored.file}: {stored.name}: {name} is there twice, under two spellings")
    found[name] = value


def _check_names(
    directory: Path,
    expected: Mapping[str, TensorSpec],
    sources: Mapping[str, Source],
    scales: Mapping[str, StoredTensor],
) -> None:
    missing = [f"{name} {list(spec.shape)}" for name, spec in expected.items() if name not in sources]
    extra = [source.stored.name for name, source in sources.items() if name not in expected]
    extra += [scale.name for name, scale in scales.items() if name not in expected]
    problems = []
    if missing:
        problems.append(f"{_count(missing)} missing: {_some(missing)}")
    if extra:
        problems.append(f"{_count(extra)} that the configuration has no place for: {_some(extra)}")
    if problems:
        raise CheckpointError(f"{directory}: {'; '.join(problems)}")


def _check_tensor(name: str, spec: TensorSpec, source: Source, scale: StoredTensor | None) -> None:
    stored = source.stored
    where = f"{stored.file}: {stored.name}"
    if source.shape != spec.shape:
        raise CheckpointError(f"{where}: got shape {list(stored.shape)}, expected {list(spec.shape)}")
    allowed: tuple[str, ...] = INTEGERS if spec.role is Role.HASH_TABLE else FLOATS
    if spec.role is Role.LINEAR and source.expert is None:
        allowed += FP8 + (FP4 if ".experts." in name else ())
    if stored.dtype not in allowed:
        raise CheckpointError(f"{where}: got dtype {stored.dtype}, expected one of {', '.join(allowed)}")
    quantised = stored.dtype in FP8 + FP4
    if quantised and scale is None:
        raise CheckpointError(f"{where}: dtype {stored.dtype} needs block scales, and there is no .scale beside it")
    if scale is not None and not quantised:
        raise CheckpointError(f"{scale.file}: {scale.name}: block scales beside weights of dtype {stored.dtype}")


def _count(names: list[str]) -> str:
    return "1 weight" if len(names) == 1 else f"{len(names)} weights"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more
