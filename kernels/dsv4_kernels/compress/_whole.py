"""Pooling of long windows, each of them whole: a program has some channels of an entry, all of its rows at once."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _inside(j, d, D: tl.constexpr, EVEN: tl.constexpr):
    """Mask ``[len(j), len(d)]``, of nothing but ones where ``d`` never gets to ``D`` (``EVEN``)."""
    if EVEN:
        mask = (j >= 0)[:, None] & (d >= 0)[None, :]
    else:
        mask = (j >= 0)[:, None] & (d < D)[None, :]
    return mask


@triton.jit
def _pool_whole(
    ks_ptr, state_ptr, gather_state, gather_flat, from_flat, ks_stride, state_stride, j, d, inside, bias, D
):
    """Channels ``d`` of one entry: the keys of its rows ``j``, weighted by the softmax of their scores."""
    flat = tl.load(from_flat + j) != 0
    row = tl.load(tl.where(flat, gather_flat + j, gather_state + j))
    at = tl.where(flat, ks_ptr + row * ks_stride, state_ptr + row * state_stride)[:, None] + d[None, :]
    key = tl.load(at, inside, 0.0, eviction_policy="evict_first")  # nobody else reads it
    score = tl.load(at + D, inside, 0.0, eviction_policy="evict_first") + bias
    p = tl.exp(score - tl.maximum(tl.max(score, 0), -1.0e30)[None, :])
    norm = tl.sum(p, 0)
    return tl.sum(p * key, 0) / norm


@triton.jit(do_not_specialize=["n_entries"])
def _compress_channels_kernel(
    ks_ptr, state_ptr, ape_ptr, gather_state_ptr, gather_flat_ptr, from_flat_ptr, rows_ptr, pooled_ptr, n_entries,
    ks_stride, state_stride, ape_stride, gather_stride, D: tl.constexpr, WINDOW: tl.constexpr, PDL: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """One program per ``CHANNELS`` channels and entry; entries whose row is -1 are skipped.

    It leaves ``pooled [entries, D]`` to the next kernel. Programs of an entry stand side by side, since they
    share rows of memory. ``ape`` is asked for before the predecessor ends: weights. The loop has one round: without it,
    or with masks that could be false, the assembler saves registers by waiting for scores before it asks for keys.
    """
    EVEN: tl.constexpr = D % CHANNELS == 0
    d = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    j = tl.arange(0, WINDOW)
    inside = _inside(j, d, D, EVEN)
    bias = tl.load(ape_ptr + j[:, None] * ape_stride + d[None, :], inside, 0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for at in tl.range(tl.program_id(1), n_entries, tl.num_programs(1)):
        entry = tl.cast(at, tl.int64)
        if tl.load(rows_ptr + entry) >= 0:
            lists = entry * gather_stride
            y = _pool_whole(
                ks_ptr, state_ptr, gather_state_ptr + lists, gather_flat_ptr + lists, from_flat_ptr + lists, ks_stride,
                state_stride, j, d, inside, bias, D,
            )  # fmt: skip
            tl.store(pooled_ptr + entry * D + d, y, d < D)
