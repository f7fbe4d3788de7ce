"""Model weights as the ops take them: merged, stacked, grouped by layer."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

import torch

from dsv4lab.config.model import LayerKind, ModelConfig

Tensor = torch.Tensor
Named = MutableMapping[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class HyperConnectionWeights:
    """Float32 ``fn [rows, hc * D]``, ``base [rows]``, ``scale [3]`` (head: ``[1]``)."""

    fn: Tensor
    base: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class CompressorWeights:
    """``kv_gate`` float32 ``[2 c, D]``: key rows, then score rows; ``ape [ratio, c]``; ``norm [d]``."""

    kv_gate: Tensor
    ape: Tensor
    norm: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class IndexerWeights:
    """``wq_b [Hi * di, q_lora]``, ``weights_proj [Hi, D]`` and the indexer's own compressor."""

    wq_b: Tensor
    weights_proj: Tensor
    compressor: CompressorWeights


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWeights:
    """``qkv_a [q_lora + d, D]`` holds ``wq_a`` and ``wkv``; ``wo_a [G, o_lora, H * d / G]``."""

    norm: Tensor
    qkv_a: Tensor
    q_norm: Tensor
    q_b: Tensor
    kv_norm: Tensor
    sink: Tensor
    o_a: Tensor
    o_b: Tensor
    compressor: CompressorWeights | None
    indexer: IndexerWeights | None


@dataclass(frozen=True, slots=True, eq=False)
class MoeWeights:
    """``w13 [E, 2 I, D]`` (gate rows, then up rows), ``w2 [E, D, I]``; ``table`` in hash layers, else ``bias``."""

    norm: Tensor
    gate: Tensor
    bias: Tensor | None
    table: Tensor | None
    w13: Tensor
    w2: Tensor
    shared_w13: Tensor
    shared_w2: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """One layer."""

    hc_attn: HyperConnectionWeights
    attention: AttentionWeights
    hc_ffn: HyperConnectionWeights
    moe: MoeWeights


@dataclass(frozen=True, slots=True, eq=False)
class ModelWeights:
    """The whole model."""

    embed: Tensor
    layers: tuple[LayerWeights, ...]
    hc_head: HyperConnectionWeights
    norm: Tensor
    head: Tensor


def build_weights(config: ModelConfig, tensors: Named) -> ModelWeights:
    """Group and merge canonical ``tensors`` (:mod:`dsv4lab.checkpoint.names`).

    Entries are taken out of ``tensors`` one by one, so that at most one layer's worth exists twice.
    """
    return ModelWeights(
        embed=tensors.pop("embed.weight"),
        layers=tuple(
            build_layer(config, tensors, f"layers.{i}", config.kind(i)) for i in range(config.num_hidden_layers)
        ),
        hc_head=build_hyper_connection(tensors, "hc_head"),
        norm=tensors.pop("norm.weight"),
        head=tensors.pop("head.weight"),
    )


def build_layer(config: ModelConfig, tensors: Named, prefix: str, kind: LayerKind) -> LayerWeights:
    """The layer under ``prefix`` (``layers.3``, ``mtp.0``), taken out of ``tensors``."""
    return LayerWeights(
        hc_attn=build_hyper_connection(tensors, f"{prefix}.hc_attn"),
        attention=_attention(config, tensors, prefix, kind),
        hc_ffn=build_hyper_connection(tensors, f"{prefix}.hc_ffn"),
        moe=_moe(config, tensors, prefix),
    )


def build_hyper_connection(tensors: Named, prefix: str) -> HyperConnectionWeights:
    """``{prefix}_fn``, ``_base`` and ``_scale``."""
    return HyperConnectionWeights(*(tensors.pop(f"{prefix}_{part}") for part in ("fn", "base", "scale")))


def _compressor(tensors: Named, prefix: str) -> CompressorWeights:
    merged = torch.cat((tensors.pop(f"{prefix}.wkv.weight").float(), tensors.pop(f"{prefix}.wgate.weight").float()))
    return CompressorWeights(merged, tensors.pop(f"{prefix}.ape"), tensors.pop(f"{prefix}.norm.weight"))


def _attention(config: ModelConfig, tensors: Named, prefix: str, kind: LayerKind) -> AttentionWeights:
    a = f"{prefix}.attn"
    indexer = None
    if kind is LayerKind.CSA:
        indexer = IndexerWeights(
            tensors.pop(f"{a}.indexer.wq_b.weight"),
            tensors.pop(f"{a}.indexer.weights_proj.weight"),
            _compressor(tensors, f"{a}.indexer.compressor"),
        )
    return AttentionWeights(
        norm=tensors.pop(f"{prefix}.attn_norm.weight"),
        qkv_a=torch.cat((tensors.pop(f"{a}.wq_a.weight"), tensors.pop(f"{a}.wkv.weight"))),
        q_norm=tensors.pop(f"{a}.q_norm.weight"),
        q_b=tensors.pop(f"{a}.wq_b.weight"),
        kv_norm=tensors.pop(f"{a}.kv_norm.weight"),
        sink=tensors.pop(f"{a}.attn_sink"),
        o_a=tensors.pop(f"{a}.wo_a.weight").view(config.o_groups, config.o_lora_rank, -1),
        o_b=tensors.pop(f"{a}.wo_b.weight"),
        compressor=None if kind is LayerKind.SWA else _compressor(tensors, f"{a}.compressor"),
        indexer=indexer,
    )


def _moe(config: ModelConfig, tensors: Named, prefix: str) -> MoeWeights:
    f = f"{prefix}.ffn"
    experts = range(config.n_routed_experts)
    return MoeWeights(
        norm=tensors.pop(f"{prefix}.ffn_norm.weight"),
        gate=tensors.pop(f"{f}.gate.weight"),
        bias=tensors.pop(f"{f}.gate.bias", None),
        table=tensors.pop(f"{f}.gate.tid2eid", None),
        w13=torch.stack([_gate_up(tensors, f"{f}.experts.{e}") for e in experts]),
        w2=torch.stack([tensors.pop(f"{f}.experts.{e}.w2.weight") for e in experts]),
        shared_w13=_gate_up(tensors, f"{f}.shared_experts"),
        shared_w2=tensors.pop(f"{f}.shared_experts.w2.weight"),
    )


def _gate_up(tensors: Named, prefix: str) -> Tensor:
    return torch.cat((tensors.pop(f"{prefix}.w1.weight"), tensors.pop(f"{prefix}.w3.weight")))
