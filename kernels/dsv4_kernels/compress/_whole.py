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
def _pool_whole(base, d, inside, bias, D):
    """Channels ``d`` of one entry: the keys of the rows at ``base``, weighted by the softmax of their scores."""
    at = base[:, None] + d[None, :]
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
    """One program per ``CHANNELS`` channels and every so many-th entry; entries whose row is -1 are skipped.

    It leaves ``pooled [entries, D]`` to the next kernel. Programs of an entry stand side by side, since they
    share rows of memory. ``ape`` is asked for before the predecessor ends (weights) and kept for all entries; an
    entry's lists and its row are asked for together, before the row decides whether there is one: a wait less. With
    masks that could be false the assembler would save registers by waiting for scores before it asks for keys.
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
        lists = entry * gather_stride + j
        row = tl.load(rows_ptr + entry)
        flat = tl.load(from_flat_ptr + lists) != 0
        of_flat = tl.load(gather_flat_ptr + lists)
        of_state = tl.load(gather_state_ptr + lists)
        base = tl.where(flat, ks_ptr + of_flat * ks_stride, state_ptr + of_state * state_stride)
        if row >= 0:
            tl.store(pooled_ptr + entry * D + d, _pool_whole(base, d, inside, bias, D), d < D)
