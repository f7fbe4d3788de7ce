"""``config.json`` to :class:`ModelConfig`, checked field by field.

Reads what transformers' ``save_pretrained`` writes for this model and what the released checkpoints carry. Fields that
shape the result are required; what the runtime does not do is refused, never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dsv4lab.config import checks
from dsv4lab.config.draft_json import read_dspark, read_mtp_layers
from dsv4lab.config.fields import Fields
from dsv4lab.config.model import ModelConfig
from dsv4lab.config.rope_json import RopeSettings, read_rope
from dsv4lab.config.schedule_json import read_hash_layers, read_ratios
from dsv4lab.errors import ConfigError

FILE_NAME = "config.json"
ARCHITECTURE = "DeepseekV4ForCausalLM"
MODEL_TYPE = "deepseek_v4"
_MAX_LAYERS = 4096
_NO_EOS = -1


def load_model_config(directory: str | Path) -> ModelConfig:
    """The configuration of the checkpoint in ``directory``; :class:`ConfigError` when it cannot be had."""
    path = Path(directory) / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path}: cannot be read ({reason}); a checkpoint directory holds a {FILE_NAME}") from None
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: not JSON that can be read ({type(error).__name__}: {error})") from None
    return model_config_from_json(data, str(path))


def model_config_from_json(data: object, source: str) -> ModelConfig:
    """The model that the JSON object ``data`` describes; ``source`` is named in every :class:`ConfigError`."""
    if not isinstance(data, Mapping):
        raise checks.mismatch(source, "(whole file)", data, "a JSON object")
    config = Fields(data, source)
    _check_kind(config)
    _check_supported(config)
    layers = config.integer("num_hidden_layers", 1, _MAX_LAYERS)
    head_dim = config.integer("head_dim", 2)
    rope = read_rope(config, head_dim)
    heads = config.integer("num_attention_heads")
    experts = config.integer("n_routed_experts")
    vocab = config.integer("vocab_size")
    return ModelConfig(
        name=Path(source).parent.name or source,
        vocab_size=vocab,
        hidden_size=config.integer("hidden_size"),
        num_attention_heads=heads,
        head_dim=head_dim,
        qk_rope_head_dim=rope.rope_dim,
        q_lora_rank=config.integer("q_lora_rank"),
        o_lora_rank=config.integer("o_lora_rank"),
        o_groups=_groups(config, heads),
        sliding_window=config.integer("sliding_window"),
        compress_ratios=read_ratios(config, layers),
        index_n_heads=config.integer("index_n_heads"),
        index_head_dim=_index_head_dim(config, rope),
        index_topk=config.integer("index_topk"),
        n_routed_experts=experts,
        num_experts_per_tok=config.integer("num_experts_per_tok", 1, experts),
        n_shared_experts=config.integer("n_shared_experts", 1, 1),
        moe_intermediate_size=config.integer("moe_intermediate_size"),
        num_hash_layers=read_hash_layers(config, layers),
        routed_scaling_factor=config.number("routed_scaling_factor"),
        scoring_func=config.choice("scoring_func", ("sqrtsoftplus",)),
        norm_topk_prob=True,
        swiglu_limit=config.number("swiglu_limit"),
        hc_mult=config.integer("hc_mult", 1, 64),
        hc_sinkhorn_iters=config.integer("hc_sinkhorn_iters", 1, 10000),
        hc_eps=config.number("hc_eps"),
        rms_norm_eps=config.number("rms_norm_eps"),
        rope_theta=rope.theta,
        compress_rope_theta=rope.compress_theta,
        yarn=rope.yarn,
        max_position_embeddings=config.integer("max_position_embeddings", default=1048576),
        bos_token_id=config.integer("bos_token_id", 0, vocab - 1, default=0),
        eos_token_id=_eos(config, vocab),
        mtp_layers=read_mtp_layers(config),
        dspark=read_dspark(config, layers, vocab),
    )


def _check_kind(config: Fields) -> None:
    kind = config.raw("model_type")
    if isinstance(kind, str) and kind.startswith("deepseek_v41"):
        raise config.error(
            "model_type",
            f"{MODEL_TYPE}; V4.1 shares compressed keys between layers, has ratios 1 and 2, a two-level indexer and "
            "engram memory, none of which this runtime computes",
        )
    config.choice("model_type", (MODEL_TYPE,))
    architectures = config.raw("architectures")
    if architectures is not None and (not isinstance(architectures, list) or ARCHITECTURE not in architectures):
        raise config.error("architectures", f"a list with {ARCHITECTURE}")


def _check_supported(config: Fields) -> None:
    config.same("attention_bias", False, "projections with a bias are not supported")
    config.same("mlp_bias", False, "experts with a bias are not supported")
    config.same("tie_word_embeddings", False, "the model has an output head of its own")
    config.same("num_key_value_heads", 1, "one head of 512 is key and value at once")
    config.same("hidden_act", "silu", "no other activation is supported")
    config.same("norm_topk_prob", True, "routing weights are always normalised")
    config.same("topk_method", "noaux_tc", "no other expert selection is supported")
    if config.has("quantization_config"):
        _check_quantization(config.child("quantization_config"))
    if config.has("expert_dtype"):
        config.choice("expert_dtype", ("fp4", "fp8"))


def _check_quantization(quantization: Fields) -> None:
    """Only what :mod:`dsv4lab.checkpoint.decode` reads; the tensors themselves say where it applies."""
    quantization.choice("quant_method", ("fp8",))
    quantization.choice("fmt", ("e4m3",), default="e4m3")
    quantization.choice("scale_fmt", ("ue8m0",), default="ue8m0")
    quantization.choice("activation_scheme", ("dynamic",), default="dynamic")
    if quantization.has("expert_dtype"):
        quantization.choice("expert_dtype", ("fp4", "fp8"))
    if quantization.has("weight_block_size") and len(quantization.integers("weight_block_size", 1)) != 2:
        raise quantization.error("weight_block_size", "two integers, rows and columns of a block")


def _groups(config: Fields, heads: int) -> int:
    groups = config.integer("o_groups")
    if heads % groups:
        raise config.error("o_groups", f"a divisor of num_attention_heads = {heads}")
    return groups


def _index_head_dim(config: Fields, rope: RopeSettings) -> int:
    """The indexer rotates as many trailing dimensions as attention does."""
    dim = config.integer("index_head_dim")
    if dim < rope.rope_dim:
        raise config.error("index_head_dim", f"at least the rope dimensions, {rope.rope_dim}")
    return dim


def _eos(config: Fields, vocab: int) -> int:
    """One end token; null means that none ends a text, and reads as -1."""
    value = config.raw("eos_token_id")
    if isinstance(value, list):
        if len(value) != 1:
            raise config.error("eos_token_id", "one token, alone or in a list of one")
        return checks.integer(config.source, config.full("eos_token_id[0]"), value[0], 0, vocab - 1)
    absent = _NO_EOS if config.is_null("eos_token_id") else 1
    return config.integer("eos_token_id", 0, vocab - 1, default=absent)
