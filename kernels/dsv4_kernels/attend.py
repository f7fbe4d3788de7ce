"""The attention core that decode and prefill references share (dsv4-spec 2.7)."""

from __future__ import annotations

import torch

BLOCK_TOKENS = 32


def padded_rows(
    indices: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of a block of tokens as ``int64 [B, L]`` with a validity mask, -1 entries masked.

    Masked places repeat a valid row of the same token (row 0 if it has none), so that they never touch rows which no
    token owns.
    """
    width = int(lengths.max()) if lengths.numel() else 0
    offsets = torch.arange(width)
    inside = offsets < lengths.unsqueeze(1)
    at = (starts.unsqueeze(1) + offsets).clamp(max=max(indices.numel() - 1, 0))
    rows = indices[at].long() if indices.numel() else torch.zeros(at.shape, dtype=torch.int64)
    mask = inside & (rows >= 0)
    if width == 0:
        return rows, mask
    first = torch.gather(rows, 1, mask.int().argmax(1, keepdim=True)).clamp(min=0)
    return torch.where(mask, rows, first), mask


def attend(
    q: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor, sink: torch.Tensor, scale: float, out: torch.Tensor
) -> None:
    """Attention with K = V and a sink in the denominator, into ``out [B, H, d]``.

    ``q [B, H, d]``, ``kv [B, L, d]``, ``mask [B, L]``, ``sink [H]``. The stabiliser
    is ``max(scores, sink)``, and finite whatever the sink, so a token without rows gives zeros.
    """
    keys = kv.float()
    if not bool(mask.any(1).all()):
        keys = torch.where(mask.unsqueeze(-1), keys, 0)
    scores = torch.bmm(q.float(), keys.transpose(1, 2)) * scale
    scores = torch.where(mask.unsqueeze(1), scores, float("-inf"))
    bound = sink.float().clamp(min=torch.finfo(torch.float32).min).view(1, -1, 1)
    top = torch.maximum(scores.amax(-1, keepdim=True), bound) if scores.shape[-1] else bound.expand(q.shape[0], -1, 1)
    p = torch.exp(scores - top)
    total = p.sum(-1, keepdim=True) + torch.exp(bound - top)
    out.copy_(torch.bmm(p, keys) / total)
