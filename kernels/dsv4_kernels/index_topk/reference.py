"""Stable, NaN-safe top-k of indexer scores in plain torch (dsv4-spec 2.10.6, 5.5)."""

from __future__ import annotations

import torch


def index_topk_reference(scores: torch.Tensor, visible: torch.Tensor, k: int, out: torch.Tensor) -> None:
    """The ``min(k, visible[t])`` best entries of each row, in ascending entry order, -1 padded, into ``out [T, k]``.

    ``scores [T, E]``: entries at or beyond ``visible[t]`` are ignored; NaN counts as -inf; of equal scores the lowest
    entry wins. ``out`` is int32.
    """
    entries = scores.shape[1]
    hidden = torch.arange(entries) >= visible.unsqueeze(1)
    ranked = torch.where(hidden | scores.isnan(), float("-inf"), scores)
    best = torch.sort(ranked, dim=1, descending=True, stable=True).indices[:, :k]
    taken = torch.arange(best.shape[1]) < visible.unsqueeze(1).clamp(max=k)
    picked = torch.where(taken, best, entries).sort(dim=1).values
    out.fill_(-1)
    out[:, : picked.shape[1]] = torch.where(picked < entries, picked, -1).to(out.dtype)
