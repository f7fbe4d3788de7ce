"""Kernels of one DeepSeek-V4 layer at a tensor-parallel degree: bytes and operations from the model's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsv4lab.config.model import LayerKind, ModelConfig
from dsv4lab.predict.oplist import Kernel, ListedOp

TILES = ((16, 16, 64), (128, 64, 64), (1 << 30, 128, 128))
"""Tiles of this project's fp8 product on AMD (``dsv4_kernels.block_fp8_gemm``): up to so many tokens, rows, columns."""

TILE_DEPTH, TILE_STAGES = 128, 2
FP4_BYTES = 0.53  # four bits and a scale byte for every 32
KV_ROW_BYTES = 1024
INDEX_KEY_BYTES = 132


@dataclass(frozen=True, slots=True)
class StepShape:
    """``requests`` decode requests with ``tokens`` flat tokens at context ``context``, sharded over ``tp`` ranks."""

    requests: int
    tokens: int
    context: int
    tp: int = 1
    reuse: float = 0.0
    """Share of a request's further tokens' experts that its first token uses already (verify widths above 1)."""

    @property
    def routed_tokens(self) -> float:
        """Tokens whose experts count as drawn independently."""
        return self.requests + (self.tokens - self.requests) * (1.0 - self.reuse)


def tile_kib(tokens: int, bytes_each: float) -> float:
    """Local memory of a product's workgroup: both tiles of every stage."""
    rows, columns = next((t, n) for most, t, n in TILES if tokens <= most)
    return (rows + columns) * TILE_DEPTH * TILE_STAGES * bytes_each / 1024


def linear(shape: StepShape, rows: int, columns: float, bytes_each: float, precision: str) -> Kernel:
    """A product of ``[tokens, rows]`` with ``[rows, columns]`` weights; split over K so that it fills the device."""
    size = rows * columns * bytes_each + shape.tokens * (rows + columns) * 2
    flops = 2.0 * shape.tokens * rows * columns
    return Kernel(size, flops, 256, precision, tile_kib(shape.tokens, bytes_each))


def small(shape: StepShape, width: float) -> Kernel:
    """A kernel that reads and writes ``width`` bf16 numbers a token."""
    return Kernel(shape.tokens * width * 4, 0.0, max(1, shape.tokens))


def kind_ops(c: ModelConfig, kind: LayerKind, shape: StepShape) -> list[ListedOp]:
    """Ops of a decoder layer of ``kind``, named as the engine names them, not yet given a layer."""
    return [*_attention(c, kind, shape), *_moe(c, shape)]


def layers_ops(c: ModelConfig, shape: StepShape) -> Iterator[ListedOp]:
    """Ops of all decoder layers."""
    kinds = {kind: kind_ops(c, kind, shape) for kind in {c.kind(i) for i in range(c.num_hidden_layers)}}
    for layer in range(c.num_hidden_layers):
        kind = c.kind(layer)
        for op in kinds[kind]:
            yield op.at(layer, kind.label)


def _mhc(c: ModelConfig, shape: StepShape, name: str, out: str) -> Iterator[ListedOp]:
    weights = Kernel(24 * c.hc_mult * c.hidden_size * 4 + shape.tokens * c.hc_mult * c.hidden_size * 4, 0.0, 128)
    mix = small(shape, (2 * c.hc_mult + 1) * c.hidden_size)
    yield ListedOp(name, (mix, weights), ("x", "mhc", out), ("x", "mhc", "mixed"))
    yield ListedOp(f"{out}_norm", (small(shape, 2 * c.hidden_size),), ("mixed",), (f"{out}.in",))


def _attention(c: ModelConfig, kind: LayerKind, shape: StepShape) -> Iterator[ListedOp]:
    yield from _mhc(c, shape, "mhc_post_pre", "attn")
    if kind is not LayerKind.SWA:
        width = c.head_dim * (4 if kind is LayerKind.CSA else 2)
        yield from _compressor(c, shape, "compressor", width, "rows")
    if kind is LayerKind.CSA:
        yield from _compressor(c, shape, "indexer.compressor", c.index_head_dim * 4, "index_k")
    yield from _qkv(c, shape)
    if kind is LayerKind.CSA:
        yield from _indexer(c, shape)
    yield from _core(c, kind, shape)


def _compressor(c: ModelConfig, shape: StepShape, name: str, width: int, target: str) -> Iterator[ListedOp]:
    """Replicated on every rank. The input is cast by a kernel of its own, weights are fp32: as the engine ran it before
    it had a bf16 product, and as the seed's profile asks for (docs/queue-model.md).
    """
    product = linear(shape, c.hidden_size, width, 4, "fp32")
    yield ListedOp(f"{name}.gemm", (small(shape, 1.5 * c.hidden_size), product), ("attn.in",), (name,))
    store = Kernel(shape.tokens * width * 4 * 10, 0.0, shape.tokens)
    yield ListedOp(f"{name}.store", (store, small(shape, width)), (name, f"{name}.state"), (target, f"{name}.state"))


