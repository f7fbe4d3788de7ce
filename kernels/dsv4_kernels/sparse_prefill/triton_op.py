"""Wrappers of the sparse prefill kernels; arguments as in ``reference.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels import invariant
from dsv4_kernels.checks import require_dtype, require_shape, require_unit_stride
from dsv4_kernels.launch import Config, LaunchTable, launch
from dsv4_kernels.rows import Rows
from dsv4_kernels.sparse_decode.triton_op import check_lists, check_two_pools, require_fp8_rows, use_hopper
from dsv4_kernels.sparse_prefill._kernel import _sparse_prefill_kernel
from dsv4_kernels.sparse_prefill._launch import PREFILL, PREFILL_FP8
from dsv4_kernels.target import target_of

MANY_KEYS = 1 << 30  # few heads go to the Hopper kernel too, unless windows are all that they read


def sparse_prefill(
    q: torch.Tensor,
    pool: Rows,
    prefix_indices: torch.Tensor,
    prefix_indptr: torch.Tensor,
    kv: torch.Tensor,
    extend_indices: torch.Tensor,
    extend_indptr: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    *,
    runs: bool = True,
) -> None:
    """See :func:`dsv4_kernels.sparse_prefill.sparse_prefill_reference`.

    ``runs`` says that every extend list is a run of consecutive rows without -1, as window lists are; kernels may
    then read what neighbouring tokens share once.
    """
    if not isinstance(pool, torch.Tensor):
        pool = require_fp8_rows(pool)
        sparse_prefill_fp8(
            q, pool.nope, pool.rope, prefix_indices, prefix_indptr, kv, extend_indices, extend_indptr, sink, scale, out,
            runs=runs,
        )  # fmt: skip
    elif use_hopper(q, pool, MANY_KEYS * (prefix_indices.shape[0] > 0)) and kv.dtype == q.dtype:
        from dsv4_kernels.sparse_prefill.hopper_op import sparse_prefill_hopper

        sparse_prefill_hopper(
            q, pool, prefix_indices, prefix_indptr, kv, extend_indices, extend_indptr, sink, scale, out
        )
    else:
        sparse_prefill_portable(
            q, pool, prefix_indices, prefix_indptr, kv, extend_indices, extend_indptr, sink, scale, out, runs=runs
        )


def sparse_prefill_portable(
    q: torch.Tensor,
    pool: torch.Tensor,
    prefix_indices: torch.Tensor,
    prefix_indptr: torch.Tensor,
    kv: torch.Tensor,
    extend_indices: torch.Tensor,
    extend_indptr: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    *,
    runs: bool = True,
) -> None:
    """As :func:`sparse_prefill`, by the kernel that every target has."""
    require_shape("pool", pool, -1, q.shape[2])
    require_dtype("pool", pool, q.dtype)
    prefix, extend = (prefix_indices, prefix_indptr), (extend_indices, extend_indptr)
    _prefill(q, pool, None, prefix, kv, extend, sink, scale, out, runs)


def sparse_prefill_fp8(
    q: torch.Tensor,
    pool: torch.Tensor,
    rope_pool: torch.Tensor,
    prefix_indices: torch.Tensor,
    prefix_indptr: torch.Tensor,
    kv: torch.Tensor,
    extend_indices: torch.Tensor,
    extend_indptr: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    *,
    runs: bool = True,
) -> None:
    """See :func:`dsv4_kernels.sparse_prefill.sparse_prefill_fp8_reference`."""
    prefix, extend = (prefix_indices, prefix_indptr), (extend_indices, extend_indptr)
    rope = check_two_pools(q, pool, rope_pool)
    _prefill(q, pool, rope, prefix, kv, extend, sink, scale, out, runs)


def _prefill(
    q: torch.Tensor,
    pool: torch.Tensor,
    rope_pool: torch.Tensor | None,
    prefix: tuple[torch.Tensor, torch.Tensor],
    kv: torch.Tensor,
    extend: tuple[torch.Tensor, torch.Tensor],
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    runs: bool,
) -> None:
    check_lists(q, *prefix, sink, out)
    check_lists(q, *extend, sink, out)
    require_shape("kv", kv, -1, q.shape[2])
    require_dtype("kv", kv, q.dtype)
    require_unit_stride("kv", kv)
    require_unit_stride("pool", pool)
    tokens, heads, d = q.shape
    if tokens == 0:
        return
    table = PREFILL if rope_pool is None else PREFILL_FP8
    chosen = _choose(table, q, prefix[0].shape[0] // tokens, runs)
    launch(
        _sparse_prefill_kernel,
        (triton.cdiv(tokens, chosen["TOKENS"]) * triton.cdiv(heads, chosen["BLOCK_H"]),),
        {
            "q_ptr": q, "pool_ptr": pool, "rope_ptr": pool if rope_pool is None else rope_pool,
            "prefix_indices": prefix[0], "prefix_indptr": prefix[1], "kv_ptr": kv,
            "extend_indices": extend[0], "extend_indptr": extend[1], "sink_ptr": sink, "out_ptr": out,
            "n_tokens": tokens, "scale": scale, "q_stride_t": q.stride(0), "q_stride_h": q.stride(1),
            "pool_stride": pool.stride(0), "rope_stride": 0 if rope_pool is None else rope_pool.stride(0),
            "kv_stride": kv.stride(0), "out_stride_t": out.stride(0), "out_stride_h": out.stride(1),
        },
        {
            "H": heads, "D": d, "BLOCK_D": triton.next_power_of_2(d),
            "ROPE": 0 if rope_pool is None else rope_pool.shape[1], "NATIVE": target_of(q.device).fp8 == "ocp",
        },
        chosen,
    )  # fmt: skip


def _choose(table: LaunchTable, q: torch.Tensor, prefix: int, runs: bool) -> Config:
    """The table's config; without runs, or where batches must not differ, the first whose tokens share nothing."""
    target = target_of(q.device)
    chosen = table.choose(target, heads=q.shape[1], prefix=prefix)
    if chosen["TOKENS"] == 1 or (runs and not invariant.active()):
        return chosen
    return next(c for c in table.configs(target) if c["TOKENS"] == 1 and c["BLOCK_H"] >= chosen["BLOCK_H"])
