"""Model weights as the ops take them: merged, stacked, grouped by layer."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

import torch

from dsv4lab.backends.weights import Weight, concatenated, stacked
from dsv4lab.config.model import LayerKind, ModelConfig
from dsv4lab.errors import ConfigError

Tensor = torch.Tensor
Named = MutableMapping[str, Tensor] | MutableMapping[str, Weight]


@dataclass(frozen=True, slots=True, eq=False)
class HyperConnectionWeights:
    """Float32 ``fn [rows, hc * D]``, ``base [rows]``, ``scale [3]`` (head: ``[1]``)."""

    fn: Tensor
    base: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class CompressorWeights:
    """``kv_gate [2 c, D]``: key rows, then score rows, whose product is float32; ``ape [ratio, c]``; ``norm [d]``."""

    kv_gate: Tensor
    ape: Tensor
    norm: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class IndexerWeights:
    """``wq_b [Hi * di, q_lora]``, ``weights_proj [Hi, D]`` and the indexer's own compressor."""

    wq_b: Weight
    weights_proj: Tensor
    compressor: CompressorWeights


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWeights:
    """``qkv_a [q_lora + d, D]`` holds ``wq_a`` and ``wkv``; ``wo_a [G, o_lora, H * d / G]``.

    ``side [R, D]``: the memory of all that the compressors and the indexer multiply the layer's input by, ``kv_gate``
    of both and ``weights_proj``; None without an indexer.
    """

    norm: Tensor
    qkv_a: Weight
    q_norm: Tensor
    q_b: Weight
    kv_norm: Tensor
    sink: Tensor
    o_a: Tensor
    o_b: Weight
    compressor: CompressorWeights | None
    indexer: IndexerWeights | None
    side: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class MoeWeights:
    """``w13 [E, 2 I, D]`` (gate rows, then up rows), ``w2 [E, D, I]``; ``table`` in hash layers, else ``bias``.

    A fused shared expert is the last of ``w13`` and ``w2``, and ``shared_w13`` and ``shared_w2`` are None.
    """

    norm: Tensor
    gate: Tensor
    bias: Tensor | None
    table: Tensor | None
    w13: Weight
    w2: Weight
    shared_w13: Weight | None
    shared_w2: Weight | None

    @property
    def fused(self) -> bool:
        """Whether the shared expert is one of the routed ones."""
        return self.shared_w13 is None


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


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts that are held here (None: all), and whether the shared expert joins them."""

    held: range | None = None
    fused: bool = False


ALL_EXPERTS = Experts()


def build_weights(config: ModelConfig, tensors: Named, experts: Experts = ALL_EXPERTS) -> ModelWeights:
    """Group and merge canonical ``tensors`` (:mod:`dsv4lab.checkpoint.names`), or a rank's parts of them.

    Entries are taken out of ``tensors`` one by one, so that at most one layer's worth exists twice. ``config`` has the
    heads and groups of the parts. Matrices that are quantised stay so. Raises :class:`ConfigError` for a shared expert
    that cannot be fused.
    """
    return ModelWeights(
        embed=take_tensor(tensors, "embed.weight"),
        layers=tuple(
            build_layer(config, tensors, f"layers.{i}", config.kind(i), experts)
            for i in range(config.num_hidden_layers)
        ),
        hc_head=build_hyper_connection(tensors, "hc_head"),
        norm=take_tensor(tensors, "norm.weight"),
        head=take_tensor(tensors, "head.weight"),
    )


def build_layer(
    config: ModelConfig, tensors: Named, prefix: str, kind: LayerKind, experts: Experts = ALL_EXPERTS
) -> LayerWeights:
    """The layer under ``prefix`` (``layers.3``, ``mtp.0``), taken out of ``tensors``."""
    return LayerWeights(
        hc_attn=build_hyper_connection(tensors, f"{prefix}.hc_attn"),
        attention=_attention(config, tensors, prefix, kind),
        hc_ffn=build_hyper_connection(tensors, f"{prefix}.hc_ffn"),
        moe=_moe(config, tensors, prefix, experts),
    )


def build_hyper_connection(tensors: Named, prefix: str) -> HyperConnectionWeights:
    """``{prefix}_fn``, ``_base`` and ``_scale``."""
    return HyperConnectionWeights(*(take_tensor(tensors, f"{prefix}_{part}") for part in ("fn", "base", "scale")))


_KV_GATE = ("wkv.weight", "wgate.weight")


def _compressor(tensors: Named, prefix: str, kv_gate: Tensor) -> CompressorWeights:
    return CompressorWeights(kv_gate, *(take_tensor(tensors, f"{prefix}.{part}") for part in ("ape", "norm.weight")))


def _side(tensors: Named, a: str) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The rows of all side GEMMs of a layer with an indexer, one behind the other, and each GEMM's part of them."""
    main = [take_tensor(tensors, f"{a}.compressor.{part}") for part in _KV_GATE]
    index = [take_tensor(tensors, f"{a}.indexer.compressor.{part}") for part in _KV_GATE]
    weights = take_tensor(tensors, f"{a}.indexer.weights_proj.weight")
    whole = torch.cat((*main, *index, weights))
    sizes = [2 * main[0].shape[0], 2 * index[0].shape[0], weights.shape[0]]
    first, second, third = torch.split(whole, sizes)
    return whole, (first, second, third)


