"""The indexer of ratio-4 layers: scores of compressed entries, top-k, and the layer's index stream (dsv4-spec 2.10)."""

from __future__ import annotations

import torch

from dsv4lab.kv import pool as resource
from dsv4lab.model.activations import Activations
from dsv4lab.model.builder import OpListBuilder
from dsv4lab.model.compressor import WEIGHTS
from dsv4lab.model.rope import COMPRESS_TABLE, rope_view
from dsv4lab.model.weights import IndexerWeights
from dsv4lab.overlap.ops import OpFunction

CSA_STREAM = "csa_stream"


def csa_stream_view(b: OpListBuilder) -> torch.Tensor:
    """int32 room for the index stream of a ratio-4 layer, flat."""
    width = b.config.sliding_window + b.config.index_topk
    return b.buffer(CSA_STREAM, width, dtype=torch.int32).flatten()


def list_indexer(b: OpListBuilder, layer: int, w: IndexerWeights, ql: Activations) -> None:
    """Query, selection and CSA tail of ``layer``; the indexer's compressor and weights are listed apart."""
    c = b.config
    q = b.buffer("indexer.q", c.index_n_heads, c.index_head_dim)
    weights = b.buffer(WEIGHTS, c.index_n_heads, dtype=torch.float32)
    topk = b.buffer("indexer.topk", c.index_topk, dtype=torch.int32)
    rope = rope_view(b, COMPRESS_TABLE)
    b.add("indexer.q_b", lambda _: b.ops.linear(ql.rows, w.wq_b, q.flatten(1)), ql.names, ("indexer.q",))
    b.add("indexer.q_rope", lambda _: _rotate_queries(b, q, rope), ("indexer.q", COMPRESS_TABLE), ("indexer.q",))
    b.add(
        "indexer.topk",
        _select(b, layer, q, weights, topk),
        ("indexer.q", WEIGHTS, resource.index_k(layer)),
        ("indexer.topk",),
    )
    b.add("indexer.csa_tail", _csa_tail(b, topk), ("indexer.topk",), (CSA_STREAM,))


def _select(b: OpListBuilder, layer: int, q: torch.Tensor, weights: torch.Tensor, topk: torch.Tensor) -> OpFunction:
    keys, per_page = b.pool.index_k[layer], b.pool.geometry.entries_per_page(4)
    scale = (b.config.index_head_dim * b.config.index_n_heads) ** -0.5
    assert keys is not None

    def run(_: object) -> None:
        meta = b.inputs.meta
        b.ops.index_select(
            q, weights, keys, meta.page_table, meta.request, meta.visible4, entries_per_page=per_page, out=topk,
            scale=scale,
        )  # fmt: skip

    return run


def _rotate_queries(b: OpListBuilder, q: torch.Tensor, rope: torch.Tensor) -> None:
    """Rope, and the Hadamard rotation if quantised keys carry it: it cancels in the scores."""
    b.ops.rotate(q, rope)
    if b.pool.index_rotated:
        b.ops.hadamard(q)


def _csa_tail(b: OpListBuilder, topk: torch.Tensor) -> OpFunction:
    stream = csa_stream_view(b)
    geometry = b.pool.geometry

    def run(_: object) -> None:
        meta = b.inputs.meta
        assert meta.csa is not None
        b.ops.csa_stream(
            meta.csa.indices,
            meta.csa.indptr,
            topk,
            meta.page_table,
            meta.request,
            entries_per_page=geometry.entries_per_page(4),
            first_row=geometry.swa_rows,
            out=stream,
        )

    return run
