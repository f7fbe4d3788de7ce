"""Expert selection, by score or by token id, in plain torch (dsv4-spec 2.12)."""

from __future__ import annotations

import torch


def moe_route_reference(
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
    """Experts and weights of each token, into ``experts`` (int64) and ``weights`` (float32), both ``[T, k]``.

    ``x [T, D]``, ``gate [E, D]``; scores are float32. With a ``table [V, k]`` the experts are ``table[token_ids]``;
    otherwise the ``top_k`` of score + ``bias [E]``, where the bias affects the choice only. Weights are the chosen
    scores, divided by their sum if ``renormalise``, times ``scale``.
    """
    logits = x.float() @ gate.float().t()
    scores = _score(logits, scoring)
    if table is not None:
        chosen = table[token_ids].long()
    else:
        ranked = scores if bias is None else scores + bias
        chosen = torch.topk(ranked, top_k, dim=-1, sorted=True).indices
    w = torch.gather(scores, 1, chosen)
    if renormalise:
        w = w / (w.sum(-1, keepdim=True) + 1e-20)
    weights.copy_(w * scale)
    experts.copy_(chosen)


def _score(logits: torch.Tensor, scoring: str) -> torch.Tensor:
    if scoring == "sqrtsoftplus":
        return _sqrt_softplus(logits)
    if scoring == "sigmoid":
        return logits.sigmoid()
    if scoring == "softmax":
        return logits.softmax(-1)
    raise ValueError(f"scoring {scoring!r} is not one of sqrtsoftplus, sigmoid, softmax")


def _sqrt_softplus(x: torch.Tensor) -> torch.Tensor:
    """``sqrt(log(1 + e^x))`` by log1p, which neither underflows for very negative nor overflows for large ``x``."""
    return (x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))).sqrt()
