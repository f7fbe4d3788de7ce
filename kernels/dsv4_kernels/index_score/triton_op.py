"""Wrappers of the indexer scores; arguments as in ``reference.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.index_score._kernel import _index_score_kernel
from dsv4_kernels.index_score._launch import INDEX_SCORE
from dsv4_kernels.index_score.hopper_op import pays, score_hopper, takes
from dsv4_kernels.launch import launch, pdl_of
from dsv4_kernels.paged_rows import IndexFp4Pages, IndexFp8Pages
from dsv4_kernels.rows import Rows
from dsv4_kernels.target import target_of

KINDS = {"bf16": 0, "fp8": 1, "fp4": 2}


def index_score(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
    """See :func:`dsv4_kernels.index_score.index_score_reference`."""
    out = torch.empty(q.shape[0], keys.shape[0], dtype=torch.float32, device=q.device)
    require_shape("keys", keys, -1, q.shape[2])
    require(keys.is_contiguous(), "keys are not contiguous")
    _check_queries(q, weights, out)
    _run(q, weights, keys, 0, 1, q.shape[2], None, None, None, scale, out)
    return out


def index_score_paged(
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
    """See :func:`dsv4_kernels.index_score.index_score_paged_reference`; ``keys`` may be fp8 or fp4 pages."""
    kind, pages = "bf16", keys
    if isinstance(keys, IndexFp8Pages):
        kind, pages = "fp8", keys.pages
    elif isinstance(keys, IndexFp4Pages):
        kind, pages = "fp4", keys.pages
    require(isinstance(pages, torch.Tensor), f"keys are {type(keys).__name__}, expected a tensor or index pages")
    assert isinstance(pages, torch.Tensor)
    index_score_pages(
        q, weights, pages, page_table, request, visible, kind=kind, entries_per_page=entries_per_page, out=out,
        scale=scale,
    )  # fmt: skip


def index_score_pages(
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
    """As :func:`index_score_paged` on the tensor behind the keys: rows (``bf16``), or pages of bytes."""
    stride = _checked(q, weights, keys, page_table, request, visible, kind, entries_per_page, out)
    if pays(q, out.shape[1], KINDS[kind]) and takes(q, keys, KINDS[kind], entries_per_page, stride):
        score_hopper(q, weights, keys, KINDS[kind], entries_per_page, stride, page_table, request, visible, scale, out)
        return
    _run(q, weights, keys, KINDS[kind], entries_per_page, stride, page_table, request, visible, scale, out)


def index_score_pages_hopper(
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
    """As :func:`index_score_pages`, by the sibling for long contexts: heads of 128 bf16 values, 64 at most, sm_90."""
    stride = _checked(q, weights, keys, page_table, request, visible, kind, entries_per_page, out)
    fits = takes(q, keys, KINDS[kind], entries_per_page, stride)
    require(fits, f"q is {q.dtype} {list(q.shape)}, keys are {kind}; expected what sm_90's kernel takes")
    score_hopper(q, weights, keys, KINDS[kind], entries_per_page, stride, page_table, request, visible, scale, out)


def _checked(
    q: torch.Tensor,
    weights: torch.Tensor,
    keys: torch.Tensor,
    page_table: torch.Tensor,
    request: torch.Tensor,
    visible: torch.Tensor,
    kind: str,
    entries_per_page: int,
    out: torch.Tensor,
) -> int:
    """Values, or of quantised keys bytes, from page to page."""
    require(kind in KINDS, f"kind {kind!r} is not one of {', '.join(KINDS)}")
    require(keys.is_contiguous() or kind != "bf16", "keys are not contiguous")
    require_dtype("page_table", page_table, torch.int32)
    require_shape("request", request, q.shape[0])
    require_shape("visible", visible, q.shape[0])
    require_shape("out", out, q.shape[0], -1)
    _check_queries(q, weights, out)
    return entries_per_page * q.shape[2] if kind == "bf16" else keys.stride(0)


def _check_queries(q: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> None:
    tokens, heads, dim = q.shape
    require_shape("weights", weights, tokens, heads)
    require(dim & (dim - 1) == 0 and dim >= 16, f"q has heads of {dim} values, expected a power of two from 16")
    for name, tensor in (("q", q), ("weights", weights), ("out", out)):
        require_unit_stride(name, tensor)


def _run(
    q: torch.Tensor,
    weights: torch.Tensor,
    keys: torch.Tensor,
    kind: int,
    per_page: int,
    page_stride: int,
    page_table: torch.Tensor | None,
    request: torch.Tensor | None,
    visible: torch.Tensor | None,
    scale: float,
    out: torch.Tensor,
) -> None:
    tokens, heads, dim = q.shape
    chosen = INDEX_SCORE.choose(target_of(q.device), tokens=tokens)
    launch(
        _index_score_kernel,
        (triton.cdiv(out.shape[1], chosen["BLOCK_E"]), triton.cdiv(tokens, chosen["TOKENS"])),
        {
            "q_ptr": q, "weights_ptr": weights, "keys_ptr": keys,
            "page_table_ptr": keys if page_table is None else page_table,
            "request_ptr": keys if request is None else request, "visible_ptr": keys if visible is None else visible,
            "out_ptr": out, "n_tokens": tokens, "n_entries": out.shape[1], "factor": float(scale),
            "q_stride_t": q.stride(0), "q_stride_h": q.stride(1), "w_stride": weights.stride(0),
            "page_bytes": page_stride,
            "page_table_stride": 0 if page_table is None else page_table.stride(0), "out_stride": out.stride(0),
        },
        {
            "HEADS": heads, "BLOCK_HEADS": max(16, triton.next_power_of_2(heads)), "DIM": dim, "PER_PAGE": per_page,
            "KIND": kind, "NATIVE": target_of(q.device).fp8 == "ocp", "PAGED": page_table is not None,
            "PDL": pdl_of(q, q.shape[0]),
        },
        chosen,
    )  # fmt: skip
