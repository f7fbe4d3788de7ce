"""Checkpoints on disk: round trips in each layout, and every kind of damage named in one line."""

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from dsv4lab.checkpoint.load import load_weights
from dsv4lab.checkpoint.shards import Shards
from dsv4lab.checkpoint.synthetic import random_weights, write_checkpoint
from dsv4lab.checkpoint.write import LAYOUTS
from dsv4lab.config.from_json import load_model_config
from dsv4lab.config.presets import preset
from dsv4lab.errors import CheckpointError, UsageError

TINY = preset("tiny")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return random_weights(TINY, 11)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, weights: dict[str, torch.Tensor]) -> Path:
    directory = tmp_path_factory.mktemp("sound")
    write_checkpoint(directory, TINY, weights, "hf")
    return directory


@pytest.fixture
def copied(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "checkpoint"))


def refusal(directory: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_weights(directory, TINY)
    text = str(caught.value)
    assert "\n" not in text
    assert str(directory) in text
    return text


def edit(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(directory / SINGLE)
    change(tensors)
    save_file(tensors, directory / SINGLE)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("limit", [None, 200_000, 1])
def test_round_trip(layout: str, limit: int | None, weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY, weights, layout, limit)
    assert (tmp_path / INDEX).exists() is (limit is not None)
    config = load_model_config(tmp_path)
    assert replace(config, name="tiny") == TINY
    seen: list[tuple[int, int]] = []
    loaded = load_weights(tmp_path, config, progress=lambda done, total: seen.append((done, total)))
    assert list(loaded) == list(weights)
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)
    assert seen == [(i + 1, len(weights)) for i in range(len(weights))]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bfloat16(layout: str, tmp_path: Path) -> None:
    half = random_weights(TINY, 11, torch.bfloat16)
    write_checkpoint(tmp_path, TINY, half, layout)
    loaded = load_weights(tmp_path, TINY, torch.bfloat16)
    assert all(torch.equal(loaded[name], half[name]) and loaded[name].dtype == half[name].dtype for name in half)
    wide = load_weights(tmp_path, TINY, torch.float32)
    assert all(wide[name].dtype in (torch.float32, torch.int64) for name in wide)


def test_loaded_weights_outlive_the_file(copied: Path, weights: dict[str, torch.Tensor]) -> None:
    loaded = load_weights(copied, TINY)
    data = bytearray((copied / SINGLE).read_bytes())
    (copied / SINGLE).write_bytes(bytes(len(data)))
    shutil.rmtree(copied)
    assert torch.equal(loaded["embed.weight"], weights["embed.weight"])
    assert all(tensor.is_contiguous() for tensor in loaded.values())


def test_nothing_is_overwritten(copied: Path, weights: dict[str, torch.Tensor]) -> None:
    before = (copied / SINGLE).read_bytes()
    with pytest.raises(CheckpointError, match="already there"):
        write_checkpoint(copied, TINY, weights)
    assert (copied / SINGLE).read_bytes() == before


def test_writing_checks_first(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    target = tmp_path / "new"
    name = "layers.1.attn.wkv.weight"
    lacking = {key: tensor for key, tensor in weights.items() if key != name}
    for bad, text in [
        (lacking, rf"{name} \[64, 64\] is missing"),
        ({**weights, name: weights[name][1:]}, rf"{name}: got shape \[63, 64\], expected \[64, 64\]"),
        ({**weights, "more": weights[name]}, "no place for more"),
    ]:
        with pytest.raises(CheckpointError, match=text):
            write_checkpoint(target, TINY, bad)
    with pytest.raises(UsageError, match="layout 'gguf' is unknown; it takes one of hf, deepseek, hf-modules"):
        write_checkpoint(target, TINY, weights, "gguf")
    with pytest.raises(UsageError, match="max_shard_bytes: got 0"):
        write_checkpoint(target, TINY, weights, "hf", 0)
    assert not target.exists()


def test_draft_layers_are_left_out(copied: Path, weights: dict[str, torch.Tensor]) -> None:
    edit(copied, lambda tensors: tensors.update({"mtp.0.norm.weight": torch.ones(64), "model.mtp.1.x": torch.ones(1)}))
    assert list(load_weights(copied, TINY)) == list(weights)


def test_missing_weights(copied: Path) -> None:
    edit(copied, lambda tensors: tensors.pop("model.layers.2.attn.wq_a.weight"))
    assert refusal(copied) == f"{copied}: 1 weight missing: layers.2.attn.wq_a.weight [32, 64]"


def test_many_missing_and_extra_weights(copied: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for expert in range(8):
            tensors[f"model.layers.2.ffn.expert.{expert}.w1"] = tensors.pop(
                f"model.layers.2.ffn.experts.{expert}.w1.weight"
            )

    edit(copied, change)
    text = refusal(copied)
    assert "8 weights missing: layers.2.ffn.experts.0.w1.weight [32, 64], " in text
    assert "8 weights that the configuration has no place for: model.layers.2.ffn.expert.0.w1, " in text
    assert text.endswith("and 5 more")


def test_wrong_shape(copied: Path) -> None:
    name = "model.layers.1.attn.compressor.ape"
    edit(copied, lambda tensors: tensors.update({name: torch.zeros(4, 64)}))
    assert refusal(copied) == f"{copied / SINGLE}: {name}: got shape [4, 64], expected [4, 128]"


def test_wrong_dtype(copied: Path) -> None:
    name = "model.layers.1.attn.wq_a.weight"
    edit(copied, lambda tensors: tensors.update({name: torch.zeros(32, 64, dtype=torch.int64)}))
    assert refusal(copied).startswith(
        f"{copied / SINGLE}: {name}: got dtype I64, expected one of F64, F32, F16, BF16, F8"
    )


def test_hash_table_outside_the_experts(copied: Path) -> None:
    name = "model.layers.0.ffn.gate.tid2eid"
    edit(copied, lambda tensors: tensors[name].__setitem__((5, 1), 8))
    assert refusal(copied) == f"{copied / SINGLE}: {name}: names an expert outside 0..7"


def test_hash_table_may_be_int32_and_repeat_an_expert(copied: Path) -> None:
    name = "model.layers.0.ffn.gate.tid2eid"
    edit(copied, lambda tensors: tensors.update({name: torch.zeros(512, 2, dtype=torch.int32)}))
    assert load_weights(copied, TINY)["layers.0.ffn.gate.tid2eid"].dtype == torch.int64


def test_one_tensor_under_two_spellings(copied: Path) -> None:
    edit(copied, lambda tensors: tensors.update({"lm_head.weight": tensors["head.weight"].clone()}))
    assert "head.weight is there twice, under two spellings" in refusal(copied)


def test_packed_experts_of_a_wrong_shape(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    write_checkpoint(tmp_path, TINY, weights, "hf-modules")
    name = "model.layers.1.mlp.experts.down_proj"
    edit(tmp_path, lambda tensors: tensors.update({name: torch.zeros(7, 64, 32)}))
    assert refusal(tmp_path) == f"{tmp_path / SINGLE}: {name}: got shape [7, 64, 32], expected [8, 64, 32]"


def test_no_weights_at_all(copied: Path, tmp_path: Path) -> None:
    (copied / SINGLE).rename(copied / "pytorch_model.bin")
    assert refusal(copied) == f"{copied}: no weights: neither {SINGLE} nor {INDEX} is there (no other format is read)"
    assert refusal(tmp_path / "nowhere").startswith(f"{tmp_path / 'nowhere'}: not a directory")


@pytest.mark.parametrize("size", [0, 4, 8, 100, 20000, -1])
def test_truncated_file(copied: Path, size: int) -> None:
    data = (copied / SINGLE).read_bytes()
    (copied / SINGLE).write_bytes(data[:size])
    assert refusal(copied).startswith(f"{copied / SINGLE}: truncated")


def test_file_with_a_tail(copied: Path) -> None:
    with (copied / SINGLE).open("ab") as stream:
        stream.write(b"\0")
    assert "damaged: the header announces" in refusal(copied)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"not json", "its header is not JSON"),
        (b"[]", "its header is no JSON object"),
        (b'{"a": 3}', "a: malformed entry"),
        (b'{"a": {"shape": [2], "dtype": "F32"}}', "a: malformed entry"),
    ],
)
def test_bad_header(copied: Path, header: bytes, text: str) -> None:
    (copied / SINGLE).write_bytes(struct.pack("<Q", len(header)) + header)
    assert text in refusal(copied)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(at=st.integers(0, 3000), byte=st.integers(0, 255))
def test_a_damaged_header_is_a_checkpoint_error(copied: Path, sound: Path, at: int, byte: int) -> None:
    data = bytearray((sound / SINGLE).read_bytes())
    data[at] = byte
    (copied / SINGLE).write_bytes(data)
    text = ""
    try:
        load_weights(copied, TINY)
    except CheckpointError as error:
        text = str(error)
    assert "\n" not in text


@pytest.fixture
def sharded(weights: dict[str, torch.Tensor], tmp_path: Path) -> Path:
    write_checkpoint(tmp_path, TINY, weights, "deepseek", 800_000)
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) == 3
    return tmp_path


