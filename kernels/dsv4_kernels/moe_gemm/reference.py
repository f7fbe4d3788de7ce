"""Routed experts in plain torch (dsv4-spec 2.12)."""

from __future__ import annotations

import torch

from dsv4_kernels.swiglu.reference import swiglu_reference


def moe_gemm_reference(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    limit: float,
    out: torch.Tensor,
) -> None:
    """``out[t] = sum_i weights[t, i] * w2[e] swiglu(w13[e] x[t])`` with ``e = experts[t, i]``.

    ``x [T, D]``; ``experts`` int64 and ``weights`` float32 ``[T, k]``; ``w13 [E, 2 I, D]`` (gate rows, then up rows);
    ``w2 [E, D, I]``; ``out`` float32 ``[T, D]``. Experts are visited in ascending order.
    """
    out.zero_()
    inter = w2.shape[2]
    for e in torch.unique(experts).tolist():
        token, place = (experts == e).nonzero(as_tuple=True)
        h = x[token] @ w13[e].t()
        a = swiglu_reference(h[:, :inter], h[:, inter:], limit).to(x.dtype)
        y = (a @ w2[e].t()).float() * weights[token, place].unsqueeze(1)
        out.index_add_(0, token, y)
