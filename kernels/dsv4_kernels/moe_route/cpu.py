"""Expert selection of few tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dsv4_kernels.moe_route.reference import moe_route_reference
from dsv4_kernels.small import is_small


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
    tokens, choices = x.shape[0], gate.shape[0]
    if tokens * choices > 4096 or scoring != "sqrtsoftplus" or not is_small(weights) or gate.dtype is not torch.float32:
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
    scores = _sqrt_softplus(torch.mm(x.float(), gate.t()).numpy())
    if table is not None:
        chosen = table.numpy()[token_ids.numpy()]
    else:
        ranked = scores if bias is None else scores + bias.numpy()
        chosen = np.argsort(-ranked, axis=1, kind="stable")[:, :top_k]
    w = np.take_along_axis(scores, chosen, 1)
    if renormalise:
        w /= w.sum(-1, keepdims=True) + np.float32(1e-20)
    np.multiply(w, np.float32(scale), out=weights.numpy())
    np.copyto(experts.numpy(), chosen)


def _sqrt_softplus(x: Any) -> Any:
    return np.sqrt(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))