def reindex(directory: Path, change: Callable[[dict[str, object]], object]) -> None:
    index = json.loads((directory / INDEX).read_text())
    change(index["weight_map"])
    (directory / INDEX).write_text(json.dumps(index))


def test_missing_shard(sharded: Path) -> None:
    shard = sharded / "model-00002-of-00003.safetensors"
    shard.unlink()
    assert refusal(sharded) == f"{shard}: cannot be read (No such file or directory)"


def test_index_and_shards_disagree(sharded: Path) -> None:
    reindex(sharded, lambda places: places.update(ghost="model-00001-of-00003.safetensors"))
    assert f"ghost: missing, though {INDEX} places it there" in refusal(sharded)
    reindex(sharded, lambda places: (places.pop("ghost"), places.pop("norm.weight")))
    assert f"norm.weight: not listed in {INDEX}" in refusal(sharded)


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/passwd", "x.bin", "", 3, ["a"], None])
def test_index_must_name_files_beside_it(sharded: Path, file: object) -> None:
    reindex(sharded, lambda places: places.update({"norm.weight": file}))
    assert f"{INDEX}: weight_map: got {file!r}, expected the name of a .safetensors file" in refusal(sharded)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": 1}', "\x00"])
def test_bad_index(sharded: Path, text: str) -> None:
    (sharded / INDEX).write_text(text)
    assert refusal(sharded).startswith(f"{sharded / INDEX}: ")


def test_shards_read_one_tensor_at_a_time(sharded: Path, weights: dict[str, torch.Tensor]) -> None:
    with Shards(sharded) as shards:
        assert set(shards.tensors) == set(weights)
        name = "layers.3.attn.attn_sink"
        assert torch.equal(shards.read(shards.tensors[name]), weights[name])
