"""Top-k of indexer scores in float32 on the CPU, and scoring with it where keys are few."""

from __future__ import annotations

import torch

from dsv4_kernels.index_score.reference import index_score_reference
from dsv4_kernels.index_topk import _native
from dsv4_kernels.index_topk.reference import index_topk_reference
from dsv4_kernels.native import is_native
from dsv4_kernels.rows import Rows

FEW_PRODUCTS = 1 << 20


def index_topk_cpu(scores: torch.Tensor, visible: torch.Tensor, k: int, out: torch.Tensor) -> None:
    """See :func:`index_topk_reference`."""
    if is_native(scores):
        _native.topk(scores.numpy(), visible.numpy(), k, out.numpy())
    else:
        index_topk_reference(scores, visible, k, out)


def index_select_cpu(
    q: torch.Tensor,
    weights: torch.Tensor,
    keys: Rows,
    page_table: torch.Tensor,
    request: torch.Tensor,
    visible: torch.Tensor,
    *,
    entries_per_page: int,
    out: torch.Tensor,
) -> None:
    """Score the ``visible[t]`` entries of every token's request and put the best of them into int32 ``out [T, k]``.

    ``q [T, Hi, di]``, ``weights [T, Hi]``; entries, ``page_table`` and ``request`` as for ``index_score_paged``, the
    choice as for ``index_topk``.
    """
    few = int(visible.sum()) * q.shape[1] * q.shape[2] <= FEW_PRODUCTS
    if few and isinstance(keys, torch.Tensor) and is_native(q, weights, keys):
        _native.select(
            q.numpy(),
            weights.numpy(),
            keys.numpy(),
            page_table.numpy(),
            request.numpy(),
            visible.numpy(),
            entries_per_page,
            out.numpy(),
        )
        return
    entry = torch.arange(int(visible.max()))
    pages = page_table[request][:, entry // entries_per_page].long().clamp_(min=0)
    entries = keys[pages * entries_per_page + entry % entries_per_page]
    index_topk_cpu(index_score_reference(q, weights, entries), visible, out.shape[1], out)
