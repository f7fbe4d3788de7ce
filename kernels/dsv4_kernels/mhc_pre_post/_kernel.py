"""Hyper-connection kernels for four streams.

``_mix_kernel`` goes once over the streams: it spreads the sublayer output (post), and of the new streams takes the
products with ``fn`` and the sums of squares, split over the hidden dim. ``_collapse_kernel`` adds the splits up, makes
the mixes (Sinkhorn with a token per lane, all in registers) and collapses the streams.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _split_bf16(value):
    """``value`` float32 as a sum of three bf16: exact to float32's last place, so that products need no TF32."""
    high = value.to(tl.bfloat16)
    rest = value - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return high, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _mix_kernel(
    x_ptr, y_ptr, post_ptr, comb_ptr, fn_ptr, partial_ptr, squares_ptr, n_tokens, d,
    SPREAD: tl.constexpr, MIX: tl.constexpr, MIXES: tl.constexpr, SPLIT_D: tl.constexpr, SPLIT_BF16: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Streams ``x [n_tokens, 4, d]`` in place; ``partial [splits, n_tokens, 32]``, ``squares [splits, n_tokens]``.

    ``SPREAD``: ``x[l] = post[l] y + sum_j comb[j, l] x[j]``. ``MIX``: products with ``fn [MIXES, 4 d]``.
    Grid: token tiles, splits.
    """
    token = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    inside = token < n_tokens
    split = tl.program_id(1)
    mix = tl.arange(0, 32)
    acc = tl.zeros((BLOCK_T, 32), tl.float32)
    squares = tl.zeros((BLOCK_T, BLOCK_D), tl.float32)
    for at in range(0, SPLIT_D, BLOCK_D):
        col = split * SPLIT_D + at + tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (col < d)[None, :]
        base = x_ptr + token[:, None] * (4 * d) + col[None, :]
        if SPREAD:
            f0 = tl.load(base, mask=mask, other=0.0).to(tl.float32)
            f1 = tl.load(base + d, mask=mask, other=0.0).to(tl.float32)
            f2 = tl.load(base + 2 * d, mask=mask, other=0.0).to(tl.float32)
            f3 = tl.load(base + 3 * d, mask=mask, other=0.0).to(tl.float32)
            y = tl.load(y_ptr + token[:, None] * d + col[None, :], mask=mask, other=0.0).to(tl.float32)
        for stream in tl.range(0, 4, loop_unroll_factor=UNROLL):
            if SPREAD:
                p = tl.load(post_ptr + token * 4 + stream, mask=inside, other=0.0)
                c = comb_ptr + token * 16 + stream
                c0 = tl.load(c, mask=inside, other=0.0)
                c1 = tl.load(c + 4, mask=inside, other=0.0)
                c2 = tl.load(c + 8, mask=inside, other=0.0)
                c3 = tl.load(c + 12, mask=inside, other=0.0)
                mixed = p[:, None] * y + (c0[:, None] * f0 + c1[:, None] * f1 + c2[:, None] * f2 + c3[:, None] * f3)
                value = mixed.to(x_ptr.dtype.element_ty)
                tl.store(base + stream * d, value, mask=mask)
            else:
                value = tl.load(base + stream * d, mask=mask, other=0.0)
            if MIX:
                wide = value.to(tl.float32)
                squares += wide * wide
                fn = tl.load(
                    fn_ptr + mix[None, :] * (4 * d) + stream * d + col[:, None],
                    mask=(mix < MIXES)[None, :] & (col < d)[:, None], other=0.0,
                )  # fmt: skip
                if SPLIT_BF16:
                    high, middle, low = _split_bf16(fn)
                    acc = tl.dot(value, low, acc)
                    acc = tl.dot(value, middle, acc)
                    acc = tl.dot(value, high, acc)
                else:
                    acc = tl.dot(wide, fn, acc, input_precision="ieee")
    if MIX:
        at = split * n_tokens + token
        tl.store(partial_ptr + at[:, None] * 32 + mix[None, :], acc, mask=inside[:, None])
        tl.store(squares_ptr + at, tl.sum(squares, axis=1), mask=inside)


@triton.jit
def _summed(partial_ptr, token, inside, n_tokens, splits, SPLITS_PAD: tl.constexpr):
    """The mixes of the tokens ``[BLOCK_T, 32]``, all splits loaded at once."""
    s, mix = tl.arange(0, SPLITS_PAD), tl.arange(0, 32)
    at = partial_ptr + (s[:, None] * n_tokens + token[None, :])[:, :, None] * 32 + mix[None, None, :]
    there = (s < splits)[:, None] & inside[None, :]
    return tl.sum(tl.load(at, mask=there[:, :, None], other=0.0), axis=0)


@triton.jit
def _column(mixes, at):
    """Column ``at`` of ``mixes [BLOCK_T, 32]``."""
    return tl.sum(tl.where((tl.arange(0, 32) == at)[None, :], mixes, 0.0), axis=1)


@triton.jit
def _mix_of(mixes, at, token, inside, ROWS: tl.constexpr):
    """Mix ``at`` of each token; with ``ROWS`` ``mixes`` points to rows of 32 in memory."""
    if ROWS:
        mix = tl.load(mixes + token * 32 + at, mask=inside, other=0.0, cache_modifier=".cg")
    else:
        mix = _column(mixes, at)
    return mix


@triton.jit
def _inverse(x, FAST: tl.constexpr):
    """``1 / x`` of positive numbers. ``FAST``: NVIDIA's approximation, within an ulp, instead of a chain of eight."""
    if FAST:
        y = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        y = 1.0 / x
    return y


@triton.jit
def _row_norm(a, b, c, d, eps, FAST: tl.constexpr):
    inverse = _inverse((a + b) + (c + d) + eps, FAST)
    return a * inverse, b * inverse, c * inverse, d * inverse


@triton.jit
def _softmax4(a, b, c, d, eps, FAST: tl.constexpr):
    top = tl.maximum(tl.maximum(a, b), tl.maximum(c, d))
    a, b, c, d = tl.exp(a - top), tl.exp(b - top), tl.exp(c - top), tl.exp(d - top)
    total = (a + b) + (c + d)
    if FAST:
        inverse = _inverse(total, FAST)
        a, b, c, d = a * inverse, b * inverse, c * inverse, d * inverse
    else:
        a, b, c, d = a / total, b / total, c / total, d / total
    return a + eps, b + eps, c + eps, d + eps


@triton.jit
def _logit(mixes, at, base_ptr, scale, token, inside, ROWS: tl.constexpr, AFFINE: tl.constexpr):
    """Mix ``at`` of each token, times its scale and with its base, which with ``AFFINE`` is still to be done."""
    mix = _mix_of(mixes, at, token, inside, ROWS)
    if AFFINE:
        mix = mix * scale + tl.load(base_ptr + at)
    return mix


@triton.jit
def _store_comb(
    mixes, base_ptr, scale_ptr, comb_ptr, token, inside, hc_eps, ITERS: tl.constexpr, ROWS: tl.constexpr = False,
    AFFINE: tl.constexpr = True, FAST: tl.constexpr = False,
):  # fmt: skip
    """Sinkhorn of the 4 x 4 mixes, each entry a vector over tokens."""
    scale = 1.0
    if AFFINE:
        scale = tl.load(scale_ptr + 2)
    a00 = _logit(mixes, 8, base_ptr, scale, token, inside, ROWS, AFFINE)
    a01 = _logit(mixes, 9, base_ptr, scale, token, inside, ROWS, AFFINE)
    a02 = _logit(mixes, 10, base_ptr, scale, token, inside, ROWS, AFFINE)
    a03 = _logit(mixes, 11, base_ptr, scale, token, inside, ROWS, AFFINE)
    a10 = _logit(mixes, 12, base_ptr, scale, token, inside, ROWS, AFFINE)
    a11 = _logit(mixes, 13, base_ptr, scale, token, inside, ROWS, AFFINE)
    a12 = _logit(mixes, 14, base_ptr, scale, token, inside, ROWS, AFFINE)
    a13 = _logit(mixes, 15, base_ptr, scale, token, inside, ROWS, AFFINE)
    a20 = _logit(mixes, 16, base_ptr, scale, token, inside, ROWS, AFFINE)
    a21 = _logit(mixes, 17, base_ptr, scale, token, inside, ROWS, AFFINE)
    a22 = _logit(mixes, 18, base_ptr, scale, token, inside, ROWS, AFFINE)
    a23 = _logit(mixes, 19, base_ptr, scale, token, inside, ROWS, AFFINE)
    a30 = _logit(mixes, 20, base_ptr, scale, token, inside, ROWS, AFFINE)
    a31 = _logit(mixes, 21, base_ptr, scale, token, inside, ROWS, AFFINE)
    a32 = _logit(mixes, 22, base_ptr, scale, token, inside, ROWS, AFFINE)
    a33 = _logit(mixes, 23, base_ptr, scale, token, inside, ROWS, AFFINE)
    a00, a01, a02, a03 = _softmax4(a00, a01, a02, a03, hc_eps, FAST)
    a10, a11, a12, a13 = _softmax4(a10, a11, a12, a13, hc_eps, FAST)
    a20, a21, a22, a23 = _softmax4(a20, a21, a22, a23, hc_eps, FAST)
    a30, a31, a32, a33 = _softmax4(a30, a31, a32, a33, hc_eps, FAST)
    for at in range(ITERS):
        if at > 0:
            a00, a01, a02, a03 = _row_norm(a00, a01, a02, a03, hc_eps, FAST)
            a10, a11, a12, a13 = _row_norm(a10, a11, a12, a13, hc_eps, FAST)
            a20, a21, a22, a23 = _row_norm(a20, a21, a22, a23, hc_eps, FAST)
            a30, a31, a32, a33 = _row_norm(a30, a31, a32, a33, hc_eps, FAST)
        a00, a10, a20, a30 = _row_norm(a00, a10, a20, a30, hc_eps, FAST)
        a01, a11, a21, a31 = _row_norm(a01, a11, a21, a31, hc_eps, FAST)
        a02, a12, a22, a32 = _row_norm(a02, a12, a22, a32, hc_eps, FAST)
        a03, a13, a23, a33 = _row_norm(a03, a13, a23, a33, hc_eps, FAST)
    to = comb_ptr + token * 16
    tl.store(to, a00, mask=inside)
    tl.store(to + 1, a01, mask=inside)
    tl.store(to + 2, a02, mask=inside)
    tl.store(to + 3, a03, mask=inside)
    tl.store(to + 4, a10, mask=inside)
    tl.store(to + 5, a11, mask=inside)
    tl.store(to + 6, a12, mask=inside)
    tl.store(to + 7, a13, mask=inside)
    tl.store(to + 8, a20, mask=inside)
    tl.store(to + 9, a21, mask=inside)
    tl.store(to + 10, a22, mask=inside)
    tl.store(to + 11, a23, mask=inside)
    tl.store(to + 12, a30, mask=inside)
    tl.store(to + 13, a31, mask=inside)
    tl.store(to + 14, a32, mask=inside)
    tl.store(to + 15, a33, mask=inside)


@triton.jit
def _collapse_kernel(
    x_ptr, partial_ptr, squares_ptr, base_ptr, scale_ptr, out_ptr, post_ptr, comb_ptr,
    n_tokens, d, splits, out_stride, rms_eps, hc_eps,
    COMB: tl.constexpr, ITERS: tl.constexpr, SPLITS_PAD: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """``out [n_tokens, d]`` = sum of ``pre[j] x[j]``; with ``COMB`` also ``post [n_tokens, 4]`` and ``comb``.

    Grid: column tiles (and one more with ``COMB``, which does the mixes alone), token tiles.
    """
    token = (tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    inside = token < n_tokens
    s = tl.arange(0, SPLITS_PAD)
    squares = tl.load(
        squares_ptr + s[:, None] * n_tokens + token[None, :], mask=(s < splits)[:, None] & inside[None, :], other=0.0
    )
    r = tl.rsqrt(tl.sum(squares, axis=0) / (4 * d) + rms_eps)
    mixes = _summed(partial_ptr, token, inside, n_tokens, splits, SPLITS_PAD) * r[:, None]
    tile = tl.program_id(0)
    if COMB:
        tile -= 1
        if tile < 0:
            scale = tl.load(scale_ptr + 1)
            for j in tl.static_range(4):
                mix = _column(mixes, 4 + j) * scale + tl.load(base_ptr + 4 + j)
                tl.store(post_ptr + token * 4 + j, 2.0 / (1.0 + tl.exp(-mix)), mask=inside)
            _store_comb(mixes, base_ptr, scale_ptr, comb_ptr, token, inside, hc_eps, ITERS)
    if tile >= 0:
        col = tile * BLOCK_D + tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (col < d)[None, :]
        scale = tl.load(scale_ptr)
        y = tl.zeros((BLOCK_T, BLOCK_D), tl.float32)
        for j in tl.static_range(4):
            mix = _column(mixes, j) * scale + tl.load(base_ptr + j)
            pre = 1.0 / (1.0 + tl.exp(-mix)) + hc_eps
            x = tl.load(x_ptr + token[:, None] * (4 * d) + j * d + col[None, :], mask=mask, other=0.0)
            y += pre[:, None] * x.to(tl.float32)
        tl.store(out_ptr + token[:, None] * out_stride + col[None, :], y.to(out_ptr.dtype.element_ty), mask=mask)
