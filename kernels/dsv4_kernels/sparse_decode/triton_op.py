"""Wrappers of the sparse decode kernels; arguments as in ``reference.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels import invariant
from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.launch import launch, overlaps, pdl_of
from dsv4_kernels.rows import Fp8Rows, Rows, nope_row_bytes
from dsv4_kernels.sparse_decode._kernel import _reduce_kernel, _sparse_decode_kernel
from dsv4_kernels.sparse_decode._launch import DECODE, DECODE_FP8, REDUCE, SPLITS
from dsv4_kernels.target import Target, target_of
from dsv4_kernels.workspace import workspace

FEW_HEADS, FEW_KEYS = 16, 1536
"""Up to here the latency of one block decides, and the portable kernel has smaller ones."""
MORE_HEADS, FEWER_KEYS = 64, 1100
"""So do up to so many heads of fewer keys in all lists, in blocks of 16 heads."""
FEW_KEYS_EACH_FP8 = 256
"""On an fp8 pool only with few heads, and if a token's list is this short too."""


def sparse_decode(
    q: torch.Tensor,
    pool: Rows,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    *,
    splits: int | None = None,
) -> None:
    """See :func:`dsv4_kernels.sparse_decode.sparse_decode_reference`.

    ``splits`` pins how many programs share a list; by default it follows from shapes (``indices`` holding the longest
    lists that a graph may see), so that it is the same at every replay.
    """
    if not isinstance(pool, torch.Tensor):
        pool = require_fp8_rows(pool)
        sparse_decode_fp8(q, pool.nope, pool.rope, indices, indptr, sink, scale, out, splits=splits)
    elif use_hopper(q, pool, indices.shape[0], FEW_KEYS if q.shape[1] <= FEW_HEADS else FEWER_KEYS, MORE_HEADS):
        from dsv4_kernels.sparse_decode.hopper_op import sparse_decode_hopper

        sparse_decode_hopper(q, pool, indices, indptr, sink, scale, out, splits=splits)
    else:
        sparse_decode_portable(q, pool, indices, indptr, sink, scale, out, splits=splits)


def use_hopper(q: torch.Tensor, pool: torch.Tensor, keys: int, few: int = FEW_KEYS, heads: int = FEW_HEADS) -> bool:
    """Whether the Hopper sibling takes these arguments, and is the faster one for so many ``keys`` in all lists: not
    for up to ``few`` keys and ``heads`` heads.
    """
    fits = q.shape[2] == pool.shape[-1] == 512 and q.dtype == pool.dtype and q.dtype in (torch.bfloat16, torch.float16)
    pays = q.shape[1] > heads or invariant.counted("keys", keys) > few
    return fits and pays and q.device.type != "cpu" and target_of(q.device).arch == "sm_90"


def rows_aligned(tensor: torch.Tensor) -> bool:
    """Whether every row begins on 16 bytes."""
    size = tensor.element_size()
    return tensor.data_ptr() % 16 == 0 and all(stride * size % 16 == 0 for stride in tensor.stride()[:-1])


