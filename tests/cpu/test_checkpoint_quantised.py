"""Quantised synthetic checkpoints: formats as released, made and read in bounded memory, inspected, refused."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from dsv4lab.checkpoint import hashing
from dsv4lab.checkpoint.decode import decode_fp4, decode_fp8
from dsv4lab.checkpoint.inspect import inspect_checkpoint
from dsv4lab.checkpoint.load import load_draft_weights, load_weights, stream_stored, stream_weights
from dsv4lab.checkpoint.names import Role, TensorSpec, expected_tensors
from dsv4lab.checkpoint.shards import Shards
from dsv4lab.checkpoint.stored import (
    WEIGHT_FORMATS,
    Kind,
    StoredWeight,
    code_deviation,
    random_checkpoint,
    random_stored,
    scale_shape,
    stored_bytes,
    stored_kind,
)
from dsv4lab.checkpoint.synth import FORMATS, synthetic_tensors, write_synthetic
from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.cli.main import main
from dsv4lab.config.from_json import load_model_config
from dsv4lab.config.presets import preset
from dsv4lab.errors import CheckpointError, ConfigError, UsageError

TINY = preset("tiny")
EXPERT = "layers.3.ffn.experts.0.w1.weight"


def decoded(stored: StoredWeight) -> torch.Tensor:
    if stored.scale is None:
        return stored.values
    decode = decode_fp4 if stored.values.dtype == torch.int8 else decode_fp8
    return decode(stored.values, stored.scale, "weight")


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("weights", WEIGHT_FORMATS)
def test_round_trip(tmp_path: Path, weights: str, layout: str) -> None:
    total = write_synthetic(tmp_path, TINY, seed=3, layout=layout, weights=weights, max_shard_bytes=200_000)
    config = load_model_config(tmp_path)
    assert replace(config, name="tiny", mtp_layers=1, dspark=TINY.dspark) == TINY
    assert total == stored_bytes(expected_tensors(TINY), weights) or weights == "bfloat16"
    loaded = load_weights(tmp_path, config)
    if weights in ("float32", "bfloat16"):
        expected = random_weights(TINY, 3, getattr(torch, weights))
    else:
        made = random_checkpoint(expected_tensors(TINY), TINY, 3, weights)
        expected = {name: decoded(stored) for name, stored in made}
    for name, tensor in loaded.items():
        assert torch.equal(tensor, expected[name].to(tensor.dtype)), name
    assert loaded["layers.0.ffn.gate.tid2eid"].dtype == torch.int64
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    shards = sorted(set(index["weight_map"].values()))
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    assert index["metadata"]["total_size"] == total
    assert sorted(p.name for p in tmp_path.glob("*.safetensors")) == shards
    assert not list(tmp_path.glob(".shard*"))


@pytest.mark.parametrize("kind", ["mtp", "dspark"])
def test_draft_layers_are_written_and_read(tmp_path: Path, kind: Any) -> None:
    write_synthetic(tmp_path, TINY, weights="fp4", draft=kind)
    config = load_model_config(tmp_path)
    draft = load_draft_weights(tmp_path, config, kind)
    expected = dict(random_checkpoint(synthetic_tensors(TINY, kind), TINY, 0))
    assert all(torch.equal(draft[name], decoded(expected[name]).to(draft[name].dtype)) for name in draft)
    found = inspect_checkpoint(tmp_path)
    assert (found.draft, found.problem, found.weights) == (kind, None, "fp4")


@pytest.mark.parametrize(("model", "count", "gigabytes"), [("flash", 72_317, 166.9), ("pro", 149_782, 892.7)])
def test_inventory_of_the_releases(model: str, count: int, gigabytes: float) -> None:
    """Tensors and bytes of Flash-0731 and Pro-0813, their drafters included (dsv4-spec 1.1)."""
    tensors = synthetic_tensors(preset(model), "dspark")
    kinds = [stored_kind(name, spec, "fp4") for name, spec in tensors.items()]
    assert len(kinds) + sum(kind in (Kind.FP8, Kind.FP4) for kind in kinds) == count
    assert stored_bytes(tensors, "fp4") / 1e9 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(
    ("name", "kind", "scale"),
    [
        ("layers.2.attn.wq_a.weight", Kind.FP8, (8, 32)),
        ("layers.2.attn.wq_b.weight", Kind.FP8, (256, 8)),
        ("layers.2.attn.wkv.weight", Kind.FP8, (4, 32)),
        ("layers.2.attn.wo_a.weight", Kind.FP8, (64, 32)),
        ("layers.2.attn.indexer.wq_b.weight", Kind.FP8, (64, 8)),
        ("layers.2.attn.compressor.wkv.weight", Kind.BF16, None),
        ("layers.2.attn.indexer.compressor.wkv.weight", Kind.BF16, None),
        ("layers.2.attn.indexer.weights_proj.weight", Kind.BF16, None),
        ("layers.2.attn.compressor.ape", Kind.FP32, None),
        ("layers.2.attn.attn_sink", Kind.FP32, None),
        ("layers.2.attn_norm.weight", Kind.BF16, None),
        ("layers.2.ffn.gate.weight", Kind.BF16, None),
        ("layers.2.ffn.gate.tid2eid", Kind.INT64, None),
        ("layers.3.ffn.gate.bias", Kind.FP32, None),
        ("layers.2.ffn.experts.7.w1.weight", Kind.FP4, (2048, 128)),
        ("layers.2.ffn.experts.7.w2.weight", Kind.FP4, (4096, 64)),
        ("layers.2.ffn.shared_experts.w2.weight", Kind.FP8, (32, 16)),
        ("layers.2.hc_attn_fn", Kind.FP32, None),
        ("embed.weight", Kind.BF16, None),
        ("mtp.0.main_proj.weight", Kind.FP8, (32, 96)),
        ("mtp.2.markov_head.markov_w1.weight", Kind.BF16, None),
        ("mtp.1.ffn.experts.0.w3.weight", Kind.FP4, (2048, 128)),
    ],
)
def test_formats_of_flash(name: str, kind: Kind, scale: tuple[int, int] | None) -> None:
    """The table of dsv4-spec 9.1."""
    spec = synthetic_tensors(preset("flash"), "dspark")[name]
    assert stored_kind(name, spec, "fp4") is kind
    assert scale is None or scale_shape(spec.shape, kind) == scale
    assert stored_kind(name, spec, "fp8") is (Kind.FP8 if kind is Kind.FP4 else kind)


@pytest.mark.parametrize("kind", [Kind.FP8, Kind.FP4])
def test_decoded_values_have_the_scale_of_plain_ones(kind: Kind) -> None:
    name = EXPERT if kind is Kind.FP4 else "layers.1.attn.wq_b.weight"
    spec = TensorSpec((2048, 512), Role.LINEAR)
    stored = random_stored(name, spec, TINY, 1, "fp4")
    values, scale = decoded(stored).double(), stored.scale
    assert scale is not None
    assert stored.values.dtype == (torch.int8 if kind is Kind.FP4 else torch.float8_e4m3fn)
    assert bool(torch.isfinite(values).all())
    assert float(values.std()) * math.sqrt(512) == pytest.approx(1.0, rel=0.05)
    assert abs(float(values.mean())) < 1e-3
    assert len(scale.view(torch.uint8).unique()) == 2
    assert code_deviation(kind) == pytest.approx({Kind.FP4: 2.926, Kind.FP8: 1.7}[kind], rel=0.05)


@given(begin=st.integers(0, 5000), count=st.integers(0, 300), key=st.integers(-(2**63), 2**63 - 1))
def test_any_part_of_a_stream_is_the_same(begin: int, count: int, key: int) -> None:
    whole = hashing.random_bytes(key, 0, 5300)
    assert torch.equal(hashing.random_bytes(key, begin, count), whole[begin : begin + count])


def test_streams_look_random_and_differ() -> None:
    data = [
        hashing.random_bytes(hashing.tensor_key(seed, name), 0, 1 << 16)
        for seed, name in ((0, "a"), (0, "b"), (1, "a"))
    ]
    for stream in data:
        counts = torch.bincount(stream.long(), minlength=256).double()
        chi2 = float(((counts - 256) ** 2 / 256).sum())
        assert 150 < chi2 < 370, "255 degrees of freedom"
    assert not torch.equal(data[0], data[1])
    assert not torch.equal(data[0], data[2])


def test_bits_are_pinned() -> None:
    """Whatever the machine, device or chunk."""
    assert hashing.random_bytes(1, 0, 8).tolist() == hashing.random_bytes(1, 0, 16)[:8].tolist()
    word = int.from_bytes(bytes(hashing.random_bytes(0, 8, 8).tolist()), "little")
    assert word == 0xE220A8397B1DCDAF, "splitmix64 of seed 0, first output"


class _Watch(TorchDispatchMode):
    """Largest tensor of each dtype that any operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.largest: dict[torch.dtype, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.largest[tensor.dtype] = max(self.largest.get(tensor.dtype, 0), tensor.numel())
        return out


@pytest.mark.parametrize("name", [EXPERT, "layers.1.attn.wq_b.weight"])
def test_no_wide_copy_is_ever_made(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    spec = TensorSpec((2048, 512), Role.LINEAR)
    plain = random_stored(name, spec, TINY, 1, "fp4")
    monkeypatch.setattr(hashing, "CHUNK", 4096)
    with _Watch() as watch:
        stored = random_stored(name, spec, TINY, 1, "fp4")
    wide = {dtype: count for dtype, count in watch.largest.items() if dtype.itemsize > 1}
    assert wide
    assert max(wide.values()) <= 4096, f"of {2048 * 512} weights"
    assert torch.equal(stored.values.view(torch.uint8), plain.values.view(torch.uint8)), "chunks do not show"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compares a GPU with the CPU, and there is no GPU")
@pytest.mark.parametrize("weights", ["fp4", "fp8"])
def test_a_gpu_makes_the_same_bits(weights: str) -> None:
    tensors = expected_tensors(TINY)
    here, there = (random_checkpoint(tensors, TINY, 7, weights, device) for device in ("cpu", "cuda"))
    for (name, a), (_, b) in zip(here, there, strict=True):
        assert torch.equal(a.values.view(torch.uint8), b.values.cpu().view(torch.uint8)), name
        assert a.scale is None or torch.equal(a.scale.view(torch.uint8), b.scale.cpu().view(torch.uint8)), name


def test_stored_weights_come_as_they_are(tmp_path: Path) -> None:
    write_synthetic(tmp_path, TINY, weights="fp4")
    made = dict(random_checkpoint(expected_tensors(TINY), TINY, 0))
    seen = []
    for name, stored in stream_stored(
        tmp_path, load_model_config(tmp_path), lambda done, total: seen.append((done, total))
    ):
        assert stored.values.dtype == made[name].values.dtype
        assert torch.equal(stored.values.view(torch.uint8), made[name].values.view(torch.uint8))
        assert (stored.scale is None) == (made[name].scale is None)
    assert seen[-1] == (len(made), len(made))


PEAK = """
import resource, sys
from dsv4lab.checkpoint.load import stream_weights
from dsv4lab.config.from_json import load_model_config
config = load_model_config(sys.argv[1])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
names = iter(stream_weights(sys.argv[1], config))
next(names)
before, total = peak(), 0
for _, tensor in names:
    total += tensor.nbytes
    del tensor
print(peak() - before, total // 1024)
"""


def test_streaming_holds_one_tensor(tmp_path: Path) -> None:
    """Peak memory while 30 MB of fp8 pass by, 110 MB once decoded to fp32, in a process of its own."""
    big = replace(TINY, n_routed_experts=16, moe_intermediate_size=256, hidden_size=512)
    total = write_synthetic(tmp_path, big, weights="fp8", max_shard_bytes=4 << 20)
    done = subprocess.run([sys.executable, "-c", PEAK, str(tmp_path)], capture_output=True, text=True, check=True)
    grown, passed = (int(word) for word in done.stdout.split())
    assert total > 25 << 20
    assert passed << 10 > 100 << 20
    assert grown << 10 < 12 << 20, f"{grown} KiB more, {total >> 10} KiB on disk, {passed} KiB decoded"


def test_reading_checks_sizes_and_dtypes(tmp_path: Path) -> None:
    write_synthetic(tmp_path, TINY, weights="fp8")
    with Shards(tmp_path) as shards:
        stored = shards.tensors["embed.weight"]
        with pytest.raises(CheckpointError, match=r"embed\.weight: 65536 bytes do not hold \[512, 65\] BF16"):
            shards.read(replace(stored, shape=(512, 65)))
        with pytest.raises(CheckpointError, match="dtype F8_E5M2 is none that this reads"):
            shards.read(replace(stored, dtype="F8_E5M2"))
        with pytest.raises(CheckpointError, match="cannot be read"):
            shards.read(replace(stored, begin=stored.begin + 10**9))


def test_a_failed_run_leaves_no_checkpoint(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_synthetic(tmp_path, TINY, max_shard_bytes=50_000, progress=stop)
    assert list(tmp_path.iterdir()) == []
    write_synthetic(tmp_path, TINY)
    with pytest.raises(CheckpointError, match="already there"):
        write_synthetic(tmp_path, TINY)
    for changes, text in (({"layout": "gguf"}, "checkpoint format 'gguf' is unknown"), ({"weights": "int4"}, "'int4'")):
        with pytest.raises(UsageError, match=text):
            write_synthetic(tmp_path / "other", TINY, **changes)  # type: ignore[arg-type]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(("layout", "weights"), [("deepseek", "fp4"), ("hf", "float32")])
def test_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], repo_root: Path, layout: str, weights: str
) -> None:
    place = str(tmp_path / "made")
    made = printed(capsys, "checkpoint", "synth", "--preset", "tiny", "--format", layout, place)
    assert (made["weights"], made["files"], made["tensors"]) == (weights, 1, 210)
    found = printed(capsys, "checkpoint", "inspect", place)
    assert (found["loadable"], found["problem"], found["weights"]) == (True, None, weights)
    assert found["bytes"] == made["bytes"] == sum(group["bytes"] for group in found["groups"])
    assert found["tensors"] == sum(group["tensors"] for group in found["groups"])
    assert "other" not in {group["part"] for group in found["groups"]}
    readme = (repo_root / "README.md").read_text(encoding="utf-8")
    for action, result in (("synth", made), ("inspect", found)):
        (row,) = re.findall(rf"^\| `dsv4lab checkpoint {action}.*?` \| (.+) \|$", readme, flags=re.MULTILINE)
        listed = set(result) | (set(result["groups"][0]) if action == "inspect" else set())
        assert set(re.findall(r"`([a-z_0-9]+)`", row)) == listed
    assert main(["checkpoint", "inspect", place]) == 0
    assert "loads: every tensor has the name" in capsys.readouterr().out


def test_the_preset_and_its_float32_checkpoint_compute_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "made")
    printed(capsys, "checkpoint", "synth", "--format", "deepseek", "--weights", "float32", "--seed", "4", place)
    tokens = ("--tokens", "5,9,12")
    assert printed(capsys, "logits", "--checkpoint", place, *tokens) == printed(
        capsys, "logits", "--preset", "tiny", "--seed", "4", *tokens
    )


