"""Wrappers of the fused Q/KV norm and rope, and of its parts; arguments as in ``reference.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.launch import launch, pdl_of
from dsv4_kernels.qk_norm_rope_store._kernel import _qk_norm_rope_store_kernel
from dsv4_kernels.qk_norm_rope_store._launch import QK_NORM_ROPE
from dsv4_kernels.rows import Rows
from dsv4_kernels.target import target_of
from dsv4_kernels.targets_of_rows import two_pools


def q_norm_rope(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float) -> None:
    """See :func:`dsv4_kernels.qk_norm_rope_store.q_norm_rope_reference`."""
    _run(q, None, None, cos, sin, eps, None, None, None)


def kv_norm_rope(
    kv: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float, out: torch.Tensor
) -> None:
    """See :func:`dsv4_kernels.qk_norm_rope_store.kv_norm_rope_reference`."""
    require(out.shape == kv.shape, f"out is {list(out.shape)}, expected the shape of kv, {list(kv.shape)}")
    _run(None, kv, weight, cos, sin, eps, out, None, None)


def kv_norm_rope_store(
    kv: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float,
    pool: Rows,
    rows: torch.Tensor,
) -> None:
    """See :func:`dsv4_kernels.qk_norm_rope_store.kv_norm_rope_store_reference`; rows of -1 are skipped."""
    _run(None, kv, weight, cos, sin, eps, *two_pools(pool), rows)


def qk_norm_rope(
    q: torch.Tensor,
    kv: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float,
    out: torch.Tensor,
) -> None:
    """:func:`q_norm_rope` and :func:`kv_norm_rope` in one launch."""
    require(out.shape == kv.shape, f"out is {list(out.shape)}, expected the shape of kv, {list(kv.shape)}")
    _run(q, kv, weight, cos, sin, eps, out, None, None)


def qk_norm_rope_store(
    q: torch.Tensor,
    kv: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float,
    pool: Rows,
    rows: torch.Tensor,
) -> None:
    """:func:`q_norm_rope` and :func:`kv_norm_rope_store` in one launch."""
    _run(q, kv, weight, cos, sin, eps, *two_pools(pool), rows)


def qk_norm_rope_store_pools(
    q: torch.Tensor,
    kv: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float,
    pool: torch.Tensor,
    rope_pool: torch.Tensor | None,
    rows: torch.Tensor,
) -> None:
    """As :func:`qk_norm_rope_store`, with the tensors of the pool: one, or the pair of the fp8 layout."""
    _run(q, kv, weight, cos, sin, eps, pool, rope_pool, rows)


def _run(
    q: torch.Tensor | None,
    kv: torch.Tensor | None,
    weight: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float,
    pool: torch.Tensor | None,
    rope_pool: torch.Tensor | None,
    rows: torch.Tensor | None,
) -> None:
    _check(q, kv, weight, cos, sin, pool, rows)
    some = kv if q is None else q
    assert some is not None
    heads, d = (1 if q is None else q.shape[1]), some.shape[-1]
    n_q, n_kv = (0 if q is None else q.shape[0] * heads), (0 if kv is None else kv.shape[0])
    chosen = QK_NORM_ROPE.choose(target_of(some.device), rows=max(n_q, n_kv))
    programs = triton.cdiv(n_q, chosen["Q_ROWS"]) + triton.cdiv(n_kv, chosen["KV_ROWS"])
    q_, kv_, pool_ = (some if t is None else t for t in (q, kv, pool))
    launch(
        _qk_norm_rope_store_kernel,
        (programs,),
        {
            "q_ptr": q_, "kv_ptr": kv_, "weight_ptr": some if weight is None else weight, "cos_ptr": cos,
            "sin_ptr": sin,
            "pool_ptr": pool_, "rope_ptr": pool_ if rope_pool is None else rope_pool,
            "rows_ptr": cos if rows is None else rows, "n_q": n_q, "n_kv": n_kv, "eps": eps,
            "q_stride_t": q_.stride(0), "q_stride_h": 0 if q is None else q.stride(1), "kv_stride": kv_.stride(0),
            "cos_stride": cos.stride(0), "sin_stride": sin.stride(0), "pool_stride": pool_.stride(0),
            "rope_stride": 0 if rope_pool is None else rope_pool.stride(0),
        },
        {
            "H": heads, "D": d, "BLOCK_D": triton.next_power_of_2(d), "HALF": cos.shape[1],
            "ROPE": 0 if rope_pool is None else rope_pool.shape[1], "LISTED": rows is not None,
            "PDL": pdl_of(some, some.shape[0]),
        },
        chosen,
    )  # fmt: skip


def _check(
    q: torch.Tensor | None,
    kv: torch.Tensor | None,
    weight: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    pool: torch.Tensor | None,
    rows: torch.Tensor | None,
) -> None:
    tokens = cos.shape[0]
    require_shape("sin", sin, *cos.shape)
    require_dtype("cos", cos, torch.float32)
    require_dtype("sin", sin, torch.float32)
    if q is not None:
        require_shape("q", q, tokens, -1, -1)
    if kv is not None and weight is not None:
        require_shape("kv", kv, tokens, -1)
        require_shape("weight", weight, kv.shape[1])
    if rows is not None:
        require_shape("rows", rows, tokens)
        require_dtype("rows", rows, torch.int64, torch.int32)
    for name, tensor in (("q", q), ("kv", kv), ("cos", cos), ("sin", sin), ("pool", pool), ("rows", rows)):
        if tensor is not None:
            require_unit_stride(name, tensor)
