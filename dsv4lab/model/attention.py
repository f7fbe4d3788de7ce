"""Attention: the shared Q/KV path, sparse attention over the unified pool, grouped output (dsv4-spec 2.4 to 2.8)."""

from __future__ import annotations

import torch

from dsv4lab.config.model import LayerKind
from dsv4lab.kv import pool as resource
from dsv4lab.kv.metadata import IndexStream, StepMetadata
from dsv4lab.model.activations import Activations, activations
from dsv4lab.model.builder import OpListBuilder, in_order
from dsv4lab.model.collectives import list_all_reduce
from dsv4lab.model.compressor import list_compressors
from dsv4lab.model.indexer import CSA_STREAM, csa_stream_view, list_indexer
from dsv4lab.model.rope import rope_view, table_of
from dsv4lab.model.weights import AttentionWeights
from dsv4lab.overlap.ops import fuse

OUTPUT = "attn.out"


def list_attention(b: OpListBuilder, layer: int, w: AttentionWeights, x: Activations) -> None:
    """All ops from the normed input ``attn.in``, for ``qkv_a`` as ``x``, to the sublayer output ``attn.out``."""
    kind = b.config.kind(layer)
    list_compressors(b, layer, w)
    indexers = [] if w.indexer is None else [w.indexer.wq_b]
    ql = activations(b, "q_lora", b.config.q_lora_rank, w.q_b, *indexers)
    _list_qkv(b, layer, w, kind, x, ql)
    if w.indexer is not None:
        list_indexer(b, layer, w.indexer, ql)
    _list_core(b, layer, w, kind)
    _list_output(b, w, kind)


def _list_qkv(
    b: OpListBuilder, layer: int, w: AttentionWeights, kind: LayerKind, x: Activations, ql: Activations
) -> None:
    c = b.config
    qkv_a = b.buffer("qkv_a", c.q_lora_rank + c.head_dim)
    q = b.buffer("q", c.num_attention_heads, c.head_dim)
    rope = rope_view(b, table_of(kind))
    table, eps = table_of(kind), c.rms_norm_eps
    kv_a = qkv_a[:, c.q_lora_rank :]

    b.add("qkv_a", lambda _: b.ops.linear(x.rows, w.qkv_a, qkv_a), x.names, ("qkv_a",))
    b.add("q_norm", lambda _: b.ops.rms_norm(qkv_a[:, : c.q_lora_rank], w.q_norm, eps, ql.rows), ("qkv_a",), ql.names)
    b.add("q_b", lambda _: b.ops.linear(ql.rows, w.q_b, q.flatten(1)), ql.names, ("q",))
    q_part = b.op("q_norm_rope", lambda _: b.ops.q_norm_rope(q, rope, eps), ("q", table), ("q",))
    if b.shape.mode == "decode":
        pool = b.pool.unified[layer]
        kv_part = b.op(
            "kv_norm_rope_store",
            lambda _: b.ops.kv_norm_rope_store(kv_a, w.kv_norm, rope, eps, pool, b.inputs.meta.ring_row),
            ("qkv_a", table),
            (resource.ring(layer),),
        )
        name = "qk_norm_rope_store"
    else:
        kv = b.buffer("kv", c.head_dim)
        kv_part = b.op(
            "kv_norm_rope",
            lambda _: b.ops.kv_norm_rope(kv_a, w.kv_norm, rope, eps, kv),
            ("qkv_a", table),
            ("kv",),
        )
        name = "qk_norm_rope"
    b.append(fuse(name, in_order(q_part, kv_part), (q_part, kv_part)))


def _list_core(b: OpListBuilder, layer: int, w: AttentionWeights, kind: LayerKind) -> None:
    c = b.config
    q = b.buffer("q", c.num_attention_heads, c.head_dim)
    o = b.buffer("o", c.num_attention_heads, c.head_dim)
    pool, scale = b.pool.unified[layer], c.softmax_scale
    selected = csa_stream_view(b) if kind is LayerKind.CSA else None
    reads = ["q", resource.ring(layer)]
    reads += [resource.rows(layer)] if kind is not LayerKind.SWA else []
    reads += [CSA_STREAM] if kind is LayerKind.CSA else []

    if b.shape.mode == "decode":

        def decode(_: object) -> None:
            stream = pool_stream(b.inputs.meta, kind, selected)
            b.ops.sparse_decode(q, pool, stream.indices, stream.indptr, w.sink, scale, o)

        b.add("attention", decode, reads, ("o",))
        return
    kv = b.buffer("kv", c.head_dim)

    def prefill(_: object) -> None:
        meta = b.inputs.meta
        stream, extend = pool_stream(meta, kind, selected), meta.extend
        assert extend is not None
        b.ops.sparse_prefill(
            q, pool, stream.indices, stream.indptr, kv, extend.indices, extend.indptr, w.sink, scale, o
        )

    def ring_store(_: object) -> None:
        meta = b.inputs.meta
        b.ops.ring_store(kv, meta.ring_store_src, pool, meta.ring_store_dst)

    b.add("attention", prefill, (*reads, "kv"), ("o",))
    b.add("ring_store", ring_store, ("kv",), (resource.ring(layer),))


def pool_stream(meta: StepMetadata, kind: LayerKind, selected: torch.Tensor | None) -> IndexStream:
    """Pool rows that this forward's tokens read in a layer of ``kind``; ``selected`` is the layer's CSA stream."""
    if kind is LayerKind.CSA:
        assert meta.csa is not None
        assert selected is not None
        return IndexStream(meta.csa.indptr, selected)
    lists = meta.streams if meta.mode == "decode" else meta.prefix
    return lists[int(kind)]


def _list_output(b: OpListBuilder, w: AttentionWeights, kind: LayerKind) -> None:
    c = b.config
    o = b.buffer("o", c.num_attention_heads, c.head_dim)
    z = b.buffer("o_lora", c.o_groups, c.o_lora_rank)
    y = b.buffer(OUTPUT, c.hidden_size)
    table = table_of(kind)
    rope = rope_view(b, table)
    grouped = o.view(-1, c.o_groups, c.num_attention_heads // c.o_groups * c.head_dim)
    b.add("inverse_rope", lambda _: b.ops.rotate(o, rope, inverse=True), ("o", table), ("o",))
    b.add("o_a", lambda _: b.ops.grouped_linear(grouped, w.o_a, z), ("o",), ("o_lora",))
    b.add("o_b", lambda _: b.ops.linear(z.flatten(1), w.o_b, y), ("o_lora",), (OUTPUT,))
    list_all_reduce(b, "attn.all_reduce", b.parallel.tp, y, OUTPUT)
