"""Expert selection of few tokens in float32 on the CPU."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from dsv4_kernels.moe_route import _native
from dsv4_kernels.moe_route.reference import moe_route_reference
from dsv4_kernels.native import is_native

FEW_SCORES = 1 << 13


def moe_route_cpu(
    x: torch.Tensor,
    gate: torch.Tensor,
    *,
    bias: torch.Tensor | None,
    table: torch.Tensor | None,
    token_ids: torch.Tensor,
    top_k: int,
    scale: float,
    scoring: str,
    renormalise: bool,
    weights: torch.Tensor,
    experts: torch.Tensor,
) -> None:
    """See :func:`moe_route_reference`."""
    few = x.shape[0] * gate.shape[0] <= FEW_SCORES
    if not few or scoring != "sqrtsoftplus" or not is_native(x, gate, weights):
        moe_route_reference(
            x,
            gate,
            bias=bias,
            table=table,
            token_ids=token_ids,
            top_k=top_k,
            scale=scale,
            scoring=scoring,
            renormalise=renormalise,
            weights=weights,
            experts=experts,
        )
        return
    scores = torch.mm(x, gate.t()).numpy()
    _native.scores_of(scores)
    if table is None:
        _native.best(scores, (_zeros(gate.shape[0]) if bias is None else bias).numpy(), experts.numpy())
    else:
        torch.index_select(table, 0, token_ids, out=experts)
    _native.weigh(scores, experts.numpy(), np.float32(scale), renormalise, weights.numpy())


@cache
def _zeros(n: int) -> torch.Tensor:
    return torch.zeros(n)
