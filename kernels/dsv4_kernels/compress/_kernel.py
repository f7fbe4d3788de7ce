"""Compression of finished windows: pooling, norm, rope and store in one launch, or in two for long windows."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.pool_jit import store_index_key, store_rows

TURN = tl.constexpr(6.283185307179586)


@triton.jit
def _parameters(d, weight_ptr, frequencies_ptr, D: tl.constexpr, HALF: tl.constexpr, BLOCK_D: tl.constexpr):
    """The norm's weights of the columns ``d``, float32, and the frequencies of pairs, 0 where none turns."""
    pair = tl.arange(0, BLOCK_D // 2) - (D // 2 - HALF)
    frequency = tl.load(frequencies_ptr + pair, (pair >= 0) & (pair < HALF), 0.0)
    return tl.load(weight_ptr + d, d < D, 0.0).to(tl.float32), frequency


@triton.jit
def _angles(position, frequency):
    """Cosines and sines of the pairs of a row, ``[1, BLOCK_D / 2]``: the angle is reduced in float64."""
    turns = frequency * position.to(tl.float64) * (1.0 / TURN)
    angle = ((turns - tl.floor(turns)) * TURN).to(tl.float32)
    return tl.cos(angle)[None, :], tl.sin(angle)[None, :]


@triton.jit
def _window_part(
    ks_ptr, state_ptr, ape_ptr, gather_state, gather_flat, from_flat, ks_stride, state_stride, ape_stride, j, d,
    C: tl.constexpr, D: tl.constexpr, RATIO: tl.constexpr,
):  # fmt: skip
    """Keys and scores ``[len(j), len(d)]`` of rows ``j`` of the window; of ratio 4 the older four give A halves."""
    flat = tl.load(from_flat + j) != 0
    at_flat = ks_ptr + tl.load(gather_flat + j) * ks_stride
    at_state = state_ptr + tl.load(gather_state + j) * state_stride
    base = tl.where(flat, at_flat, at_state)
    column = d[None, :]
    if C != D:
        column = tl.where(j >= RATIO, D, 0)[:, None] + d[None, :]
    inside = (j >= 0)[:, None] & (d < D)[None, :]
    key = tl.load(base[:, None] + column, inside, 0.0)
    score = tl.load(base[:, None] + C + column, inside, 0.0)
    return key, score + tl.load(ape_ptr + (j % RATIO)[:, None] * ape_stride + column, inside, 0.0)


@triton.jit
def _pool_window(
    ks_ptr, state_ptr, ape_ptr, gather_state, gather_flat, from_flat, ks_stride, state_stride, ape_stride, d,
    C: tl.constexpr, D: tl.constexpr, RATIO: tl.constexpr, WINDOW: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Channels ``d`` of one entry: the keys of its window, weighted by the softmax of their scores."""
    m = tl.full((d.shape[0],), -1.0e30, tl.float32)
    norm = tl.zeros((d.shape[0],), tl.float32)
    acc = tl.zeros((d.shape[0],), tl.float32)
    for start in tl.range(0, WINDOW, BLOCK_W):
        key, score = _window_part(
            ks_ptr, state_ptr, ape_ptr, gather_state, gather_flat, from_flat, ks_stride, state_stride, ape_stride,
            start + tl.arange(0, BLOCK_W), d, C, D, RATIO,
        )  # fmt: skip
        m_new = tl.maximum(m, tl.max(score, 0))
        p = tl.exp(score - m_new[None, :])
        alpha = tl.exp(m - m_new)
        norm = norm * alpha + tl.sum(p, 0)
        acc = acc * alpha + tl.sum(p * key, 0)
        m = m_new
    return tl.where(d < D, acc / norm, 0.0)


@triton.jit
def _finish(
    y, row, d, weight, cos, sin, pool_ptr, rope_ptr, eps, pool_stride, rope_stride,
    D: tl.constexpr, BLOCK_D: tl.constexpr, ROPE: tl.constexpr, KEYS: tl.constexpr, PER_PAGE: tl.constexpr,
    ROOT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Norm, rope, store: as a row (``KEYS`` 0), or as an index key in fp8 (1) or fp4 (2)."""
    y = y * tl.rsqrt(tl.sum(y * y, 0) / D + eps) * weight
    even, odd = tl.split(tl.reshape(y, (1, BLOCK_D // 2, 2)))
    y = tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (1, BLOCK_D))
    if KEYS == 0:
        store_rows(pool_ptr, pool_stride, rope_ptr, rope_stride, row, y, d, 1, D, BLOCK_D, ROPE)
    else:
        store_index_key(pool_ptr, pool_stride, row, y, ROOT, STAGES, D, PER_PAGE, KEYS == 2)


@triton.jit
def _compress_kernel(
    ks_ptr, state_ptr, ape_ptr, weight_ptr, frequencies_ptr, gather_state_ptr, gather_flat_ptr, from_flat_ptr,
    positions_ptr, pool_ptr, rope_ptr, rows_ptr, pooled_ptr, eps, ks_stride, state_stride, ape_stride, gather_stride,
    pool_stride, rope_stride, C: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, HALF: tl.constexpr,
    ROPE: tl.constexpr, KEYS: tl.constexpr, PER_PAGE: tl.constexpr, ROOT: tl.constexpr, STAGES: tl.constexpr,
    RATIO: tl.constexpr, WINDOW: tl.constexpr, PDL: tl.constexpr, BLOCK_W: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """One program per entry; entries whose row is -1 are skipped.

    With ``CHANNELS`` > 0 one per entry and so many channels, which leaves ``pooled [entries, D]`` to the next kernel.
    """
    if CHANNELS == 0:
        d = tl.arange(0, BLOCK_D)
        weight, frequency = _parameters(d, weight_ptr, frequencies_ptr, D, HALF, BLOCK_D)
    else:
        d = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    entry = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + entry + tl.arange(0, 1))
    if CHANNELS == 0:
        cos, sin = _angles(tl.load(positions_ptr + entry), frequency)
    if tl.max(row, 0) < 0:
        return
    lists = entry * gather_stride
    y = _pool_window(
        ks_ptr, state_ptr, ape_ptr, gather_state_ptr + lists, gather_flat_ptr + lists, from_flat_ptr + lists, ks_stride,
        state_stride, ape_stride, d, C, D, RATIO, WINDOW, BLOCK_W,
    )  # fmt: skip
    if CHANNELS == 0:
        _finish(
            y, row, d, weight, cos, sin, pool_ptr, rope_ptr, eps, pool_stride, rope_stride, D, BLOCK_D, ROPE, KEYS,
            PER_PAGE, ROOT, STAGES,
        )  # fmt: skip
    else:
        tl.store(pooled_ptr + entry * D + d, y, d < D)


@triton.jit(do_not_specialize=["n_entries"])
def _compress_finish_kernel(
    pooled_ptr, weight_ptr, frequencies_ptr, positions_ptr, pool_ptr, rope_ptr, rows_ptr, ks_ptr, state_ptr, src_ptr,
    dst_ptr, n_entries, eps, pool_stride, rope_stride, ks_stride, state_stride, D: tl.constexpr, BLOCK_D: tl.constexpr,
    HALF: tl.constexpr, ROPE: tl.constexpr, KEYS: tl.constexpr, PER_PAGE: tl.constexpr, ROOT: tl.constexpr,
    STAGES: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Norm, rope and store of what the channels' programs pooled, a program an entry.

    Programs behind them carry a row of ``WIDTH`` values each to the state, whose windows have all been read by then.
    The predecessor is the channels' kernel, which waits first: what it does not write is asked for before it ends.
    """
    entry = tl.program_id(0).to(tl.int64)
    if entry >= n_entries:
        dst = tl.load(dst_ptr + entry - n_entries).to(tl.int64)
        src = tl.load(src_ptr + entry - n_entries).to(tl.int64)
        c = tl.arange(0, BLOCK_WIDTH)
        inside = (c < WIDTH) & (dst >= 0)
        carried = tl.load(ks_ptr + src * ks_stride + c, inside)
        if PDL:
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        tl.store(state_ptr + dst * state_stride + c, carried, inside)
        return
    row = tl.load(rows_ptr + entry + tl.arange(0, 1))
    d = tl.arange(0, BLOCK_D)
    weight, frequency = _parameters(d, weight_ptr, frequencies_ptr, D, HALF, BLOCK_D)
    cos, sin = _angles(tl.load(positions_ptr + entry), frequency)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if tl.max(row, 0) < 0:
        return
    y = tl.load(pooled_ptr + entry * D + d, d < D, 0.0)
    _finish(
        y, row, d, weight, cos, sin, pool_ptr, rope_ptr, eps, pool_stride, rope_stride, D, BLOCK_D, ROPE, KEYS,
        PER_PAGE, ROOT, STAGES,
    )  # fmt: skip
