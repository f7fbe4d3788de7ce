"""Top-k of indexer scores: stable, NaN-safe, in entry order.

The threshold is found two bits at a time on order-preserving integers: 16 sums, of three counts each, over a block that
stays in registers. Long rows
go through two launches: chunks leave their own best, in entry order, and those are the rows of the second launch.
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
    """Mask of the ``take`` greatest keys (0 never is), the first ones among equals, and their ranks in order."""
    threshold = tl.zeros((1,), tl.uint32)
    bit = tl.full((1,), 0x40000000, tl.uint32)
    for _ in range(16):
        one = (key >= (threshold | bit)).to(tl.int64)
        two = (key >= (threshold | (bit + bit))).to(tl.int64)
        three = (key >= (threshold | (bit + bit + bit))).to(tl.int64)
        counts = tl.sum(one | (two << 20) | (three << 40), 0)
        step = ((counts & 0xFFFFF) >= take).to(tl.uint32) + (((counts >> 20) & 0xFFFFF) >= take).to(tl.uint32)
        step += ((counts >> 40) >= take).to(tl.uint32)
        threshold = threshold | (step * bit)
        bit = bit >> 2
    above = key > threshold
    equal = (key == threshold) & (key > 0)
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
    values_ptr, entries_ptr, out_ptr, out_stride,
    N: tl.constexpr, K: tl.constexpr, BLOCK_KK: tl.constexpr, PDL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row: the best of ``N`` candidates, which are in entry order; entry -1 is none."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK)
    entry = tl.load(entries_ptr + row * N + n, n < N, -1)
    x = tl.load(values_ptr + row * N + n, entry >= 0, 0.0)
    key = tl.where(entry >= 0, _ordered(x), 0)
    take = tl.minimum(tl.sum((entry >= 0).to(tl.int32), 0), K)
    place = tl.arange(0, BLOCK_KK)
    tl.store(out_ptr + row * out_stride + place, tl.full((BLOCK_KK,), -1, tl.int32), (place >= take) & (place < K))
    mask, rank = _select(key, take)
    tl.store(out_ptr + row * out_stride + rank, entry, mask)
