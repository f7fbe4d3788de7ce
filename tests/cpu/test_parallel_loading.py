"""What a rank loads: its parts of every tensor, the same numbers that one process has there, and nothing more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dsv4lab.checkpoint import shards
from dsv4lab.checkpoint.draft import KINDS, random_draft_weights
from dsv4lab.checkpoint.load import load_draft_weights, load_weights, stream_stored
from dsv4lab.checkpoint.names import Role, TensorSpec, expected_tensors, held_tensors
from dsv4lab.checkpoint.shards import Shards
from dsv4lab.checkpoint.source import weight_bytes
from dsv4lab.checkpoint.stored import StoredWeight, random_stored, stored_bytes
from dsv4lab.checkpoint.synth import write_synthetic
from dsv4lab.checkpoint.synthetic import random_weights, write_checkpoint
from dsv4lab.checkpoint.write import LAYOUTS
from dsv4lab.config.from_json import load_model_config
from dsv4lab.config.presets import preset
from dsv4lab.errors import CheckpointError, ConfigError
from dsv4lab.parallel.layout import Layout
from dsv4lab.parallel.sharding import Part, Sharding

TINY = replace(preset("tiny"), compress_ratios=(0, 4), dspark=None)
BLOCKS = replace(TINY, compress_ratios=(4,), num_hash_layers=0, n_routed_experts=2, moe_intermediate_size=256)
"""Wide enough for two ranks to share its experts without cutting a block of scales."""
LAYOUTS_OF_TWO = [Layout(2, 1, 1, 1), Layout(2, 1, 2, 0), Layout(1, 2, 1, 0), Layout(1, 2, 2, 1)]


def cut(whole: dict[str, torch.Tensor], sharding: Sharding) -> dict[str, torch.Tensor]:
    parts = {}
    for name, tensor in whole.items():
        part = sharding.part(name, tuple(tensor.shape))
        if sharding.holds(name):
            parts[name] = tensor if part is None else tensor.narrow(part.axis, part.start, part.stop - part.start)
    return parts


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert list(got) == list(expected)
    for name, tensor in got.items():
        assert torch.equal(tensor, expected[name]), name
        assert tensor.is_contiguous()
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, f"{name} keeps memory that it does not show"


@pytest.mark.parametrize("layout", LAYOUTS_OF_TWO, ids=str)
def test_synthetic_parts_are_those_of_one_process(layout: Layout) -> None:
    sharding = Sharding(layout, TINY)
    parts = random_weights(TINY, 5, sharding=sharding)
    assert_same(parts, cut(random_weights(TINY, 5), sharding))
    assert {name: tuple(t.shape) for name, t in parts.items()} == {
        name: spec.shape for name, spec in held_tensors(expected_tensors(TINY), sharding).items()
    }
    assert weight_bytes(TINY, torch.float32, sharding) == sum(t.nbytes for t in parts.values())
    for kind in KINDS:
        whole = random_draft_weights(preset("tiny"), kind, 5)
        assert_same(random_draft_weights(preset("tiny"), kind, 5, sharding=sharding), cut(whole, sharding))


def test_the_ranks_together_hold_the_model() -> None:
    whole, seen = random_weights(TINY, 0), {}
    for rank in range(2):
        for name, part in random_weights(TINY, 0, sharding=Sharding(Layout(2, 1, 1, rank), TINY)).items():
            axis = Sharding(Layout(2), TINY).part(name, tuple(whole[name].shape))
            seen[name] = part if axis is None or rank == 0 else torch.cat((seen[name], part), axis.axis)
    assert all(torch.equal(seen[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS_OF_TWO[:2], ids=str)
def test_files_give_a_rank_its_parts(tmp_path: Path, form: str, layout: Layout) -> None:
    weights = random_weights(TINY, 3)
    write_checkpoint(tmp_path, TINY, weights, form)
    config, sharding = load_model_config(tmp_path), Sharding(layout, TINY)
    assert_same(load_weights(tmp_path, config, sharding=sharding), cut(load_weights(tmp_path, config), sharding))


@pytest.mark.parametrize("weights", ["fp8", "fp4"])
@pytest.mark.parametrize("config", [TINY, BLOCKS], ids=["inside blocks", "whole blocks"])
def test_quantised_files_decode_to_the_same_parts(tmp_path: Path, weights: str, config: object) -> None:
    assert isinstance(config, type(TINY))
    write_synthetic(tmp_path, config, weights=weights, draft="mtp")
    read, sharding = load_model_config(tmp_path), Sharding(Layout(2, rank=1), config)
    assert_same(load_weights(tmp_path, read, sharding=sharding), cut(load_weights(tmp_path, read), sharding))
    whole = load_draft_weights(tmp_path, read, "mtp")
    assert_same(load_draft_weights(tmp_path, read, "mtp", sharding=sharding), cut(whole, sharding))


def as_bytes(stored: StoredWeight) -> tuple[torch.Tensor, torch.Tensor | None]:
    return stored.values.view(torch.uint8), None if stored.scale is None else stored.scale.view(torch.uint8)


@pytest.mark.parametrize("weights", ["bfloat16", "fp8", "fp4"])
def test_codes_of_a_part_are_made_and_read_alone(tmp_path: Path, weights: str) -> None:
    wide = replace(BLOCKS, num_attention_heads=8, head_dim=64, o_lora_rank=128)
    write_synthetic(tmp_path, wide, weights="fp8" if weights == "bfloat16" else weights)
    tensors, sharding = expected_tensors(wide), Sharding(Layout(2, rank=1), wide)
    read = dict(stream_stored(tmp_path, load_model_config(tmp_path), sharding=sharding))
    for name, spec in tensors.items():
        part = sharding.part(name, spec.shape)
        whole, alone = (random_stored(name, spec, wide, 0, weights, part=p) for p in (None, part))
        assert alone.values.is_contiguous()
        if part is None:
            continue
        (codes, scale), (mine, my_scale) = as_bytes(whole), as_bytes(alone)
        factor = codes.shape[part.axis] / spec.shape[part.axis]
        span = int(part.start * factor), int((part.stop - part.start) * factor)
        assert torch.equal(mine, codes.narrow(part.axis, *span)), name
        if weights != "bfloat16":
            assert torch.equal(read[name].values.view(torch.uint8), mine), name
        if scale is not None and my_scale is not None:
            width = scale.shape[part.axis] // 2
            assert torch.equal(my_scale, scale.narrow(part.axis, width, width)), name


def test_columns_of_a_matrix_larger_than_the_buffer() -> None:
    spec = TensorSpec((3000, 4096), Role.LINEAR)
    part = Part(1, 1024, 2048)
    whole, alone = (random_stored("layers.0.attn.wo_b.weight", spec, TINY, 1, "fp8", part=p) for p in (None, part))
    assert torch.equal(alone.values.view(torch.uint8), whole.values.view(torch.uint8)[:, 1024:2048])
    assert torch.equal(alone.scale.view(torch.uint8), whole.scale.view(torch.uint8)[:, 8:16])  # type: ignore[union-attr]


def test_files_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, TINY, random_weights(TINY, 3), "deepseek")
    config, sharding = load_model_config(tmp_path), Sharding(Layout(2, rank=1), TINY)
    expected = load_weights(tmp_path, config, sharding=sharding)
    read: list[int] = []
    fill = Shards._fill
    monkeypatch.setattr(shards, "_COLUMN_BUFFER", 100)
    monkeypatch.setattr(
        Shards, "_fill", lambda self, s, at, data: (read.append(data.nbytes), fill(self, s, at, data))[1]
    )
    assert_same(load_weights(tmp_path, config, sharding=sharding), expected)
    by_columns = [n for n in expected if (p := sharding.part(n, expected_tensors(config)[n].shape)) and p.axis == 1]
    wide = sum(expected[n].nbytes for n in by_columns)
    assert sum(read) == sum(t.nbytes for t in expected.values()) + wide, "rows that are not held must not be read"


def test_a_cut_through_a_block_is_refused_by_name(tmp_path: Path) -> None:
    spec = TensorSpec((64, 64), Role.LINEAR)
    name = "layers.3.ffn.experts.0.w2.weight"
    with pytest.raises(
        ConfigError, match=rf"^{name}: 0 to 16 of dimension 1 cuts a block of 32 fp4 .* at most 2 ranks"
    ):
        random_stored(name, spec, TINY, 0, "fp4", part=Part(1, 0, 16))
    write_synthetic(tmp_path, TINY, weights="fp4")
    with pytest.raises(CheckpointError, match=r"wo_a.weight: 0 to 32 of dimension 0 cuts a block of 64 that share a"):
        dict(stream_stored(tmp_path, load_model_config(tmp_path), sharding=Sharding(Layout(2), TINY)))


def test_memory_of_a_rank() -> None:
    flash = preset("flash")
    tensors = expected_tensors(flash)
    whole = stored_bytes(tensors, "fp4")
    per_rank = [stored_bytes(held_tensors(tensors, Sharding(Layout(8, 1, ep, 3), flash)), "fp4") for ep in (1, 8)]
    assert [round(whole / n, 1) for n in per_rank] == [7.6, 7.6]
