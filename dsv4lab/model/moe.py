"""Mixture of experts: routing by token id or by score, routed and shared experts (dsv4-spec 2.12)."""

from __future__ import annotations

import torch

from dsv4lab.model.builder import OpListBuilder
from dsv4lab.model.weights import MoeWeights

INPUT = "ffn.in"
OUTPUT = "ffn.out"


def list_moe(b: OpListBuilder, w: MoeWeights) -> None:
    """All ops from the normed input ``ffn.in`` to the sublayer output ``ffn.out``."""
    c = b.config
    x = b.buffer(INPUT, c.hidden_size)
    weights = b.buffer("moe.weights", c.num_experts_per_tok, dtype=torch.float32)
    experts = b.buffer("moe.expert_ids", c.num_experts_per_tok, dtype=torch.int64)
    routed = b.buffer("moe.routed", c.hidden_size, dtype=torch.float32)
    shared = b.buffer("moe.shared", c.hidden_size)
    y = b.buffer(OUTPUT, c.hidden_size)

    def route(_: object) -> None:
        b.ops.moe_route(
            x,
            w.gate,
            bias=w.bias,
            table=w.table,
            token_ids=b.inputs.meta.token_ids,
            top_k=c.num_experts_per_tok,
            scale=c.routed_scaling_factor,
            scoring=c.scoring_func,
            renormalise=c.norm_topk_prob,
            weights=weights,
            experts=experts,
        )

    def combine(_: object) -> None:
        y.copy_(routed + shared)

    def run_shared(_: object) -> None:
        b.ops.mlp(x, w.shared_w13, w.shared_w2, c.swiglu_limit, shared)

    b.add("moe.route", route, (INPUT,), ("moe.weights", "moe.expert_ids"))
    b.add("moe.shared", run_shared, (INPUT,), ("moe.shared",))
    b.add(
        "moe.experts",
        lambda _: b.ops.moe_gemm(x, experts, weights, w.w13, w.w2, c.swiglu_limit, routed),
        (INPUT, "moe.weights", "moe.expert_ids"),
        ("moe.routed",),
    )
    b.add("moe.combine", combine, ("moe.routed", "moe.shared"), (OUTPUT,))
