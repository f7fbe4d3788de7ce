"""The DSpark block drafter as op lists: context injection, and one block forward (dsv4-spec 7.3)."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from dsv4lab.kv import pool as resource
from dsv4lab.model.block import list_block
from dsv4lab.model.builder import OpListBuilder
from dsv4lab.model.draft_weights import DsparkWeights
from dsv4lab.model.mtp import CHOSEN, chosen_view
from dsv4lab.model.rope import MAIN_TABLE, list_rope_ops, rope_view
from dsv4lab.model.tap import TAPS
from dsv4lab.model.transformer import LOGITS, list_embedding, list_head, logits_view
from dsv4lab.model.weights import AttentionWeights
from dsv4lab.overlap.ops import Op


def list_injection(b: OpListBuilder, w: DsparkWeights, taps: int) -> list[Op]:
    """Ops that write every stage's ring rows of committed tokens from their taps ``[T, taps, D]``."""
    c = b.config
    source = b.buffer(TAPS, taps, c.hidden_size)
    projected, main = b.buffer("dspark.projected", c.hidden_size), b.buffer("dspark.main", c.hidden_size)
    list_rope_ops(b)

    def project(_: object) -> None:
        b.ops.linear(source.flatten(1), w.main_proj, projected)
        b.ops.rms_norm(projected, w.main_norm, c.rms_norm_eps, main)

    b.add("dspark.main", project, (TAPS,), ("dspark.projected", "dspark.main"))
    for i, layer in enumerate(w.layers):
        with b.layer(i):
            _list_stage_injection(b, i, layer.attention)
    return b.list


def _list_stage_injection(b: OpListBuilder, stage: int, w: AttentionWeights) -> None:
    """The stage's own KV projection of ``dspark.main``, normed, rotated and stored into its ring."""
    c = b.config
    main, kv_a = b.buffer("dspark.main", c.hidden_size), b.buffer("dspark.kv_a", c.head_dim)
    kv, rope = b.buffer("kv", c.head_dim), rope_view(b, MAIN_TABLE)
    assert isinstance(w.qkv_a, Tensor)  # drafters are dense
    wkv = w.qkv_a[c.q_lora_rank :]

    def store(_: object) -> None:
        meta = b.inputs.meta
        b.ops.linear(main, wkv, kv_a)
        b.ops.kv_norm_rope(kv_a, w.kv_norm, rope, c.rms_norm_eps, kv)
        b.ops.ring_store(kv, meta.ring_store_src, b.pool.unified[stage], meta.ring_store_dst)

    b.add("dspark.inject", store, ("dspark.main", MAIN_TABLE), ("dspark.kv_a", "kv", resource.ring(stage)))


def list_block_forward(b: OpListBuilder, w: DsparkWeights) -> list[Op]:
    """Ops of one block: embedding, stages, head. Results: buffers ``head.mixed`` (not normed) and ``logits``."""
    list_embedding(b, w.embed)
    list_rope_ops(b)
    for i, layer in enumerate(w.layers):
        list_block(b, i, layer)
    b.flush()
    list_head(b, w.hc_head, w.norm, w.head)
    return b.list


def list_block_drafts(b: OpListBuilder, w: DsparkWeights, size: int, drafts: int) -> list[Op]:
    """Ops of one block and of the greedy Markov chain over it; the drafts land in :func:`chosen_view`."""
    list_block_forward(b, w)
    requests = b.shape.tokens // size
    base = logits_view(b).view(requests, size, -1)
    chosen = chosen_view(b.arena, requests, drafts)

    def pick(_: object, place: int) -> None:
        anchors = b.inputs.meta.token_ids.view(requests, size)[:, 0]
        previous = chosen[:, place - 1] if place else anchors
        chosen[:, place].copy_(markov_logits(base[:, place], w, previous).argmax(1))

    for place in range(drafts):
        b.add("dspark.markov", partial(pick, place=place), (LOGITS, *(CHOSEN,) * (place > 0)), (CHOSEN,))
    return b.list


def markov_logits(base: Tensor, w: DsparkWeights, previous: Tensor) -> Tensor:
    """Logits of one place: the block's ``[n, vocab]`` and the bias of the tokens before, ``previous [n]``."""
    return base + w.markov_in[previous] @ w.markov_out.t()
