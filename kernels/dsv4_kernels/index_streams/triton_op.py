"""Wrappers of the index stream kernels; arguments as in ``reference.py``."""

from __future__ import annotations

from typing import Any

import torch
import triton

from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.index_streams._kernel import _csa_stream_kernel, _streams_kernel
from dsv4_kernels.index_streams._launch import CSA_STREAM, STREAMS
from dsv4_kernels.launch import launch, overlaps, pdl_of
from dsv4_kernels.target import target_of


def csa_stream(
    indices: torch.Tensor,
    indptr: torch.Tensor,
    topk: torch.Tensor,
    page_table: torch.Tensor,
    request: torch.Tensor,
    *,
    entries_per_page: int,
    first_row: int,
    out: torch.Tensor,
) -> None:
    """See :func:`dsv4_kernels.index_streams.csa_stream_reference`."""
    tokens, k = topk.shape
    require_shape("indptr", indptr, tokens + 1)
    require_shape("request", request, tokens)
    require(out.numel() >= indices.numel(), f"out has room for {out.numel()} of {indices.numel()} entries")
    for name, tensor in (("indices", indices), ("indptr", indptr), ("topk", topk), ("page_table", page_table)):
        require_dtype(name, tensor, torch.int32)
        require_unit_stride(name, tensor)
    launch(
        _csa_stream_kernel,
        (tokens,),
        {
            "indices_ptr": indices, "indptr_ptr": indptr, "topk_ptr": topk, "page_table_ptr": page_table,
            "request_ptr": request, "out_ptr": out, "topk_stride": topk.stride(0),
            "page_table_stride": page_table.stride(0), "first_row": first_row,
        },
        {"K": k, "BLOCK_KK": triton.next_power_of_2(k), "PER_PAGE": entries_per_page, "PDL": pdl_of(topk, tokens)},
        CSA_STREAM.choose(target_of(topk.device)),
    )  # fmt: skip


def index_streams(
    positions: torch.Tensor,
    slots: torch.Tensor,
    starts: torch.Tensor,
    first_rows: torch.Tensor,
    request: torch.Tensor,
    page_table: torch.Tensor,
    *,
    window: int,
    ring_rows: int,
    swa_rows: int,
    topk: int,
    hca_entries_per_page: int,
    pool_indptr: torch.Tensor,
    pool_indices: torch.Tensor,
    hca_indptr: torch.Tensor | None,
    hca_indices: torch.Tensor | None,
    csa_indptr: torch.Tensor | None,
    csa_indices: torch.Tensor | None,
    extend_indptr: torch.Tensor | None,
    extend_indices: torch.Tensor | None,
    ring_row: torch.Tensor,
) -> None:
    """See :func:`dsv4_kernels.index_streams.index_streams_reference`."""
    tokens = positions.shape[0]
    per_token = {"slots": slots, "starts": starts, "first_rows": first_rows, "request": request, "ring_row": ring_row}
    for name, tensor in per_token.items():
        require_shape(name, tensor, tokens)
        require_dtype(name, tensor, torch.int64)
        require_unit_stride(name, tensor)
    require_dtype("page_table", page_table, torch.int32)
    streams = {
        "pool": (pool_indptr, pool_indices),
        "hca": (hca_indptr, hca_indices),
        "csa": (csa_indptr, csa_indices),
        "extend": (extend_indptr, extend_indices),
    }
    arguments: dict[str, Any] = {}
    for name, (indptr, indices) in streams.items():
        require((indptr is None) == (indices is None), f"{name}: give both of indptr and indices, or none")
        if indptr is not None and indices is not None:
            require_shape(f"{name}_indptr", indptr, tokens + 1)
            require_dtype(f"{name}_indices", indices, torch.int32)
        arguments |= {
            f"{name}_indptr": pool_indptr if indptr is None else indptr,
            f"{name}_indices": pool_indices if indices is None else indices,
        }
    if tokens == 0:
        for indptr, _ in streams.values():
            if indptr is not None:
                indptr.zero_()
        return
    launch(
        _streams_kernel,
        (tokens,),
        {
            "positions_ptr": positions, "slots_ptr": slots, "starts_ptr": starts, "first_rows_ptr": first_rows,
            "request_ptr": request, "page_table_ptr": page_table, **arguments, "ring_row_ptr": ring_row,
            "n_tokens": tokens, "window": window, "ring_rows": ring_rows, "swa_rows": swa_rows, "topk": topk,
            "page_table_stride": page_table.stride(0),
        },
        {
            "HCA_PER_PAGE": hca_entries_per_page, "HCA": hca_indptr is not None, "CSA": csa_indptr is not None,
            "EXTEND": extend_indptr is not None, "PDL": overlaps(positions),
        },
        STREAMS.choose(target_of(positions.device), tokens=tokens),
    )  # fmt: skip