def _attention(config: ModelConfig, tensors: Named, prefix: str, kind: LayerKind) -> AttentionWeights:
    a = f"{prefix}.attn"
    indexer, compressor, side = None, None, None
    if kind is LayerKind.CSA:
        side, (main, index, weights) = _side(tensors, a)
        compressor = _compressor(tensors, f"{a}.compressor", main)
        indexer = IndexerWeights(
            tensors.pop(f"{a}.indexer.wq_b.weight"),
            weights,
            _compressor(tensors, f"{a}.indexer.compressor", index),
        )
    elif kind is not LayerKind.SWA:
        kv_gate = torch.cat([take_tensor(tensors, f"{a}.compressor.{part}") for part in _KV_GATE])
        compressor = _compressor(tensors, f"{a}.compressor", kv_gate)
    return AttentionWeights(
        norm=take_tensor(tensors, f"{prefix}.attn_norm.weight"),
        qkv_a=concatenated((tensors.pop(f"{a}.wq_a.weight"), tensors.pop(f"{a}.wkv.weight"))),
        q_norm=take_tensor(tensors, f"{a}.q_norm.weight"),
        q_b=tensors.pop(f"{a}.wq_b.weight"),
        kv_norm=take_tensor(tensors, f"{a}.kv_norm.weight"),
        sink=take_tensor(tensors, f"{a}.attn_sink"),
        o_a=take_tensor(tensors, f"{a}.wo_a.weight").view(config.o_groups, config.o_lora_rank, -1),
        o_b=tensors.pop(f"{a}.wo_b.weight"),
        compressor=compressor,
        indexer=indexer,
        side=side,
    )


def _moe(config: ModelConfig, tensors: Named, prefix: str, experts: Experts) -> MoeWeights:
    f = f"{prefix}.ffn"
    held = range(config.n_routed_experts) if experts.held is None else experts.held
    names = [f"{f}.experts.{e}" for e in held]
    if experts.fused:
        if config.n_shared_experts != 1:
            raise ConfigError(
                f"shared_expert_fusion: {config.name} has {config.n_shared_experts} shared experts, not 1"
            )
        names.append(f"{f}.shared_experts")
        if type(tensors[f"{names[0]}.w1.weight"]) is not type(tensors[f"{names[-1]}.w1.weight"]):
            raise ConfigError("shared_expert_fusion: the shared expert and the routed ones are stored in two formats")
    return MoeWeights(
        norm=take_tensor(tensors, f"{prefix}.ffn_norm.weight"),
        gate=take_tensor(tensors, f"{f}.gate.weight"),
        bias=take_tensor(tensors, f"{f}.gate.bias") if f"{f}.gate.bias" in tensors else None,
        table=take_tensor(tensors, f"{f}.gate.tid2eid") if f"{f}.gate.tid2eid" in tensors else None,
        w13=stacked([_gate_up(tensors, name) for name in names]),
        w2=stacked([tensors.pop(f"{name}.w2.weight") for name in names]),
        shared_w13=None if experts.fused else _gate_up(tensors, f"{f}.shared_experts"),
        shared_w2=None if experts.fused else tensors.pop(f"{f}.shared_experts.w2.weight"),
    )


def _gate_up(tensors: Named, prefix: str) -> Weight:
    return concatenated((tensors.pop(f"{prefix}.w1.weight"), tensors.pop(f"{prefix}.w3.weight")))


def take_tensor(tensors: Named, name: str) -> Tensor:
    """Entry ``name`` of ``tensors``, taken out. Raises :class:`ConfigError` if it is quantised."""
    found = tensors.pop(name)
    if not isinstance(found, Tensor):
        raise ConfigError(f"{name} is quantised; only products of activations take it so")
    return found
