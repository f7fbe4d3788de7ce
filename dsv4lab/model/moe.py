"""Mixture of experts: routing by token id or by score, routed and shared experts (dsv4-spec 2.12, 8.3).

Where ranks share the experts, each computes its part of every token's sum, and the parts are added up over the ranks.
With peers, the tokens of all are gathered first, and each gets the sums of its own tokens back.
"""

from __future__ import annotations

import torch

from dsv4lab.model.activations import Activations
from dsv4lab.model.builder import OpListBuilder
from dsv4lab.model.collectives import list_all_gather, list_all_reduce, list_reduce_scatter
from dsv4lab.model.weights import MoeWeights
from dsv4lab.overlap.ops import OpFunction

INPUT = "ffn.in"
OUTPUT = "ffn.out"
GATHERED = "moe.in"
TOKEN_IDS = "moe.token_ids"

Tensor = torch.Tensor


def list_moe(b: OpListBuilder, w: MoeWeights, own: Activations | None = None) -> None:
    """All ops from the normed input ``ffn.in`` to the sublayer output ``ffn.out``.

    The shared expert takes ``own`` for it, if given; with peers what is gathered.
    """
    c = b.config
    peers = b.parallel.dp
    source = INPUT if peers is None else GATHERED
    x = b.buffer(INPUT, c.hidden_size) if peers is None else _list_gather(b)
    routed = moe_view(b, "moe.routed", c.hidden_size, dtype=torch.float32)
    weights, experts = _list_routing(b, w, x, source)
    shared = _list_shared(b, w, own if own is not None and peers is None else Activations(x, (source,)))
    b.add(
        "moe.experts",
        lambda _: b.ops.moe_gemm(x, experts, weights, w.w13, w.w2, c.swiglu_limit, routed),
        (source, "moe.weights", "moe.expert_ids"),
        ("moe.routed",),
    )
    target = OUTPUT if peers is None else "moe.partial"
    y = b.buffer(OUTPUT, c.hidden_size) if peers is None else moe_view(b, "moe.partial", c.hidden_size)

    def combine(_: object) -> None:
        if shared is None:
            y.copy_(routed)
        else:
            b.ops.add(routed, shared, y)

    b.add("moe.combine", combine, ("moe.routed",) if shared is None else ("moe.routed", "moe.shared"), (target,))
    _list_sum(b, y)


def moe_view(b: OpListBuilder, name: str, *row_shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Buffer ``name`` for the tokens that the experts see: its own, or with peers ``[peers * gathered, ...]``."""
    peers = b.parallel.dp
    if peers is None:
        return b.buffer(name, *row_shape, dtype=dtype)
    return b.buffer(name, peers.size, *row_shape, dtype=dtype, rows=b.shape.gathered).view(-1, *row_shape)


def list_gathered_ids(b: OpListBuilder) -> None:
    """With peers, and a layer that routes by token id: the ids of everybody's tokens, 0 for padding."""
    peers = b.parallel.dp
    if peers is None or not b.config.num_hash_layers:
        return
    own = b.buffer("moe.own_ids", dtype=torch.int64, rows=b.shape.gathered)
    everybody = moe_view(b, TOKEN_IDS, dtype=torch.int64)

    def fill(_: object) -> None:
        own.zero_()
        if b.shape.tokens:
            own[: b.shape.tokens] = b.inputs.meta.token_ids

    b.add("moe.own_ids", fill, (), ("moe.own_ids",))
    list_all_gather(b, "moe.ids_all_gather", peers, own, everybody, ("moe.own_ids",), (TOKEN_IDS,))


def _list_gather(b: OpListBuilder) -> Tensor:
    """Everybody's inputs ``[peers * gathered, D]``; rows of padding are zero."""
    peers, width = b.parallel.dp, b.config.hidden_size
    assert peers is not None
    x = b.buffer(INPUT, width)
    padded = b.buffer("moe.padded", width, rows=b.shape.gathered)
    everybody = moe_view(b, GATHERED, width)

    def pad(_: object) -> None:
        padded[: b.shape.tokens] = x
        padded[b.shape.tokens :].zero_()

    b.add("moe.pad", pad, (INPUT,), ("moe.padded",))
    list_all_gather(b, "moe.all_gather", peers, padded, everybody, ("moe.padded",), (GATHERED,))
    return everybody


def _list_shared(b: OpListBuilder, w: MoeWeights, x: Activations) -> Tensor | None:
    """The shared expert's output; None where it is one of the routed ones."""
    w13, w2 = w.shared_w13, w.shared_w2
    if w13 is None or w2 is None:
        return None
    out = moe_view(b, "moe.shared", b.config.hidden_size)
    b.add("moe.shared", lambda _: b.ops.mlp(x.rows, w13, w2, b.config.swiglu_limit, out), x.names, ("moe.shared",))
    return out


def _list_routing(b: OpListBuilder, w: MoeWeights, x: Tensor, source: str) -> tuple[Tensor, Tensor]:
    """Weights and experts ``[tokens, choices]``; the last choice is the shared expert where it is fused."""
    c = b.config
    k = c.num_experts_per_tok
    weights = moe_view(b, "moe.weights", k + w.fused, dtype=torch.float32)
    experts = moe_view(b, "moe.expert_ids", k + w.fused, dtype=torch.int64)
    ids = None if b.parallel.dp is None else moe_view(b, TOKEN_IDS, dtype=torch.int64)

    def route(_: object) -> None:
        b.ops.moe_route(
            x,
            w.gate,
            bias=w.bias,
            table=w.table,
            token_ids=b.inputs.meta.token_ids if ids is None else ids,
            top_k=k,
            scale=c.routed_scaling_factor,
            scoring=c.scoring_func,
            renormalise=c.norm_topk_prob,
            weights=weights[:, :k],
            experts=experts[:, :k],
        )
        if w.fused:
            weights[:, k:] = 1.0
            experts[:, k:] = w.w13.shape[0] - 1

    reads = (source,) if ids is None or w.table is None else (source, TOKEN_IDS)
    b.add("moe.route", route, reads, ("moe.weights", "moe.expert_ids"))
    if b.parallel.layout.ep_size > 1:
        first = b.parallel.layout.experts(c).start
        run = _dispatch(weights, experts, first, w.w13.shape[0])
        b.add("moe.dispatch", run, ("moe.weights", "moe.expert_ids"), ("moe.weights", "moe.expert_ids"))
    return weights, experts


def _dispatch(weights: Tensor, experts: Tensor, first: int, count: int) -> OpFunction:
    """Number the experts that live here from 0; choices that live elsewhere get weight 0, and one and the same expert,
    so that they cost the weights of no more than one.
    """

    def run(_: object) -> None:
        experts.sub_(first)
        foreign = (experts < 0) | (experts >= count)
        weights.masked_fill_(foreign, 0.0)
        experts.masked_fill_(foreign, 0)

    return run


def _list_sum(b: OpListBuilder, partial: Tensor) -> None:
    """Add the ranks' parts up; with peers, each keeps the sums of its own tokens."""
    tp, peers, width = b.parallel.tp, b.parallel.dp, b.config.hidden_size
    y = b.buffer(OUTPUT, width)
    if peers is not None:
        own = b.buffer("moe.own", width, rows=b.shape.gathered)
        parts = partial.view(peers.size, -1, width)
        list_reduce_scatter(b, "moe.reduce_scatter", peers, parts, own, y, "moe.partial", ("moe.own", OUTPUT))
    list_all_reduce(b, "moe.all_reduce", tp, y, OUTPUT)