def sparse_decode_portable(
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
    """As :func:`sparse_decode`, by the kernel that every target has."""
    require_shape("pool", pool, -1, q.shape[2])
    require_dtype("pool", pool, q.dtype)
    _decode(q, pool, None, indices, indptr, sink, scale, out, splits)


def sparse_decode_fp8(
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
    """See :func:`dsv4_kernels.sparse_decode.sparse_decode_fp8_reference`."""
    few = min(FEW_KEYS, FEW_KEYS_EACH_FP8 * q.shape[0])
    fits = q.dtype == torch.bfloat16 and rope_pool.shape[1] == 64 and rows_aligned(pool) and rows_aligned(rope_pool)
    if fits and use_hopper(q, q, indices.shape[0], few):
        from dsv4_kernels.sparse_decode.hopper_op import sparse_decode_fp8_hopper

        sparse_decode_fp8_hopper(q, pool, rope_pool, indices, indptr, sink, scale, out, splits=splits)
    else:
        sparse_decode_fp8_portable(q, pool, rope_pool, indices, indptr, sink, scale, out, splits=splits)


def sparse_decode_fp8_portable(
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
    """As :func:`sparse_decode_fp8`, by the kernel that every target has."""
    _decode(q, pool, check_two_pools(q, pool, rope_pool), indices, indptr, sink, scale, out, splits)


def require_fp8_rows(pool: Rows) -> Fp8Rows:
    """``pool``; :class:`ValueError` if it is neither a tensor nor of the one packed layout that kernels read."""
    if not isinstance(pool, Fp8Rows):
        raise ValueError(f"pool is {type(pool).__name__}, expected a tensor or Fp8Rows")
    return pool


def check_two_pools(q: torch.Tensor, pool: torch.Tensor, rope_pool: torch.Tensor) -> torch.Tensor:
    """``rope_pool``; :class:`ValueError` unless the pair is what the kernels read without looking (dsv4-spec 3.4)."""
    nope = q.shape[2] - rope_pool.shape[1]
    require_dtype("pool", pool, torch.uint8)
    require_dtype("rope_pool", rope_pool, q.dtype)
    require_shape("pool", pool, rope_pool.shape[0], nope_row_bytes(nope))
    require_unit_stride("rope_pool", rope_pool)
    return rope_pool


def check_lists(
    q: torch.Tensor, indices: torch.Tensor, indptr: torch.Tensor, sink: torch.Tensor, out: torch.Tensor
) -> None:
    """Raise :class:`ValueError` for arguments that no kernel takes."""
    tokens, heads, _ = q.shape
    require(out.shape == q.shape, f"out is {list(out.shape)}, expected the shape of q, {list(q.shape)}")
    require_shape("sink", sink, heads)
    require_shape("indptr", indptr, tokens + 1)
    require_dtype("indptr", indptr, torch.int32)
    require_dtype("indices", indices, torch.int32)
    for name, tensor in (("q", q), ("out", out), ("indices", indices), ("indptr", indptr), ("sink", sink)):
        require_unit_stride(name, tensor)


def _decode(
    q: torch.Tensor,
    pool: torch.Tensor,
    rope_pool: torch.Tensor | None,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    splits: int | None,
) -> None:
    check_lists(q, indices, indptr, sink, out)
    require_unit_stride("pool", pool)
    tokens, heads, d = q.shape
    if tokens == 0:
        return
    target = target_of(q.device)
    table = DECODE if rope_pool is None else DECODE_FP8
    chosen = table.choose(target, heads=heads, keys=indices.shape[0])
    blocks = triton.cdiv(heads, chosen["BLOCK_H"])
    if splits is None:
        splits = splits_of("portable", target, tokens, blocks, indices.shape[0], chosen["BLOCK_K"], heads)
    acc, stats = partial_results(q, splits)
    launch(
        _sparse_decode_kernel,
        (tokens * splits * blocks,),
        {
            "q_ptr": q, "pool_ptr": pool, "rope_ptr": pool if rope_pool is None else rope_pool,
            "indices_ptr": indices, "indptr_ptr": indptr, "sink_ptr": sink, "out_ptr": out,
            "acc_ptr": acc, "stats_ptr": stats, "splits": splits, "scale": scale,
            "q_stride_t": q.stride(0), "q_stride_h": q.stride(1), "pool_stride": pool.stride(0),
            "rope_stride": 0 if rope_pool is None else rope_pool.stride(0),
            "out_stride_t": out.stride(0), "out_stride_h": out.stride(1),
        },
        {
            "H": heads, "D": d, "BLOCK_D": triton.next_power_of_2(d), "PARTS": splits > 1,
            "ROPE": 0 if rope_pool is None else rope_pool.shape[1], "NATIVE": target.fp8 == "ocp", "PDL": overlaps(q),
        },
        chosen,
    )  # fmt: skip
    if splits > 1:
        reduce(acc, stats, sink, out, splits)


def splits_of(kernel: str, target: Target, tokens: int, blocks: int, keys: int, block_k: int, heads: int) -> int:
    """Splits of each token's list, ``keys`` keys in all lists: by the estimate of ``kernel``, or one fixed number."""
    if invariant.active():
        return invariant.SPLITS
    return SPLITS[kernel].splits(target, tokens * blocks, keys // tokens, block_k, heads)


def partial_results(q: torch.Tensor, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scratch of this stream for the partial results of ``splits`` splits; one element if there is one split."""
    tokens, heads, d = q.shape
    parts = tokens * splits * heads if splits > 1 else 0
    acc = workspace("sparse_decode.acc", (max(parts * d, 1),), torch.float32, q.device)
    return acc, workspace("sparse_decode.stats", (max(parts * 2, 1),), torch.float32, q.device)


def reduce(
    acc: torch.Tensor,
    stats: torch.Tensor,
    sink: torch.Tensor,
    out: torch.Tensor,
    splits: int,
) -> None:
    """Combine partial results into ``out``."""
    tokens, heads, d = out.shape
    chosen = REDUCE.choose(target_of(out.device), splits=splits)
    launch(
        _reduce_kernel,
        (tokens, heads, triton.cdiv(d, chosen["BLOCK_D"])),
        {
            "acc_ptr": acc, "stats_ptr": stats, "sink_ptr": sink, "out_ptr": out,
            "splits": splits, "out_stride_t": out.stride(0), "out_stride_h": out.stride(1),
        },
        {"H": heads, "D": d, "SPLITS_PADDED": triton.next_power_of_2(splits), "PDL": pdl_of(out, out.shape[0])},
        chosen,
    )  # fmt: skip
