"""Indexer scores in plain torch (dsv4-spec 2.10)."""

from __future__ import annotations

import torch


def index_score_reference(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """``score[t, e] = sum_h weights[t, h] * relu(q[t, h] . keys[e])``, float32 ``[T, E]``.

    ``q [T, Hi, di]``, ``weights`` float32 ``[T, Hi]`` (softmax-free, already scaled), ``keys [E, di]`` shared by all
    tokens, or ``[T, E, di]``.
    """
    products = torch.relu(q.float() @ keys.float().mT)
    return torch.bmm(weights.float().unsqueeze(1), products).squeeze(1)
