"""Indexer scores in plain torch (dsv4-spec 2.10)."""

from __future__ import annotations

import torch

from dsv4_kernels.paged_rows import IndexFp4Pages, IndexFp8Pages
from dsv4_kernels.rows import Rows


def index_score_reference(
    q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, *, scale: float = 1.0
) -> torch.Tensor:
    """``score[t, e] = sum_h scale * weights[t, h] * relu(q[t, h] . keys[e])``, float32 ``[T, E]``.

    ``q [T, Hi, di]``, ``weights`` float32 ``[T, Hi]`` (softmax-free), ``keys [E, di]`` shared by all tokens, or ``[T,
    E, di]``. Weights are multiplied by ``scale`` in float32, before anything else.
    """
    products = torch.relu(q.float() @ keys.float().mT)
    return torch.bmm((weights.float() * scale).unsqueeze(1), products).squeeze(1)


def index_score_paged_reference(
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
    """Scores of the ``visible[t]`` entries of each token's request into float32 ``out [T, E]``; the others stay.

    Entry ``e`` of request ``r`` is row ``page_table[r, e // entries_per_page] * entries_per_page + e %
    entries_per_page`` of ``keys``. Quantised keys are stored rotated, so ``q`` must be rotated then.
    """
    for t in range(q.shape[0]):
        entry = torch.arange(int(visible[t]), device=q.device)
        page = page_table[request[t], entry // entries_per_page].long()
        rows = page * entries_per_page + entry % entries_per_page
        out[t, : len(rows)] = index_score_reference(q[t : t + 1], weights[t : t + 1], keys[rows], scale=scale)[0]


def index_score_pages_reference(
    q: torch.Tensor,
    weights: torch.Tensor,
    keys: torch.Tensor,
    page_table: torch.Tensor,
    request: torch.Tensor,
    visible: torch.Tensor,
    *,
    kind: str,
    entries_per_page: int,
    out: torch.Tensor,
    scale: float = 1.0,
) -> None:
    """As :func:`index_score_paged_reference` on the tensor behind the keys: rows (``bf16``), or pages of bytes."""
    store: Rows = keys
    if kind != "bf16":
        pages = IndexFp8Pages if kind == "fp8" else IndexFp4Pages
        store = pages(keys, entries_per_page, q.shape[2])
    index_score_paged_reference(
        q, weights, store, page_table, request, visible, entries_per_page=entries_per_page, out=out, scale=scale
    )