def _qkv(c: ModelConfig, shape: StepShape) -> Iterator[ListedOp]:
    heads = c.num_attention_heads / shape.tp
    down = linear(shape, c.hidden_size, c.q_lora_rank + c.head_dim, 1, "fp8")
    yield ListedOp("qkv_a", (down,), ("attn.in",), ("qkv_a",))
    yield ListedOp("q_norm", (small(shape, c.q_lora_rank),), ("qkv_a",), ("q_lora",))
    yield ListedOp("q_b", (linear(shape, c.q_lora_rank, heads * c.head_dim, 1, "fp8"),), ("q_lora",), ("q",))
    queries, keys = small(shape, heads * c.head_dim), small(shape, c.head_dim)
    parts = (
        ListedOp("q_norm_rope", (queries,), ("q",), ("q",)),
        ListedOp("kv_norm_rope_store", (keys,), ("qkv_a",), ("ring",)),
    )
    yield ListedOp("qk_norm_rope_store", (queries,), ("q", "qkv_a"), ("q", "ring"), parts=parts)


def _indexer(c: ModelConfig, shape: StepShape) -> Iterator[ListedOp]:
    entries = shape.context // 4
    width = c.index_n_heads * c.index_head_dim
    yield ListedOp("indexer.q_b", (linear(shape, c.q_lora_rank, width, 1, "fp8"),), ("q_lora",), ("indexer.q",))
    weights = linear(shape, c.hidden_size, c.index_n_heads, 2, "bf16")
    yield ListedOp("indexer.weights", (weights,), ("attn.in",), ("indexer.weights",))
    yield ListedOp("indexer.q_rope", (small(shape, width),), ("indexer.q",), ("indexer.q",))
    score = Kernel(shape.requests * entries * INDEX_KEY_BYTES, 2.0 * shape.tokens * entries * width, 256, "fp8")
    topk = Kernel(shape.tokens * entries * 4, 0.0, shape.tokens)
    reads = ("indexer.q", "indexer.weights", "index_k")
    yield ListedOp("indexer.topk", (score, topk), reads, ("indexer.topk",))
    yield ListedOp("indexer.csa_tail", (small(shape, c.index_topk),), ("indexer.topk",), ("csa",))


def _core(c: ModelConfig, kind: LayerKind, shape: StepShape) -> Iterator[ListedOp]:
    heads, d = c.num_attention_heads / shape.tp, c.head_dim
    compressed = {LayerKind.SWA: 0, LayerKind.HCA: shape.context // 128}.get(
        kind, min(c.index_topk, shape.context // 4)
    )
    rows = shape.tokens * (min(c.sliding_window, shape.context) + compressed)
    split = Kernel(rows * KV_ROW_BYTES, 4.0 * rows * heads * d, 256)
    reads = ("q", "ring", *(("rows",) if compressed else ()), *(("csa",) if kind is LayerKind.CSA else ()))
    yield ListedOp("attention", (split, small(shape, 4 * heads * d)), reads, ("o",))
    yield ListedOp("inverse_rope", (small(shape, heads * d),), ("o",), ("o",))
    groups = c.o_groups / shape.tp
    inner = heads * d / max(groups, 1)
    yield ListedOp("o_a", (linear(shape, int(inner), groups * c.o_lora_rank, 1, "fp8"),), ("o",), ("o_lora",))
    out = linear(shape, int(groups * c.o_lora_rank), c.hidden_size, 1, "fp8")
    yield ListedOp("o_b", (small(shape, groups * c.o_lora_rank), out), ("o_lora",), ("attn.out", "attn"))
    yield from _all_reduce(c, shape, "attn")


def _all_reduce(c: ModelConfig, shape: StepShape, where: str) -> Iterator[ListedOp]:
    if shape.tp > 1:
        kernel = Kernel(2 * shape.tokens * c.hidden_size * 2)
        yield ListedOp(f"{where}.all_reduce", (kernel,), (where,), (where,), collective=True)


def experts_hit(c: ModelConfig, tokens: float) -> float:
    """Distinct routed experts that ``tokens`` tokens are expected to use when routing is uniform."""
    n = c.n_routed_experts
    return float(n * (1.0 - (1.0 - c.num_experts_per_tok / n) ** tokens))


def _moe(c: ModelConfig, shape: StepShape) -> Iterator[ListedOp]:
    yield from _mhc(c, shape, "mhc_post_pre", "ffn")
    inner = c.moe_intermediate_size / shape.tp
    gate = linear(shape, c.hidden_size, c.n_routed_experts, 2, "bf16")
    picks = small(shape, c.n_routed_experts)
    yield ListedOp("moe.route", (gate, picks), ("ffn.in",), ("moe.routes",))
    up = linear(shape, c.hidden_size, 2 * inner, 1, "fp8")
    down = linear(shape, int(inner), c.hidden_size, 1, "fp8")
    act = small(shape, 2 * inner)
    yield ListedOp("moe.shared", (up, act, down), ("ffn.in",), ("moe.shared",))
    used, routed = experts_hit(c, shape.routed_tokens), shape.tokens * c.num_experts_per_tok
    size = used * c.hidden_size * inner * FP4_BYTES
    flops = 2.0 * routed * c.hidden_size * inner
    gemms = (Kernel(2 * size, 2 * flops, 256, "fp4"), Kernel(size, flops, 256, "fp4"))
    sort, quant = small(shape, c.num_experts_per_tok * 64), small(shape, c.num_experts_per_tok * inner)
    kernels = (sort, gemms[0], quant, gemms[1])
    yield ListedOp("moe.experts", kernels, ("ffn.in", "moe.routes"), ("moe.routed",))
    yield ListedOp("moe.combine", (small(shape, 2 * c.hidden_size),), ("moe.routed", "moe.shared"), ("ffn",))
    yield from _all_reduce(c, shape, "ffn")
