"""The model on fp8 and fp4 matrices as they are stored, against the same model on their decoded values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import dsv4lab as lab
from dsv4lab.backends.weights import Fp4Weight, Fp8Weight, concatenated, kept, stacked
from dsv4lab.checkpoint.source import model_weights, stored_weights
from dsv4lab.checkpoint.synth import write_synthetic
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.model import ModelConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.runner import Runner
from dsv4lab.errors import ConfigError
from dsv4lab.kv.metadata import BatchItem
from dsv4lab.model.weights import build_weights

BLOCKS = replace(  # every matrix is made of whole blocks
    preset("tiny"),
    hidden_size=256,
    num_attention_heads=2,
    head_dim=128,
    q_lora_rank=128,
    o_lora_rank=128,
    index_n_heads=4,
    index_head_dim=32,
    moe_intermediate_size=128,
    compress_ratios=(0, 4, 128),
    num_hash_layers=1,
    dspark=None,
    mtp_layers=0,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("blocks")
    write_synthetic(path, BLOCKS, seed=3, layout="deepseek", weights="fp4")
    return str(path)


def logits(model: ModelConfig, weights: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    config = EngineConfig("tiny", streams="serial", max_running_requests=2, max_total_tokens=512)
    runner = Runner(model, weights, config)
    prompt = torch.randint(2, 512, (140,), generator=torch.Generator().manual_seed(1)).tolist()
    first = runner.all_logits([BatchItem(1, (1,), 0, tuple(prompt))], "prefill")
    return [first, runner.forward([BatchItem(1, (1,), 140, (7,))], "decode").logits]


def test_the_same_logits_as_decoded(checkpoint: str) -> None:
    stored = stored_weights(checkpoint, BLOCKS, 0, torch.float32)
    assert isinstance(stored["layers.1.attn.wq_a.weight"], Fp8Weight)
    assert isinstance(stored["layers.1.ffn.experts.3.w1.weight"], Fp4Weight)
    assert isinstance(stored["layers.1.attn.wo_a.weight"], torch.Tensor)
    wide = model_weights(checkpoint, BLOCKS, 0, torch.float32)
    for ours, reference in zip(logits(BLOCKS, stored), logits(BLOCKS, wide), strict=True):
        assert (ours - reference).abs().max() <= 1e-3
        assert reference.abs().max() > 1.0


def test_merged_weights_stay_quantised(checkpoint: str) -> None:
    layer = build_weights(BLOCKS, stored_weights(checkpoint, BLOCKS, 0, torch.float32)).layers[1]
    assert isinstance(layer.attention.qkv_a, Fp8Weight)
    assert layer.attention.qkv_a.shape == (256, 256)
    assert isinstance(layer.moe.w13, Fp4Weight)
    assert layer.moe.w13.shape == (8, 256, 256)
    assert isinstance(layer.moe.shared_w13, Fp8Weight)


def test_joined_weights_are_what_their_parts_say() -> None:
    codes = torch.randint(0, 120, (3, 128, 256), dtype=torch.uint8).view(torch.float8_e4m3fn)
    parts = [kept(c, torch.full((1, 2), 120 + i, dtype=torch.uint8)) for i, c in enumerate(codes)]
    assert all(isinstance(p, Fp8Weight) for p in parts)
    whole = [p for p in parts if p is not None]
    rows, layers = concatenated(whole), stacked(whole)
    assert isinstance(rows, Fp8Weight)
    assert isinstance(layers, Fp8Weight)
    dense = [p.decoded(torch.float32) for p in whole]
    assert torch.equal(rows.decoded(torch.float32), torch.cat(dense))
    assert torch.equal(layers.decoded(torch.float32), torch.stack(dense))
    mixed = concatenated([whole[0], dense[1]])
    assert isinstance(mixed, torch.Tensor)
    assert torch.equal(mixed, torch.cat(dense[:2]))
    assert kept(codes[0, :100], torch.zeros(1, 2, dtype=torch.uint8)) is None  # the last block is cut short


def test_two_formats_are_not_fused(checkpoint: str) -> None:
    from dsv4lab.model.weights import Experts

    with pytest.raises(ConfigError, match="are stored in two formats"):
        build_weights(BLOCKS, stored_weights(checkpoint, BLOCKS, 0, torch.float32), Experts(fused=True))


def test_an_engine_serves_stored_weights(checkpoint: str) -> None:
    with lab.open(checkpoint, weights="stored") as stored, lab.open(checkpoint) as wide:
        assert (
            stored.generate([5, 6, 7], max_new_tokens=12).tokens == wide.generate([5, 6, 7], max_new_tokens=12).tokens
        )


def test_a_preset_has_stored_weights_of_its_own() -> None:
    weights = stored_weights("tiny", preset("tiny"), 0, torch.float32)
    again = stored_weights("tiny", preset("tiny"), 0, torch.float32)
    expert, other = weights["layers.3.ffn.experts.0.w1.weight"], again["layers.3.ffn.experts.0.w1.weight"]
    assert isinstance(expert, Fp4Weight)
    assert isinstance(other, Fp4Weight)
    assert torch.equal(expert.codes, other.codes)
