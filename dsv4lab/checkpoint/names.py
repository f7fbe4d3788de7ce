"""Canonical parameter names (DeepSeek's own, dsv4-spec 9.1), their shapes and their roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from dsv4lab.checkpoint.spelling import canonical_name
from dsv4lab.config.model import LayerKind, ModelConfig
from dsv4lab.parallel.sharding import Sharding

__all__ = ["Role", "TensorSpec", "canonical_name", "expected_tensors", "held_tensors"]


class Role(StrEnum):
    """What a tensor is for; it decides the dtype it is kept in and the scale of a synthetic one."""

    EMBEDDING = "embedding"
    LINEAR = "linear"
    HEAD = "head"
    NORM = "norm"
    HC_FN = "hc_fn"
    HC_BASE = "hc_base"
    HC_SCALE = "hc_scale"
    APE = "ape"
    SINK = "sink"
    ROUTER_BIAS = "router_bias"
    HASH_TABLE = "hash_table"

    @property
    def follows_model_dtype(self) -> bool:
        """Whether the tensor is kept in the dtype asked for; the others stay fp32, the hash table int64."""
        return self in (Role.EMBEDDING, Role.LINEAR, Role.HEAD)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and role of one canonical tensor."""

    shape: tuple[int, ...]
    role: Role


_Named = Iterator[tuple[str, TensorSpec]]


def expected_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Every tensor that a checkpoint of ``config`` holds under its canonical name, draft layers excluded."""
    vocab, hidden, streams = config.vocab_size, config.hidden_size, config.hc_mult
    tensors = {
        "embed.weight": TensorSpec((vocab, hidden), Role.EMBEDDING),
        "head.weight": TensorSpec((vocab, hidden), Role.HEAD),
        "norm.weight": TensorSpec((hidden,), Role.NORM),
        "hc_head_fn": TensorSpec((streams, streams * hidden), Role.HC_FN),
        "hc_head_base": TensorSpec((streams,), Role.HC_BASE),
        "hc_head_scale": TensorSpec((1,), Role.HC_SCALE),
    }
    for layer in range(config.num_hidden_layers):
        prefix = f"layers.{layer}"
        tensors.update(_hyper_connection(config, prefix))
        tensors.update(_attention(config, f"{prefix}.attn", config.kind(layer)))
        tensors.update(_moe(config, f"{prefix}.ffn", config.is_hash_layer(layer)))
        tensors[f"{prefix}.attn_norm.weight"] = TensorSpec((hidden,), Role.NORM)
        tensors[f"{prefix}.ffn_norm.weight"] = TensorSpec((hidden,), Role.NORM)
    return tensors


def held_tensors(tensors: Mapping[str, TensorSpec], sharding: Sharding) -> dict[str, TensorSpec]:
    """Those of ``tensors`` that a rank holds, with the shapes of its parts."""
    held = {name: (spec, sharding.part(name, spec.shape)) for name, spec in tensors.items() if sharding.holds(name)}
    return {
        name: spec if part is None else replace(spec, shape=part.of(spec.shape)) for name, (spec, part) in held.items()
    }


def _hyper_connection(config: ModelConfig, prefix: str) -> _Named:
    streams = config.hc_mult
    mixes = (2 + streams) * streams
    for part in ("attn", "ffn"):
        yield f"{prefix}.hc_{part}_fn", TensorSpec((mixes, streams * config.hidden_size), Role.HC_FN)
        yield f"{prefix}.hc_{part}_base", TensorSpec((mixes,), Role.HC_BASE)
        yield f"{prefix}.hc_{part}_scale", TensorSpec((3,), Role.HC_SCALE)


def _attention(config: ModelConfig, prefix: str, kind: LayerKind) -> _Named:
    hidden, heads, groups = config.hidden_size, config.num_attention_heads, config.o_groups
    all_heads, group_rank = heads * config.head_dim, groups * config.o_lora_rank
    yield f"{prefix}.wq_a.weight", TensorSpec((config.q_lora_rank, hidden), Role.LINEAR)
    yield f"{prefix}.q_norm.weight", TensorSpec((config.q_lora_rank,), Role.NORM)
    yield f"{prefix}.wq_b.weight", TensorSpec((all_heads, config.q_lora_rank), Role.LINEAR)
    yield f"{prefix}.wkv.weight", TensorSpec((config.head_dim, hidden), Role.LINEAR)
    yield f"{prefix}.kv_norm.weight", TensorSpec((config.head_dim,), Role.NORM)
    yield f"{prefix}.attn_sink", TensorSpec((heads,), Role.SINK)
    yield f"{prefix}.wo_a.weight", TensorSpec((group_rank, all_heads // groups), Role.LINEAR)
    yield f"{prefix}.wo_b.weight", TensorSpec((hidden, group_rank), Role.LINEAR)
    if kind is not LayerKind.SWA:
        yield from _compressor(config, f"{prefix}.compressor", kind, config.head_dim)
    if kind is LayerKind.CSA:
        index_heads = config.index_n_heads * config.index_head_dim
        yield f"{prefix}.indexer.wq_b.weight", TensorSpec((index_heads, config.q_lora_rank), Role.LINEAR)
        yield f"{prefix}.indexer.weights_proj.weight", TensorSpec((config.index_n_heads, hidden), Role.LINEAR)
        yield from _compressor(config, f"{prefix}.indexer.compressor", kind, config.index_head_dim)


def _compressor(config: ModelConfig, prefix: str, kind: LayerKind, width: int) -> _Named:
    """Ratio 4 overlaps its windows and so carries two halves (dsv4-spec 2.9)."""
    channels = (2 if kind is LayerKind.CSA else 1) * width
    yield f"{prefix}.wkv.weight", TensorSpec((channels, config.hidden_size), Role.LINEAR)
    yield f"{prefix}.wgate.weight", TensorSpec((channels, config.hidden_size), Role.LINEAR)
    yield f"{prefix}.ape", TensorSpec((int(kind), channels), Role.APE)
    yield f"{prefix}.norm.weight", TensorSpec((width,), Role.NORM)


def _moe(config: ModelConfig, prefix: str, hashed: bool) -> _Named:
    yield f"{prefix}.gate.weight", TensorSpec((config.n_routed_experts, config.hidden_size), Role.LINEAR)
    if hashed:
        table = (config.vocab_size, config.num_experts_per_tok)
        yield f"{prefix}.gate.tid2eid", TensorSpec(table, Role.HASH_TABLE)
    else:
        yield f"{prefix}.gate.bias", TensorSpec((config.n_routed_experts,), Role.ROUTER_BIAS)
    for expert in range(config.n_routed_experts):
        yield from _expert(config, f"{prefix}.experts.{expert}", config.moe_intermediate_size)
    shared = config.n_shared_experts * config.moe_intermediate_size
    yield from _expert(config, f"{prefix}.shared_experts", shared)


def _expert(config: ModelConfig, prefix: str, inner: int) -> _Named:
    yield f"{prefix}.w1.weight", TensorSpec((inner, config.hidden_size), Role.LINEAR)
    yield f"{prefix}.w2.weight", TensorSpec((config.hidden_size, inner), Role.LINEAR)
    yield f"{prefix}.w3.weight", TensorSpec((inner, config.hidden_size), Role.LINEAR)