def test_inspect_names_what_keeps_it_from_loading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_synthetic(tmp_path, TINY)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "moe_intermediate_size": 64}))
    assert main(["checkpoint", "inspect", str(tmp_path), "--json"]) == 2
    out, error = capsys.readouterr()
    found = json.loads(out)
    assert found["loadable"] is False
    assert "experts.0.w1.weight: got shape [32, 32], expected [64, 64]" in found["problem"]
    assert error == f"dsv4lab: error: {found['problem']}\n"


def test_v41_is_refused_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_synthetic(tmp_path, TINY)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "model_type": "deepseek_v41", "architectures": ["DeepseekV41ForCausalLM"]})
    )
    for command in (
        ("checkpoint", "inspect", str(tmp_path)),
        ("logits", "--checkpoint", str(tmp_path), "--tokens", "5"),
    ):
        assert main(list(command)) == 2
        assert "V4.1 shares compressed keys between layers" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"V4\.1 shares compressed keys"):
        list(stream_weights(tmp_path, load_model_config(tmp_path)))


def test_a_disk_too_small_is_told_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsv4lab.cli import checkpoint as command

    monkeypatch.setattr(command.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10 * 2**30})())
    place = tmp_path / "made"
    assert main(["checkpoint", "synth", "--preset", "flash", str(place)]) == 2
    assert "the weights take 145 GiB, 10.0 GiB are free there" in capsys.readouterr().err
    assert not place.exists()
