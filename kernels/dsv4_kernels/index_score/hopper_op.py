"""Launch of the Hopper sibling of the scores; arguments as in ``triton_op.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.index_score._hopper import index_score_hopper_kernel
from dsv4_kernels.index_score._launch import HOPPER, HOPPER_FROM, HOPPER_TOKENS
from dsv4_kernels.invariant import active
from dsv4_kernels.launch import launch, overlaps
from dsv4_kernels.target import target_of

DIM, HEADS, TILE = 128, 64, 64


def takes(q: torch.Tensor, keys: torch.Tensor, kind: int, per_page: int, page_stride: int) -> bool:
    """Whether the kernel can score these: its products are of 16 bits, its copies of 16 bytes."""
    tokens, heads, dim = q.shape
    exact = q.dtype is torch.bfloat16 and (kind > 0 or keys.dtype is q.dtype)
    fits = tokens > 0 and heads <= HEADS and dim == DIM and per_page % TILE == 0
    aligned = keys.data_ptr() % 16 == 0 and page_stride * keys.element_size() % 16 == 0
    return bool(exact and fits and aligned and HOPPER[kind].serves(target_of(q.device)))


def pays(q: torch.Tensor, entries: int, kind: int) -> bool:
    """Whether it is the faster one for rows of ``entries`` scores.

    Where batches must not differ, one serves all; the interpreter, which is what the CPU has, cannot run it.
    """
    tokens, (least, scores) = q.shape[0], HOPPER_FROM[kind]
    many = tokens <= HOPPER_TOKENS and (entries >= least or tokens * entries >= scores)
    return many and not active() and q.device.type != "cpu"


def score_hopper(
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
    """Scores of paged keys, of each token for itself: programs share what is visible, whatever there is room for."""
    tokens, heads, _ = q.shape
    target = target_of(q.device)
    chosen = HOPPER[kind].choose(target, scores=tokens * out.shape[1])
    slots = target.units * chosen["PER_UNIT"]
    launch(
        index_score_hopper_kernel,
        (slots + tokens,),
        {
            "q_ptr": q, "weights_ptr": weights, "keys_ptr": keys, "page_table_ptr": page_table,
            "request_ptr": request, "visible_ptr": visible, "out_ptr": out, "n_tokens": tokens, "slots": slots,
            "factor": float(scale), "q_stride_t": q.stride(0), "q_stride_h": q.stride(1),
            "w_stride": weights.stride(0), "page_bytes": page_stride, "page_table_stride": page_table.stride(0),
            "out_stride": out.stride(0),
        },
        {
            "HEADS": heads, "BLOCK_HEADS": max(16, triton.next_power_of_2(heads)),
            "TOKENS": triton.next_power_of_2(max(tokens, 64)),
            "PER_PAGE": per_page, "KIND": kind, "PACKED": q.device.type != "cpu", "PDL": overlaps(q),
        },
        chosen,
    )  # fmt: skip
