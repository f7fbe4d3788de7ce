"""``config.json`` of a :class:`ModelConfig`, in either layout that :mod:`dsv4lab.config.from_json` reads."""

from __future__ import annotations

from typing import Any

from dsv4lab.config.draft_json import draft_fields
from dsv4lab.config.from_json import ARCHITECTURE, MODEL_TYPE
from dsv4lab.config.model import ModelConfig, YarnScaling
from dsv4lab.config.schedule_json import HASH, LAYER_TYPES, SCORE

_SAME_NAME = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "qk_rope_head_dim",
    "q_lora_rank", "o_lora_rank", "o_groups", "sliding_window", "index_n_heads", "index_head_dim", "index_topk",
    "n_routed_experts", "num_experts_per_tok", "n_shared_experts", "moe_intermediate_size", "routed_scaling_factor",
    "scoring_func", "norm_topk_prob", "swiglu_limit", "hc_mult", "hc_sinkhorn_iters", "hc_eps", "rms_norm_eps",
    "rope_theta", "compress_rope_theta", "max_position_embeddings", "bos_token_id",
)  # fmt: skip


def transformers_config(config: ModelConfig, dtype: str) -> dict[str, Any]:
    """As ``save_pretrained`` writes it: layer types by name, both rope tables spelled out."""
    part = config.qk_rope_head_dim / config.head_dim
    compress = {"rope_type": "default", **_yarn(config.yarn, "rope_type")}
    if config.yarn is not None:
        compress["attention_factor"] = 1.0
    return {
        **_common(config),
        "dtype": dtype,
        "layer_types": [LAYER_TYPES[ratio] for ratio in config.compress_ratios],
        "compress_rates": {LAYER_TYPES[ratio]: ratio for ratio in (4, 128)},
        "mlp_layer_types": [HASH if config.is_hash_layer(i) else SCORE for i in range(config.num_hidden_layers)],
        "partial_rotary_factor": part,
        "rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": config.rope_theta, "partial_rotary_factor": part},
            "compress": {**compress, "rope_theta": config.compress_rope_theta, "partial_rotary_factor": part},
        },
    }


def released_config(config: ModelConfig, dtype: str) -> dict[str, Any]:
    """As the released checkpoints have it: compression ratios by layer, one ``rope_scaling``."""
    return {
        **_common(config),
        "torch_dtype": dtype,
        "compress_ratios": [*config.compress_ratios, *[0] * (config.dspark.stages if config.dspark else 0)],
        "num_hash_layers": config.num_hash_layers,
        "topk_method": "noaux_tc",
        "rope_scaling": _yarn(config.yarn, "type") or None,
    }


def _common(config: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        **{name: getattr(config, name) for name in _SAME_NAME},
        **draft_fields(config),
        "eos_token_id": config.eos_token_id if config.eos_token_id >= 0 else None,
        "num_key_value_heads": 1,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
    }


def _yarn(yarn: YarnScaling | None, kind: str) -> dict[str, Any]:
    if yarn is None:
        return {}
    return {
        kind: "yarn",
        "factor": yarn.factor,
        "beta_fast": yarn.beta_fast,
        "beta_slow": yarn.beta_slow,
        "original_max_position_embeddings": yarn.original_max_position,
    }
