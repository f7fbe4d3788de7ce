"""Top-k of indexer scores: stable, NaN-safe, in entry order.

The threshold is found bit by bit on order-preserving integers, over a block that stays in registers. Long rows
go through further launches: chunks leave their own best, in entry order, and those are merged.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _ordered(x):
    """uint32 in the order of float32 ``x``; NaN as -inf, -0 as 0. Greater than 0 for every number."""
    x = tl.where(x != x, float("-inf"), x)
    x = tl.where(x == 0.0, 0.0, x)
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def _select(key, take):
    """Mask of the ``take`` greatest keys (0 never is), the first ones among equals, and their ranks in order.

    The bits of the threshold are found from the top; the search ends early when exactly ``take`` keys reach it.
    """
    threshold = tl.full((), 0, tl.uint32)
    bit = tl.full((), 0x80000000, tl.uint32)
    count = tl.sum((key > 0).to(tl.int32), 0)
    while (bit > 0) & (count != take):
        reached = tl.sum((key >= (threshold | bit)).to(tl.int32), 0)
        enough = reached >= take
        threshold = tl.where(enough, threshold | bit, threshold)
        count = tl.where(enough, reached, count)
        bit = bit >> 1
    mask = (key >= threshold) & (key > 0)
    if count != take:
        equal = (key == threshold) & (key > 0)
        above = key > threshold
        spare = take - tl.sum(above.to(tl.int32), 0)
        mask = above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= spare))
    return mask, tl.cumsum(mask.to(tl.int32), 0) - 1


@triton.jit
def _index_topk_kernel(
    scores_ptr, visible_ptr, out_ptr, values_ptr, entries_ptr, n_entries, scores_stride, out_stride,
    K: tl.constexpr, BLOCK_KK: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row and chunk. With one chunk it writes ``out [T, K]``, -1 padded; else its chunk's best.

    Those are ``values`` and ``entries [T, CHUNKS, K]``, entry -1 where there are none left.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row, chunk = tl.program_id(0), tl.program_id(1)
    visible = tl.minimum(tl.load(visible_ptr + row).to(tl.int32), n_entries)
    place = tl.arange(0, BLOCK_KK)
    if CHUNKS == 1:
        target = out_ptr + row.to(tl.int64) * out_stride
    else:
        target = entries_ptr + (row.to(tl.int64) * CHUNKS + chunk) * K
    begin = chunk * BLOCK
    count = tl.maximum(tl.minimum(visible - begin, BLOCK), 0)
    take = tl.minimum(count, K)
    tl.store(target + place, tl.full((BLOCK_KK,), -1, tl.int32), (place >= take) & (place < K))
    if count == 0:
        return
    e = begin + tl.arange(0, BLOCK)
    if CHUNKS == 1 and count <= K:
        tl.store(target + e, e, e < count)
        return
    x = tl.load(scores_ptr + row.to(tl.int64) * scores_stride + e, e < visible, 0.0)
    key = tl.where(e < visible, _ordered(x), 0)
    mask, rank = _select(key, take)
    tl.store(target + rank, e, mask)
    if CHUNKS > 1:
        tl.store(values_ptr + (row.to(tl.int64) * CHUNKS + chunk) * K + rank, x, mask)


@triton.jit
def _index_topk_merge_kernel(
    values_ptr, entries_ptr, out_ptr, out_values_ptr, out_stride,
    N: tl.constexpr, K: tl.constexpr, BLOCK_KK: tl.constexpr, LAST: tl.constexpr, PDL: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row and ``BLOCK`` of its ``N`` candidates, which are in entry order; entry -1 is none.

    It writes row ``row`` of ``out``, or with more to merge (not ``LAST``) part ``chunk`` of it and its values.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n = chunk * BLOCK + tl.arange(0, BLOCK)
    entry = tl.load(entries_ptr + row * N + n, n < N, -1)
    x = tl.load(values_ptr + row * N + n, entry >= 0, 0.0)
    key = tl.where(entry >= 0, _ordered(x), 0)
    take = tl.minimum(tl.sum((entry >= 0).to(tl.int32), 0), K)
    place = tl.arange(0, BLOCK_KK)
    target = row * out_stride + chunk * K
    tl.store(out_ptr + target + place, tl.full((BLOCK_KK,), -1, tl.int32), (place >= take) & (place < K))
    mask, rank = _select(key, take)
    tl.store(out_ptr + target + rank, entry, mask)
    if not LAST:
        tl.store(out_values_ptr + target + rank, x, mask)
