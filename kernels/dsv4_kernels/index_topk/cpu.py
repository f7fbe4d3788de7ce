"""Top-k of indexer scores on the CPU, and scoring with it: in a compiled loop where keys are few."""

from __future__ import annotations

import torch

from dsv4_kernels.index_score.reference import index_score_reference
from dsv4_kernels.index_topk import _native
from dsv4_kernels.index_topk.reference import index_topk_reference
from dsv4_kernels.native import is_native
from dsv4_kernels.rows import Rows

FEW_PRODUCTS = 1 << 20
SCORE_BUDGET = 16 << 20  # bytes of products held at once


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
    scale: float = 1.0,
) -> None:
    """Score the ``visible[t]`` entries of every token's request and put the best of them into int32 ``out [T, k]``.

    ``q [T, Hi, di]``, ``weights [T, Hi]``; entries, ``page_table``, ``request`` and ``scale`` as for
    ``index_score_paged``, the choice as for ``index_topk``.
    """
    if int(visible.max()) <= out.shape[1]:
        _take_all(visible, out)
        return
    weights = weights * scale
    if int(visible.sum()) * q.shape[1] * q.shape[2] <= FEW_PRODUCTS and _plain(q, weights, keys):
        assert isinstance(keys, torch.Tensor)
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
    else:
        _select_by_request(q, weights, keys, page_table, request, visible, entries_per_page, out)


def _plain(q: torch.Tensor, weights: torch.Tensor, keys: Rows) -> bool:
    return isinstance(keys, torch.Tensor) and is_native(q, weights, keys)


def _take_all(visible: torch.Tensor, out: torch.Tensor) -> None:
    order = torch.arange(out.shape[1], dtype=torch.int32)
    out.copy_(torch.where(order < visible.unsqueeze(1), order, -1))


def _select_by_request(
    q: torch.Tensor,
    weights: torch.Tensor,
    keys: Rows,
    page_table: torch.Tensor,
    request: torch.Tensor,
    visible: torch.Tensor,
    per_page: int,
    out: torch.Tensor,
) -> None:
    """Run by run of tokens of one request: their keys are gathered once."""
    item, counts = torch.unique_consecutive(request, return_counts=True)
    first = 0
    for i, count in zip(item.tolist(), counts.tolist(), strict=True):
        part = slice(first, first + count)
        first += count
        seen = int(visible[part].max())
        if seen <= out.shape[1]:
            _take_all(visible[part], out[part])
            continue
        pages = page_table[i, : -(-seen // per_page)].long()
        rows = (pages.unsqueeze(1) * per_page + torch.arange(per_page)).flatten()[:seen]
        _score_blocks(q[part], weights[part], keys[rows], visible[part], out[part])


def _score_blocks(
    q: torch.Tensor, weights: torch.Tensor, entries: torch.Tensor, visible: torch.Tensor, out: torch.Tensor
) -> None:
    """Score and select in blocks of tokens, so that the per-head products stay within ``SCORE_BUDGET``."""
    block = max(1, SCORE_BUDGET // (4 * entries.shape[0] * q.shape[1]))
    for a in range(0, q.shape[0], block):
        part = slice(a, a + block)
        scores = index_score_reference(q[part], weights[part], entries)
        index_topk_cpu(scores, visible[part], out.shape[1], out[part])
