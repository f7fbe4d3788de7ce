"""Compressors: one GEMM for keys and scores, then pooling, norm, rope and store (dsv4-spec 2.9)."""

from __future__ import annotations

import torch

from dsv4lab.kv import pool as resource
from dsv4lab.kv.metadata import CompressPlan
from dsv4lab.kv.pool import Rows
from dsv4lab.model.builder import OpListBuilder
from dsv4lab.model.weights import CompressorWeights


def list_compressor(b: OpListBuilder, layer: int, w: CompressorWeights, ratio: int) -> None:
    """The main compressor of ``layer``: it writes compressed rows of the layer's pool."""
    state = b.pool.state[layer]
    assert state is not None
    _list(
        b,
        "compressor",
        f"compressor.{ratio}",
        w,
        ratio,
        (state, resource.state(layer)),
        (b.pool.unified[layer], resource.rows(layer)),
        in_index=False,
    )


def list_index_compressor(b: OpListBuilder, layer: int, w: CompressorWeights) -> None:
    """The indexer's compressor of ``layer``: it writes index keys."""
    state, keys = b.pool.index_state[layer], b.pool.index_k[layer]
    assert state is not None
    assert keys is not None
    _list(
        b,
        "indexer.compressor",
        "indexer.compressor",
        w,
        4,
        (state, resource.index_state(layer)),
        (keys, resource.index_k(layer)),
        in_index=True,
    )


def _list(
    b: OpListBuilder,
    name: str,
    buffer: str,
    w: CompressorWeights,
    ratio: int,
    state: tuple[torch.Tensor, str],
    target: tuple[Rows, str],
    *,
    in_index: bool,
) -> None:
    x = b.buffer("attn.in", b.config.hidden_size)
    ks = b.buffer(buffer, w.kv_gate.shape[0], dtype=torch.float32)

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

    b.add(f"{name}.gemm", lambda _: b.ops.linear(x, w.kv_gate, ks), ("attn.in",), (buffer,))
    b.add(f"{name}.store", store, (buffer, state[1]), (target[1], state[1]))
