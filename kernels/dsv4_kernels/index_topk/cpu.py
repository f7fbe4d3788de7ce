"""Top-k of few scores."""

from __future__ import annotations

import numpy as np
import torch

from dsv4_kernels.index_topk.reference import index_topk_reference
from dsv4_kernels.small import is_small


def index_topk_cpu(scores: torch.Tensor, visible: torch.Tensor, k: int, out: torch.Tensor) -> None:
    """See :func:`index_topk_reference`."""
    if not is_small(scores):
        index_topk_reference(scores, visible, k, out)
        return
    s, seen = scores.numpy(), visible.numpy()[:, None]
    entries = s.shape[1]
    ranked = np.where((np.arange(entries) < seen) & (s == s), -s, np.float32(np.inf))
    best = np.argsort(ranked, axis=1, kind="stable")[:, :k]
    picked = np.where(np.arange(best.shape[1]) < np.minimum(seen, k), best, entries)
    picked.sort(axis=1)
    target = out.numpy()
    target[:, : best.shape[1]] = np.where(picked < entries, picked, -1)
    target[:, best.shape[1] :] = -1
