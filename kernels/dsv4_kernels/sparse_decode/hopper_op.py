"""Wrapper of the Hopper sibling of ``sparse_decode``."""

from __future__ import annotations

from typing import Any

import torch
import triton

from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.launch import launch
from dsv4_kernels.sparse_decode._hopper import hopper_attention_kernel
from dsv4_kernels.sparse_decode._hopper_fp8 import hopper_fp8_kernel
from dsv4_kernels.sparse_decode._launch import HOPPER, HOPPER_FP8
from dsv4_kernels.sparse_decode.triton_op import (
    check_lists,
    check_two_pools,
    partial_results,
    reduce,
    rows_aligned,
    sparse_decode_fp8_portable,
    splits_of,
)
from dsv4_kernels.target import target_of

DIM, HEADS, KEYS = 512, 64, 64


def sparse_decode_hopper(
    q: torch.Tensor,
    pool: torch.Tensor,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    *,
    splits: int | None = None,
) -> None:
    """See :func:`dsv4_kernels.sparse_decode.sparse_decode_reference`; 512 dims, bf16 or fp16, sm_90."""
    check_lists(q, indices, indptr, sink, out)
    require_shape("pool", pool, -1, DIM)
    require_dtype("pool", pool, q.dtype)
    require_unit_stride("pool", pool)
    tokens = q.shape[0]
    if tokens == 0:
        return
    if splits is None:
        blocks = triton.cdiv(q.shape[1], HEADS)
        splits = splits_of("hopper", target_of(q.device), tokens, blocks, indices.shape[0], KEYS, q.shape[1])
    acc, stats = partial_results(q, splits)
    launch_hopper(q, pool, indices, indptr, None, None, None, sink, scale, out, acc, stats, splits)
    if splits > 1:
        reduce(acc, stats, sink, out, splits)


def sparse_decode_fp8_hopper(
    q: torch.Tensor,
    pool: torch.Tensor,
    rope_pool: torch.Tensor,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    *,
    splits: int | None = None,
) -> None:
    """See :func:`dsv4_kernels.sparse_decode.sparse_decode_fp8_reference`; 512 dims, 64 of them rope, bf16, sm_90.

    Rows of both pools begin on 16 bytes.
    """
    check_lists(q, indices, indptr, sink, out)
    check_two_pools(q, pool, rope_pool)
    tokens, heads, d = q.shape
    require(d == DIM, f"q has heads of {d} dims, the Hopper kernel takes {DIM}")
    require_shape("rope_pool", rope_pool, -1, 64)
    require_dtype("q", q, torch.bfloat16)
    require(rows_aligned(pool) and rows_aligned(rope_pool), "a pool has rows that do not begin on 16 bytes")
    if tokens == 0:
        return
    target = target_of(q.device)
    if splits is None:
        splits = splits_of("hopper", target, tokens, triton.cdiv(heads, HEADS), indices.shape[0], KEYS, heads)
    acc, stats = partial_results(q, splits)
    items = tokens * splits * triton.cdiv(heads, HEADS)
    launch(
        hopper_fp8_kernel,
        (min(items, target.units),),
        {
            "q_ptr": q, "pool_ptr": pool, "rope_ptr": rope_pool, "indices": indices, "indptr": indptr,
            "sink_ptr": sink, "out_ptr": out, "acc_ptr": acc, "stats_ptr": stats, "n_items": items, "splits": splits,
            "scale": scale, "q_stride_t": q.stride(0), "q_stride_h": q.stride(1), "pool_stride": pool.stride(0),
            "rope_stride": rope_pool.stride(0), "out_stride_t": out.stride(0), "out_stride_h": out.stride(1),
        },
        {"H": heads, "PARTS": splits > 1, "PDL": True},
        HOPPER_FP8.choose(target),
    )  # fmt: skip
    if splits > 1:
        reduce(acc, stats, sink, out, splits)


def sparse_decode_fp8_hopper_where_it_can(q: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """As ``sparse_decode_fp8``, by the Hopper kernel wherever q has 512 dims, whatever the lists."""
    call = sparse_decode_fp8_hopper if q.shape[2] == DIM else sparse_decode_fp8_portable
    call(q, *args, **kwargs)


def launch_hopper(
    q: torch.Tensor,
    pool: torch.Tensor,
    prefix_indices: torch.Tensor,
    prefix_indptr: torch.Tensor,
    kv: torch.Tensor | None,
    extend_indices: torch.Tensor | None,
    extend_indptr: torch.Tensor | None,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    acc: torch.Tensor,
    stats: torch.Tensor,
    splits: int,
) -> None:
    """Launch the kernel over pool rows, and over rows of ``kv`` where given, on as many programs as run at once."""
    tokens, heads, d = q.shape
    require(d == DIM, f"q has heads of {d} dims, the Hopper kernel takes {DIM}")
    require_dtype("q", q, torch.bfloat16, torch.float16)
    for name, tensor in (("q", q), ("pool", pool), ("kv", kv)):
        require(tensor is None or rows_aligned(tensor), f"{name} has rows that do not begin on 16 bytes")
    extend = kv is not None
    items = tokens * splits * triton.cdiv(heads, HEADS)
    chosen = HOPPER.choose(target_of(q.device))
    launch(
        hopper_attention_kernel,
        (min(items, target_of(q.device).units),),
        {
            "q_ptr": q, "pool_ptr": pool, "kv_ptr": kv if extend else pool,
            "prefix_indices": prefix_indices, "prefix_indptr": prefix_indptr,
            "extend_indices": extend_indices if extend else prefix_indices,
            "extend_indptr": extend_indptr if extend else prefix_indptr,
            "sink_ptr": sink, "out_ptr": out, "acc_ptr": acc, "stats_ptr": stats, "n_items": items,
            "splits": splits, "scale": scale,
            "q_stride_t": q.stride(0), "q_stride_h": q.stride(1), "pool_stride": pool.stride(0),
            "kv_stride": pool.stride(0) if kv is None else kv.stride(0),
            "out_stride_t": out.stride(0), "out_stride_h": out.stride(1),
        },
        {"H": heads, "PARTS": splits > 1, "EXTEND": extend, "PDL": True},
        chosen,
    )  # fmt: skip
