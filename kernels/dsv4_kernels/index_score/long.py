"""Launch of the scores of long contexts; arguments as in ``triton_op.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.index_score._launch import INDEX_SCORE_LONG, INDEX_SCORE_LONG_FP4, LONG_PRODUCTS, LONG_TOKENS
from dsv4_kernels.index_score._long import _index_score_long_kernel
from dsv4_kernels.invariant import active
from dsv4_kernels.launch import launch, overlaps
from dsv4_kernels.target import target_of

FP4 = 2
DIM_FP4 = 128
RUNS = 700
"""Programs, at most, that entries of all tokens are shared by: some four for each SM."""
SHORTEST, LONGEST = 256, 4096


def takes(q: torch.Tensor, keys: torch.Tensor, kind: int) -> bool:
    """Whether the kernel can score these: its products are of 16 bits."""
    tokens, _, dim = q.shape
    exact = q.dtype is torch.bfloat16 and (kind or keys.dtype is q.dtype) and tokens > 0
    fits = dim == DIM_FP4 if kind == FP4 else dim >= 32
    return bool(exact and fits and INDEX_SCORE_LONG.serves(target_of(q.device)))


def pays(q: torch.Tensor, entries: int) -> bool:
    """Whether it is the faster one for rows of ``entries`` scores; where batches must not differ, one serves all."""
    tokens = q.shape[0]
    return tokens <= LONG_TOKENS and tokens * entries >= LONG_PRODUCTS and not active()


def score_long(
    q: torch.Tensor,
    weights: torch.Tensor,
    keys: torch.Tensor,
    kind: int,
    per_page: int,
    page_stride: int,
    page_table: torch.Tensor,
    request: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Scores of paged keys, of each token for itself."""
    tokens, heads, dim = q.shape
    run = min(max(triton.next_power_of_2(out.shape[1] * tokens // RUNS), SHORTEST), LONGEST)
    chosen = (INDEX_SCORE_LONG_FP4 if kind == FP4 else INDEX_SCORE_LONG).choose(target_of(q.device), run=run)
    launch(
        _index_score_long_kernel,
        (triton.cdiv(out.shape[1], run), tokens),
        {
            "q_ptr": q, "weights_ptr": weights, "keys_ptr": keys, "page_table_ptr": page_table,
            "request_ptr": request, "visible_ptr": visible, "out_ptr": out, "run": run, "factor": float(scale),
            "q_stride_t": q.stride(0), "q_stride_h": q.stride(1), "w_stride": weights.stride(0),
            "page_bytes": page_stride,
            "page_table_stride": page_table.stride(0), "out_stride": out.stride(0),
        },
        {
            "HEADS": heads, "BLOCK_HEADS": max(16, triton.next_power_of_2(heads)), "DIM": dim, "PER_PAGE": per_page,
            "KIND": kind, "PACKED": q.device.type != "cpu", "PDL": overlaps(q),
        },
        chosen,
    )  # fmt: skip
