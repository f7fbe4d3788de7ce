"""Hyper-connections of many tokens in one launch: a tile of tokens is collapsed while its streams are still in the L2.

The programs of the grid go by turns. In turn ``i`` the first ``SPLITS`` do the products and sums of squares of token
tile ``i``, a slice of the columns each; the others collapse tile ``i - LAG``. Those wait for the tile's counter, and
never for a program of a higher number: programs are started in the order of their numbers, so what is waited for runs
or has run, however few programs fit the device at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import arrives_last
from dsv4_kernels.mhc_pre_post._kernel import _column, _mix_of, _split_bf16, _store_comb


@triton.jit
def _products(acc, value, fn, PARTS: tl.constexpr):
    """``acc + value @ fn``: bf16 ``value``, float32 ``fn`` to 16 (two ``PARTS``) or 24 bits."""
    high, middle, low = _split_bf16(fn)
    if PARTS == 3:
        acc = tl.dot(value, low, acc)
    acc = tl.dot(value, middle, acc)
    return tl.dot(value, high, acc)


@triton.jit
def _squares(value, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Sums of squares of eight neighbours, ``[ROWS, COLS // 8]``: a lane adds what it loaded at once."""
    wide = value.to(tl.float32)
    return tl.sum(tl.reshape(wide * wide, (ROWS, COLS // 8, 8)), axis=2)


@triton.jit
def _fn_tile(fn_ptr, at, inside, d, MIXES: tl.constexpr):
    """``fn [MIXES, 4 d]`` as ``[columns, 32]``."""
    mix = tl.arange(0, 32)
    place = fn_ptr + mix[None, :] * (4 * d) + at[:, None]
    return tl.load(
        place, mask=(mix < MIXES)[None, :] & inside[:, None], other=0.0, eviction_policy="evict_last"
    )  # fmt: skip


@triton.jit
def _mix_slice(
    x_ptr, fn_ptr, token, inside, split, d, MIXES: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr,
    STAGES: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Products ``[BLOCK_T, 32]`` and sums of squares ``[BLOCK_T]`` of ``WIDTH`` of the ``4 d`` columns."""
    acc = tl.zeros((BLOCK_T, 32), tl.float32)
    squares = tl.zeros((BLOCK_T, BLOCK_K // 8), tl.float32)
    for at in tl.range(0, WIDTH, BLOCK_K, num_stages=STAGES):
        col = split * WIDTH + at + tl.arange(0, BLOCK_K)
        there = col < 4 * d
        mask = inside[:, None] & there[None, :]
        value = tl.load(x_ptr + token[:, None] * (4 * d) + col[None, :], mask=mask, other=0.0)
        acc = _products(acc, value, _fn_tile(fn_ptr, col, there, d, MIXES), PARTS)
        squares += _squares(value, BLOCK_T, BLOCK_K)
    return acc, tl.sum(squares, axis=1)


@triton.jit
def _weights_of(post_ptr, comb_ptr, token, inside, STREAM: tl.constexpr):
    """What a stream takes of the sublayer's output and of the four streams, by token."""
    p = tl.load(post_ptr + token * 4 + STREAM, mask=inside, other=0.0)
    c = comb_ptr + token * 16 + STREAM
    c0 = tl.load(c, mask=inside, other=0.0)
    c1 = tl.load(c + 4, mask=inside, other=0.0)
    c2 = tl.load(c + 8, mask=inside, other=0.0)
    c3 = tl.load(c + 12, mask=inside, other=0.0)
    return p[:, None], c0[:, None], c1[:, None], c2[:, None], c3[:, None]


@triton.jit
def _spread_slice(
    x_ptr, y_ptr, post_ptr, comb_ptr, fn_ptr, token, inside, split, d, MIXES: tl.constexpr, PARTS: tl.constexpr,
    WIDTH: tl.constexpr, STAGES: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """As above, of the streams after ``x[l] = post[l] y + sum_j comb[j, l] x[j]``, which are stored.

    The slice is ``WIDTH // 4`` columns of each stream. New streams are multiplied a step later, when they are arguments
    of the loop's body: the compiler takes such operands from shared memory, and would compute others a second time in
    the registers of the matrix units.
    """
    BLOCK: tl.constexpr = BLOCK_K // 4
    acc = tl.zeros((BLOCK_T, 32), tl.float32)
    squares = tl.zeros((BLOCK_T, BLOCK // 8), tl.float32)
    w0 = _weights_of(post_ptr, comb_ptr, token, inside, 0)
    w1 = _weights_of(post_ptr, comb_ptr, token, inside, 1)
    w2 = _weights_of(post_ptr, comb_ptr, token, inside, 2)
    w3 = _weights_of(post_ptr, comb_ptr, token, inside, 3)
    v0 = tl.zeros((BLOCK_T, BLOCK), x_ptr.dtype.element_ty)
    v1 = v0
    v2 = v0
    v3 = v0
    end = min((split + 1) * (WIDTH // 4), d)
    for at in tl.range(0, WIDTH // 4 + BLOCK, BLOCK, num_stages=STAGES):
        col = split * (WIDTH // 4) + at + tl.arange(0, BLOCK)
        mask = inside[:, None] & (col < end)[None, :]
        base = x_ptr + token[:, None] * (4 * d) + col[None, :]
        f0 = tl.load(base, mask=mask, other=0.0).to(tl.float32)
        f1 = tl.load(base + d, mask=mask, other=0.0).to(tl.float32)
        f2 = tl.load(base + 2 * d, mask=mask, other=0.0).to(tl.float32)
        f3 = tl.load(base + 3 * d, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(
            y_ptr + token[:, None] * d + col[None, :], mask=mask, other=0.0, eviction_policy="evict_first"
        ).to(tl.float32)  # fmt: skip
        held = col - BLOCK
        there = (held >= 0) & (held < d)
        acc = _products(acc, v0, _fn_tile(fn_ptr, held, there, d, MIXES), PARTS)
        acc = _products(acc, v1, _fn_tile(fn_ptr, d + held, there, d, MIXES), PARTS)
        acc = _products(acc, v2, _fn_tile(fn_ptr, 2 * d + held, there, d, MIXES), PARTS)
        acc = _products(acc, v3, _fn_tile(fn_ptr, 3 * d + held, there, d, MIXES), PARTS)
        v0 = _spread(y, f0, f1, f2, f3, w0, base, mask)
        v1 = _spread(y, f0, f1, f2, f3, w1, base + d, mask)
        v2 = _spread(y, f0, f1, f2, f3, w2, base + 2 * d, mask)
        v3 = _spread(y, f0, f1, f2, f3, w3, base + 3 * d, mask)
        squares += _squares(v0, BLOCK_T, BLOCK) + _squares(v1, BLOCK_T, BLOCK)
        squares += _squares(v2, BLOCK_T, BLOCK) + _squares(v3, BLOCK_T, BLOCK)
    return acc, tl.sum(squares, axis=1)


@triton.jit
def _spread(y, f0, f1, f2, f3, weights, at, mask):
    """Make and store one new stream."""
    p, c0, c1, c2, c3 = weights
    value = (p * y + (c0 * f0 + c1 * f1 + c2 * f2 + c3 * f3)).to(at.dtype.element_ty)
    tl.store(at, value, mask=mask)
    return value


@triton.jit
def _wait(counter_ptr, wanted):
    """Until ``wanted`` programs have added one to the counter; what they stored before is then visible."""
    seen = tl.atomic_add(counter_ptr, 0, sem="acquire", scope="gpu")
    while seen < wanted:
        seen = tl.atomic_add(counter_ptr, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()


@triton.jit
def _normalised(partial_ptr, squares_ptr, token, inside, n_tokens, d, rms_eps, SPLITS: tl.constexpr):
    """Mixes of the tokens, ``[len(token), 32]``; splits are added in their order."""
    mix = tl.arange(0, 32)
    mixes = tl.zeros((token.shape[0], 32), tl.float32)
    squares = tl.zeros((token.shape[0],), tl.float32)
    for s in tl.static_range(SPLITS):
        row = s * n_tokens + token
        squares += tl.load(squares_ptr + row, mask=inside, other=0.0, cache_modifier=".cg")
        place = partial_ptr + row[:, None] * 32 + mix[None, :]
        mixes += tl.load(place, mask=inside[:, None], other=0.0, cache_modifier=".cg")
    return mixes * tl.rsqrt(squares / (4 * d) + rms_eps)[:, None]


@triton.jit
def _collapse_rows(
    x_ptr, out_ptr, base_ptr, scale_ptr, mixes, token, inside, d, out_stride, hc_eps, ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """``out`` = sum of ``pre[j] x[j]`` of ``ROWS`` tokens; this is the last that the launch reads of their streams."""
    scale = tl.load(scale_ptr)
    p0 = 1.0 / (1.0 + tl.exp(-(_column(mixes, 0) * scale + tl.load(base_ptr)))) + hc_eps
    p1 = 1.0 / (1.0 + tl.exp(-(_column(mixes, 1) * scale + tl.load(base_ptr + 1)))) + hc_eps
    p2 = 1.0 / (1.0 + tl.exp(-(_column(mixes, 2) * scale + tl.load(base_ptr + 2)))) + hc_eps
    p3 = 1.0 / (1.0 + tl.exp(-(_column(mixes, 3) * scale + tl.load(base_ptr + 3)))) + hc_eps
    for at in range(0, d, BLOCK_D):
        col = at + tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (col < d)[None, :]
        base = x_ptr + token[:, None] * (4 * d) + col[None, :]
        x0 = tl.load(base, mask=mask, other=0.0, cache_modifier=".cg")
        x1 = tl.load(base + d, mask=mask, other=0.0, cache_modifier=".cg")
        x2 = tl.load(base + 2 * d, mask=mask, other=0.0, cache_modifier=".cg")
        x3 = tl.load(base + 3 * d, mask=mask, other=0.0, cache_modifier=".cg")
        y = p0[:, None] * x0.to(tl.float32) + p1[:, None] * x1.to(tl.float32)
        y += p2[:, None] * x2.to(tl.float32)
        y += p3[:, None] * x3.to(tl.float32)
        tl.store(out_ptr + token[:, None] * out_stride + col[None, :], y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _store_mixes(mixes, row_ptr, base_ptr, scale_ptr, post_ptr, comb_ptr, token, inside, hc_eps, ITERS: tl.constexpr):
    """``post`` and ``comb`` of the tokens; through memory, so that a lane has a token of its own in the Sinkhorn."""
    lane = tl.arange(0, 32)
    tl.store(row_ptr + token[:, None] * 32 + lane[None, :], mixes, mask=inside[:, None])
    tl.debug_barrier()
    scale = tl.load(scale_ptr + 1)
    for j in tl.static_range(4):
        mix = _mix_of(row_ptr, 4 + j, token, inside, True) * scale + tl.load(base_ptr + 4 + j)
        tl.store(post_ptr + token * 4 + j, 2.0 / (1.0 + tl.exp(-mix)), mask=inside)
    _store_comb(row_ptr, base_ptr, scale_ptr, comb_ptr, token, inside, hc_eps, ITERS, True)


@triton.jit
def _many_kernel(
    x_ptr, y_ptr, post_ptr, comb_ptr, fn_ptr, base_ptr, scale_ptr, out_ptr, new_post_ptr, new_comb_ptr,
    partial_ptr, squares_ptr, row_ptr, counter_ptr, n_tokens, d, out_stride, rms_eps, hc_eps,
    SPREAD: tl.constexpr, MIXES: tl.constexpr, ITERS: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr,
    STAGES: tl.constexpr, WIDTH: tl.constexpr, LAG: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
    OUT_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """``partial [SPLITS, n_tokens, 32]``, ``squares [SPLITS, n_tokens]``, ``row [n_tokens, 32]``: scratch.

    ``counter [tiles, 2]``: zero before and after. Grid: ``(tiles + LAG) * (SPLITS + 1 + BLOCK_T // OUT_T)``.
    """
    SHARES: tl.constexpr = 1 + BLOCK_T // OUT_T
    turn = tl.program_id(0) // (SPLITS + SHARES)
    at = tl.program_id(0) % (SPLITS + SHARES)
    if at < SPLITS:
        if turn * BLOCK_T < n_tokens:
            token = (turn * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
            inside = token < n_tokens
            if SPREAD:
                acc, squares = _spread_slice(
                    x_ptr, y_ptr, post_ptr, comb_ptr, fn_ptr, token, inside, at, d, MIXES, PARTS, WIDTH, STAGES,
                    BLOCK_T, BLOCK_K,
                )  # fmt: skip
            else:
                acc, squares = _mix_slice(
                    x_ptr, fn_ptr, token, inside, at, d, MIXES, PARTS, WIDTH, STAGES, BLOCK_T, BLOCK_K
                )
            row = at * n_tokens + token
            tl.store(partial_ptr + row[:, None] * 32 + tl.arange(0, 32)[None, :], acc, mask=inside[:, None])
            tl.store(squares_ptr + row, squares, mask=inside)
            tl.debug_barrier()
            tl.atomic_add(counter_ptr + 2 * turn, 1, sem="release", scope="gpu")
    elif turn >= LAG:
        tile = turn - LAG
        share = at - SPLITS
        _wait(counter_ptr + 2 * tile, SPLITS)
        if share == 0:
            token = (tile * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
            inside = token < n_tokens
            mixes = _normalised(partial_ptr, squares_ptr, token, inside, n_tokens, d, rms_eps, SPLITS)
            _store_mixes(mixes, row_ptr, base_ptr, scale_ptr, new_post_ptr, new_comb_ptr, token, inside, hc_eps, ITERS)
        else:
            row = (tile * BLOCK_T + (share - 1) * OUT_T + tl.arange(0, OUT_T)).to(tl.int64)
            there = row < n_tokens
            mix = _normalised(partial_ptr, squares_ptr, row, there, n_tokens, d, rms_eps, SPLITS)
            _collapse_rows(x_ptr, out_ptr, base_ptr, scale_ptr, mix, row, there, d, out_stride, hc_eps, OUT_T, BLOCK_D)
        if arrives_last(counter_ptr + 2 * tile + 1, SHARES):
            tl.store(counter_ptr + 2 * tile, 0)
