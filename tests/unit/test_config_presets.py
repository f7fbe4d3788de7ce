"""Presets: the released values, and what tiny and demo promise."""

import math

import pytest

from dsv4lab.checkpoint.names import expected_tensors
from dsv4lab.config.from_json import model_config_from_json
from dsv4lab.config.model import LayerKind, YarnScaling
from dsv4lab.config.presets import PRESETS, first_layers, preset
from dsv4lab.config.to_json import released_config, transformers_config
from dsv4lab.errors import ConfigError


def parameters(name: str) -> int:
    return sum(math.prod(spec.shape) for spec in expected_tensors(preset(name)).values())


def test_names() -> None:
    assert list(PRESETS) == ["tiny", "demo", "flash", "pro", "flash-preview", "pro-preview"]
    assert all(config.name == name for name, config in PRESETS.items())


def test_unknown_preset_lists_the_names() -> None:
    with pytest.raises(ConfigError, match=r"'huge' is unknown; it takes one of tiny, demo, flash, pro"):
        preset("huge")


def test_flash_schedule() -> None:
    flash = preset("flash")
    kinds = [flash.kind(layer) for layer in range(flash.num_hidden_layers)]
    assert len(kinds) == 43
    assert kinds[:2] == [LayerKind.SWA, LayerKind.SWA]
    assert all(kinds[layer] is LayerKind.CSA for layer in range(2, 43, 2))
    assert all(kinds[layer] is LayerKind.HCA for layer in range(3, 42, 2))
    assert [flash.is_hash_layer(layer) for layer in (0, 2, 3)] == [True, True, False]


def test_pro_schedule() -> None:
    pro = preset("pro")
    assert pro.num_hidden_layers == 61
    assert pro.compress_ratios.count(0) == 0
    assert pro.compress_ratios.count(4) == 30
    assert pro.compress_ratios.count(128) == 31
    assert pro.compress_ratios[2] == pro.compress_ratios[60] == 4


def test_released_models_have_their_published_size() -> None:
    assert parameters("flash") == pytest.approx(284e9, rel=0.005)
    assert parameters("pro") == pytest.approx(1.6e12, rel=0.02)


@pytest.mark.parametrize("name", ["flash", "pro"])
def test_released_constants(name: str) -> None:
    config = preset(name)
    assert config.yarn == YarnScaling(16.0, 32.0, 1.0, 65536)
    assert (config.rope_theta, config.compress_rope_theta) == (10000.0, 160000.0)
    assert (config.head_dim, config.qk_rope_head_dim, config.sliding_window) == (512, 64, 128)
    assert (config.hc_mult, config.hc_sinkhorn_iters, config.hc_eps) == (4, 20, 1e-6)
    assert config.num_attention_heads // config.o_groups * config.head_dim == 4096
    assert config.softmax_scale == 512**-0.5


def test_tiny_has_every_kind_and_a_top_k_that_binds() -> None:
    tiny = preset("tiny")
    assert set(tiny.compress_ratios) == {0, 4, 128}
    hashed = {tiny.is_hash_layer(layer) for layer in range(tiny.num_hidden_layers)}
    assert hashed == {True, False}
    assert tiny.index_topk < 300 // 4


def test_demo_weighs_less_than_a_gigabyte_and_has_a_heavy_compressor() -> None:
    tensors = expected_tensors(preset("demo"))
    assert parameters("demo") * 4 < 10**9
    compressor = [math.prod(s.shape) for n, s in tensors.items() if ".attn.compressor.wkv." in n]
    assert min(compressor) * 2 * 4 >= 8 * 2**20  # wkv and wgate, fp32


def test_a_cut_preset_keeps_its_block_drafter_on_its_last_layers() -> None:
    flash, part = preset("flash"), first_layers(preset("flash"), 5)
    assert flash.dspark is not None
    assert part.dspark is not None
    assert part.compress_ratios == flash.compress_ratios[:5]
    assert (flash.dspark.target_layer_ids, part.dspark.target_layer_ids) == ((40, 41, 42), (2, 3, 4))
    assert part.dspark.block_size == flash.dspark.block_size
    assert first_layers(flash, 2).dspark is None, "it reads three"
    with pytest.raises(ConfigError, match="num_layers = 44: flash has 43"):
        first_layers(flash, 44)


@pytest.mark.parametrize("write", [transformers_config, released_config])
@pytest.mark.parametrize("name", list(PRESETS))
def test_config_json_round_trip(name: str, write) -> None:
    assert model_config_from_json(write(preset(name), "bfloat16"), f"{name}/config.json") == preset(name)
