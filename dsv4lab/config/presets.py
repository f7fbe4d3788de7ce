"""Named model configurations: two that run on a laptop and the two released models (dsv4-spec 1.1, 1.2)."""

from __future__ import annotations

from dataclasses import replace

from dsv4lab.config.model import DsparkConfig, ModelConfig, YarnScaling
from dsv4lab.errors import ConfigError


def _tiny() -> ModelConfig:
    """Every layer kind and both routers, in half a million weights; top-k binds from 68 tokens on."""
    return ModelConfig(
        name="tiny",
        vocab_size=512,
        hidden_size=64,
        num_attention_heads=4,
        head_dim=64,
        qk_rope_head_dim=16,
        q_lora_rank=32,
        o_lora_rank=32,
        o_groups=2,
        sliding_window=128,
        compress_ratios=(0, 4, 128, 4),
        index_n_heads=8,
        index_head_dim=32,
        index_topk=16,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        moe_intermediate_size=32,
        num_hash_layers=2,
        yarn=YarnScaling(original_max_position=1024),
        max_position_embeddings=16384,
        mtp_layers=1,
        dspark=DsparkConfig(target_layer_ids=(1, 2, 3), block_size=6, markov_rank=16, noise_token_id=511),
    )


def _demo() -> ModelConfig:
    """Released head width; a compressor product (8 or 16 MiB of fp32 weights) keeps one CPU core busy for a while."""
    return ModelConfig(
        name="demo",
        vocab_size=4096,
        hidden_size=2048,
        num_attention_heads=8,
        head_dim=512,
        qk_rope_head_dim=64,
        q_lora_rank=512,
        o_lora_rank=256,
        o_groups=4,
        sliding_window=128,
        compress_ratios=(0, 4, 128, 4, 128, 4),
        index_n_heads=16,
        index_head_dim=128,
        index_topk=64,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        moe_intermediate_size=256,
        num_hash_layers=2,
        yarn=YarnScaling(original_max_position=4096),
        max_position_embeddings=65536,
    )


def _flash() -> ModelConfig:
    """DeepSeek-V4-Flash, release 0731."""
    return ModelConfig(
        name="flash",
        vocab_size=129280,
        hidden_size=4096,
        num_attention_heads=64,
        head_dim=512,
        qk_rope_head_dim=64,
        q_lora_rank=1024,
        o_lora_rank=1024,
        o_groups=8,
        sliding_window=128,
        compress_ratios=(0, 0) + (4, 128) * 20 + (4,),
        index_n_heads=64,
        index_head_dim=128,
        index_topk=512,
        n_routed_experts=256,
        num_experts_per_tok=6,
        n_shared_experts=1,
        moe_intermediate_size=2048,
        num_hash_layers=3,
        routed_scaling_factor=1.5,
        yarn=YarnScaling(),
        dspark=DsparkConfig(target_layer_ids=(40, 41, 42)),
    )


def _pro() -> ModelConfig:
    """DeepSeek-V4-Pro, release 0813; it has no pure sliding-window layer."""
    return ModelConfig(
        name="pro",
        vocab_size=129280,
        hidden_size=7168,
        num_attention_heads=128,
        head_dim=512,
        qk_rope_head_dim=64,
        q_lora_rank=1536,
        o_lora_rank=1024,
        o_groups=16,
        sliding_window=128,
        compress_ratios=(128, 128) + (4, 128) * 29 + (4,),
        index_n_heads=64,
        index_head_dim=128,
        index_topk=1024,
        n_routed_experts=384,
        num_experts_per_tok=6,
        n_shared_experts=1,
        moe_intermediate_size=3072,
        num_hash_layers=3,
        routed_scaling_factor=2.5,
        yarn=YarnScaling(),
        dspark=DsparkConfig(target_layer_ids=(58, 59, 60), markov_rank=512),
    )


def _preview(config: ModelConfig) -> ModelConfig:
    """The April release of the same model: one serial draft layer instead of the block drafter."""
    return replace(config, name=f"{config.name}-preview", dspark=None, mtp_layers=1)


PRESETS: dict[str, ModelConfig] = {
    config.name: config for config in (_tiny(), _demo(), _flash(), _pro(), _preview(_flash()), _preview(_pro()))
}


def first_layers(config: ModelConfig, count: int | None) -> ModelConfig:
    """The first ``count`` layers of a preset (None: all), for devices that do not hold it whole.

    A block drafter reads layers as far from the end as before; it is left out where there are not as many. Raises
    :class:`ConfigError` for more layers than there are, and for a model that is no preset.
    """
    if count is None:
        return config
    if PRESETS.get(config.name) != config:
        raise ConfigError(f"num_layers = {count}: only presets are cut, and {config.name} is none")
    if count > config.num_hidden_layers:
        raise ConfigError(f"num_layers = {count}: {config.name} has {config.num_hidden_layers}")
    cut = config.num_hidden_layers - count
    drafter = config.dspark
    if drafter is not None:
        taps = tuple(at - cut for at in drafter.target_layer_ids)
        drafter = replace(drafter, target_layer_ids=taps) if min(taps) >= 0 else None
    return replace(
        config,
        name=f"{config.name}, {count} layers",
        compress_ratios=config.compress_ratios[:count],
        num_hash_layers=min(config.num_hash_layers, count),
        dspark=drafter,
    )


def preset(name: str) -> ModelConfig:
    """The preset called ``name``; :class:`ConfigError` lists the names when there is none."""
    try:
        return PRESETS[name]
    except KeyError:
        raise ConfigError(f"model preset {name!r} is unknown; it takes one of {', '.join(PRESETS)}") from None
