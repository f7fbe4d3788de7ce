"""Which pairs of token and expert a tile does: sorted by expert, cut into blocks. On the device, without a wait."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Blocks:
    """``order``: pair numbers sorted by expert, int32 ``[P]``; per block its expert, first place in it, and rows.

    There are as many blocks as the worst case needs; those that are not needed have no rows.
    """

    order: torch.Tensor
    expert: torch.Tensor
    first: torch.Tensor
    rows: torch.Tensor


def plan_blocks(experts: torch.Tensor, n_experts: int, size: int) -> Blocks:
    """Blocks of at most ``size`` pairs with one expert, from ``experts`` int64 ``[T, k]``."""
    flat = experts.flatten()
    pairs = flat.numel()
    order = torch.argsort(flat, stable=True)
    counts = torch.zeros(n_experts, dtype=torch.int64, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    blocks = (counts + size - 1) // size
    ends, starts = blocks.cumsum(0), counts.cumsum(0) - counts
    most = min(-(-pairs // size) + n_experts, pairs)
    block = torch.arange(most, device=flat.device)
    owner = torch.searchsorted(ends, block, right=True)
    expert = owner.clamp(max=n_experts - 1)
    offset = (block - (ends - blocks)[expert]) * size
    rows = torch.where(owner < n_experts, (counts[expert] - offset).clamp(max=size), 0)
    first = torch.where(owner < n_experts, starts[expert] + offset, 0)
    return Blocks(order.int(), expert.int(), first.int(), rows.int())
