"""Compressors: a GEMM for keys and scores, then pooling, norm, rope and store (dsv4-spec 2.9).

In layers with an indexer three GEMMs share their input: of both compressors, and of the index weights. Where the
backend gives a product's rows the same bits in any company, they are one fused op.
"""

from __future__ import annotations

import torch

from dsv4lab.kv import pool as resource
from dsv4lab.kv.metadata import CompressPlan
from dsv4lab.kv.pool import Rows
from dsv4lab.model.builder import OpListBuilder
from dsv4lab.model.weights import AttentionWeights, CompressorWeights
from dsv4lab.overlap.ops import Op, fuse
from dsv4lab.overlap.plan import SIDE_GEMM

Tensor = torch.Tensor

INPUT = "attn.in"
INDEX = "indexer.compressor"
WEIGHTS = "indexer.weights"


def list_compressors(b: OpListBuilder, layer: int, w: AttentionWeights) -> None:
    """The ops of the layer's compressors, and the index weights, whose product shares their input."""
    if w.compressor is None:
        return
    ratio = int(b.config.kind(layer))
    main = f"compressor.{ratio}"
    if w.indexer is None:
        out = b.buffer(main, w.compressor.kv_gate.shape[0], dtype=torch.float32)
        b.append(_gemm(b, "compressor.gemm", w.compressor.kv_gate, main, out))
        _list_store(b, layer, w.compressor, main, out)
        return
    assert w.side is not None
    side, indexer = w.side, w.indexer
    gates = {main: w.compressor.kv_gate, INDEX: indexer.compressor.kv_gate, WEIGHTS: indexer.weights_proj}
    columns = {name: gate.shape[0] for name, gate in gates.items()}
    whole = b.arena.side_by_side(b.shape.tokens, columns, torch.float32)
    outs = {name: b.buffer(name, width, dtype=torch.float32) for name, width in columns.items()}
    ops = ("compressor.gemm", "indexer.compressor.gemm", "indexer.weights_gemm")
    parts = [_gemm(b, op, gates[name], name, outs[name]) for op, name in zip(ops, gates, strict=True)]
    if b.ops.rows_alike(b.shape.tokens, side):
        x = b.buffer(INPUT, b.config.hidden_size)
        b.append(fuse(SIDE_GEMM, lambda _: b.ops.linear(x, side, whole), parts))
    else:
        for part in parts:
            b.append(part)
    _list_index_store(b, layer, indexer.compressor, outs[INDEX])  # first, as selection waits for it
    _list_store(b, layer, w.compressor, main, outs[main])


def _gemm(b: OpListBuilder, name: str, weight: Tensor, to: str, out: Tensor) -> Op:
    x = b.buffer(INPUT, b.config.hidden_size)
    return b.op(name, lambda _: b.ops.linear(x, weight, out), (INPUT,), (to,))


def _list_store(b: OpListBuilder, layer: int, w: CompressorWeights, buffer: str, ks: Tensor) -> None:
    """Compressed rows of the layer's pool."""
    state, ratio = b.pool.state[layer], int(b.config.kind(layer))
    assert state is not None
    rows = (b.pool.unified[layer], resource.rows(layer))
    _store(b, "compressor.store", (buffer, ks), w, ratio, (state, resource.state(layer)), rows, in_index=False)


def _list_index_store(b: OpListBuilder, layer: int, w: CompressorWeights, ks: Tensor) -> None:
    """Index keys."""
    state, keys = b.pool.index_state[layer], b.pool.index_k[layer]
    assert state is not None
    assert keys is not None
    rows = (keys, resource.index_k(layer))
    _store(b, f"{INDEX}.store", (INDEX, ks), w, 4, (state, resource.index_state(layer)), rows, in_index=True)


def _store(
    b: OpListBuilder,
    name: str,
    source: tuple[str, Tensor],
    w: CompressorWeights,
    ratio: int,
    state: tuple[Tensor, str],
    target: tuple[Rows, str],
    *,
    in_index: bool,
) -> None:
    buffer, ks = source

    def store(_: object) -> None:
        plan: CompressPlan = b.inputs.meta.compress[ratio]
        b.ops.compress(
            ks,
            state[0],
            w.ape,
            w.norm,
            b.frequencies.compress,
            b.config.rms_norm_eps,
            gather_state=plan.gather_state,
            gather_flat=plan.gather_flat,
            from_flat=plan.from_flat,
            positions=plan.position,
            pool=target[0],
            rows=plan.out_slot if in_index else plan.out_row,
            state_src=plan.state_src,
            state_dst=plan.state_dst,
        )

    b.add(name, store, (buffer, state[1]), (target[1], state[1]))
