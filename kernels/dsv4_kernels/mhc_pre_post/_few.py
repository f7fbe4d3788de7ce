"""Hyper-connections of few tokens: products in vector registers, and one program that collapses and norms a token.

With ``PDL`` what no kernel of a step writes (``fn``, norm weights) is on its way before the predecessor has ended; so
are the streams in the second launch, unless the first one wrote them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import e8m0_of_amax, follow, power_of_e8m0, to_e4m3
from dsv4_kernels.mhc_pre_post._kernel import _column, _store_comb, _summed


@triton.jit
def _mix_few_kernel(
    x_ptr, y_ptr, post_ptr, comb_ptr, fn_ptr, partial_ptr, squares_ptr, n_tokens, d,
    SPREAD: tl.constexpr, MIXES: tl.constexpr, PDL: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """As ``_mix_kernel`` with ``MIX``; a program does ``BLOCK_D`` columns of each stream. Grid: columns, tokens."""
    split = tl.program_id(0)
    mix, lane = tl.arange(0, 32), tl.arange(0, 4 * BLOCK_D)
    stream, col = lane // BLOCK_D, split * BLOCK_D + lane % BLOCK_D
    there = col < d
    at = stream * d + col
    fn = tl.load(fn_ptr + mix[:, None] * (4 * d) + at[None, :], mask=(mix < MIXES)[:, None] & there[None, :], other=0.0)
    if PDL:  # in this order: the collapse may have read streams before it waits
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for t in tl.static_range(BLOCK_T):
        token = (tl.program_id(1) * BLOCK_T + t).to(tl.int64)
        mask = there & (token < n_tokens)
        base = x_ptr + token * (4 * d)
        if SPREAD:
            f0 = tl.load(base + col, mask=mask, other=0.0).to(tl.float32)
            f1 = tl.load(base + d + col, mask=mask, other=0.0).to(tl.float32)
            f2 = tl.load(base + 2 * d + col, mask=mask, other=0.0).to(tl.float32)
            f3 = tl.load(base + 3 * d + col, mask=mask, other=0.0).to(tl.float32)
            y = tl.load(y_ptr + token * d + col, mask=mask, other=0.0).to(tl.float32)
            p = tl.load(post_ptr + token * 4 + stream, mask=mask, other=0.0)
            c = comb_ptr + token * 16 + stream
            c0 = tl.load(c, mask=mask, other=0.0)
            c1 = tl.load(c + 4, mask=mask, other=0.0)
            c2 = tl.load(c + 8, mask=mask, other=0.0)
            c3 = tl.load(c + 12, mask=mask, other=0.0)
            value = (p * y + (c0 * f0 + c1 * f1 + c2 * f2 + c3 * f3)).to(x_ptr.dtype.element_ty)
            tl.debug_barrier()  # every lane has its old streams before one of them changes
            tl.store(base + at, value, mask=mask)
        else:
            value = tl.load(base + at, mask=mask, other=0.0)
        wide = value.to(tl.float32)
        to = split * n_tokens + token
        tl.store(partial_ptr + to * 32 + mix, tl.sum(fn * wide[None, :], axis=1), mask=(mix < 32) & (token < n_tokens))
        tl.store(squares_ptr + to, tl.sum(wide * wide, axis=0), mask=token < n_tokens)


@triton.jit
def _mixes(partial_ptr, squares_ptr, row, n_tokens, d, splits, rms_eps, SPLITS_PAD: tl.constexpr):
    """Normalised mixes of one token, ``[1, 32]``."""
    s = tl.arange(0, SPLITS_PAD)
    squares = tl.load(squares_ptr + s[:, None] * n_tokens + row[None, :], mask=(s < splits)[:, None], other=0.0)
    r = tl.rsqrt(tl.sum(squares, axis=0) / (4 * d) + rms_eps)
    return _summed(partial_ptr, row, row < n_tokens, n_tokens, splits, SPLITS_PAD) * r[:, None]


@triton.jit
def _affine(base_ptr, scale_ptr, COMB: tl.constexpr):
    """Scale and base of each mix, ``[32]``; without ``COMB`` there are those of the collapse alone."""
    mix = tl.arange(0, 32)
    there = mix < (24 if COMB else 4)
    scale = tl.load(scale_ptr + (mix >= 4).to(tl.int32) + (mix >= 8).to(tl.int32), mask=there, other=0.0)
    return scale, tl.load(base_ptr + mix, mask=there, other=0.0)


@triton.jit
def _pre(logits, hc_eps, STREAM: tl.constexpr):
    """Weight of a stream in the collapse, a scalar."""
    return tl.sum(1.0 / (1.0 + tl.exp(-_column(logits, STREAM))) + hc_eps, axis=0)


@triton.jit
def _streams(x_ptr, token, col, d):
    """The four streams of a token, each ``[D]``."""
    at, mask = x_ptr + token * (4 * d) + col, col < d
    x0 = tl.load(at, mask=mask, other=0.0, cache_modifier=".cg")
    x1 = tl.load(at + d, mask=mask, other=0.0, cache_modifier=".cg")
    x2 = tl.load(at + 2 * d, mask=mask, other=0.0, cache_modifier=".cg")
    return x0, x1, x2, tl.load(at + 3 * d, mask=mask, other=0.0, cache_modifier=".cg")


@triton.jit
def _collapse_few_kernel(
    x_ptr, partial_ptr, squares_ptr, base_ptr, scale_ptr, out_ptr, post_ptr, comb_ptr, norm_ptr, normed_ptr,
    codes_ptr, scales_ptr, n_tokens, d, splits, out_stride, normed_stride, codes_stride, scales_stride, rms_eps, hc_eps,
    COMB: tl.constexpr, ITERS: tl.constexpr, NORM: tl.constexpr, QUANT: tl.constexpr, EARLY: tl.constexpr,
    PDL: tl.constexpr, SPLITS_PAD: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """As ``_collapse_kernel``, and with ``NORM`` ``normed [n_tokens, d]``, the RMSNorm of ``out``; with ``QUANT`` that
    also as e4m3 ``codes [n_tokens, d]`` with e8m0 ``scales [n_tokens, d / 128]``.

    Grid: two programs (one without ``COMB``) for each token: the collapse of all ``d <= BLOCK_D`` columns, and the
    mixes. ``EARLY``: the predecessor does not write the streams.
    """
    token = tl.program_id(1).to(tl.int64)
    row = token + tl.arange(0, 1)
    scale, base = _affine(base_ptr, scale_ptr, COMB)
    if tl.program_id(0) == 0:
        col = tl.arange(0, BLOCK_D)
        mask = col < d
        if EARLY:
            x0, x1, x2, x3 = _streams(x_ptr, token, col, d)
        if NORM:
            weight = tl.load(norm_ptr + col, mask=mask, other=0.0).to(tl.float32)
        follow(PDL)
        if not EARLY:
            x0, x1, x2, x3 = _streams(x_ptr, token, col, d)
        mixes = _mixes(partial_ptr, squares_ptr, row, n_tokens, d, splits, rms_eps, SPLITS_PAD)
        logits = mixes * scale[None, :] + base[None, :]
        y = _pre(logits, hc_eps, 0) * x0.to(tl.float32)
        y += _pre(logits, hc_eps, 1) * x1.to(tl.float32)
        y += _pre(logits, hc_eps, 2) * x2.to(tl.float32)
        y += _pre(logits, hc_eps, 3) * x3.to(tl.float32)
        value = y.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + token * out_stride + col, value, mask=mask)
        if NORM:
            wide = value.to(tl.float32)
            wide = wide * tl.rsqrt(tl.sum(wide * wide, axis=0) / d + rms_eps) * weight
            rounded = wide.to(normed_ptr.dtype.element_ty)
            tl.store(normed_ptr + token * normed_stride + col, rounded, mask=mask)
            if QUANT:
                groups = tl.reshape(rounded.to(tl.float32), (BLOCK_D // 128, 128))
                exponent = e8m0_of_amax(tl.max(tl.abs(groups), axis=1))
                codes = tl.reshape(to_e4m3(groups * power_of_e8m0(254 - exponent)[:, None]), (BLOCK_D,))
                tl.store(codes_ptr + token * codes_stride + col, codes, mask=mask)
                group = tl.arange(0, BLOCK_D // 128)
                to = scales_ptr + token * scales_stride + group
                tl.store(to, exponent.to(tl.uint8), mask=group < d // 128)
    else:
        follow(PDL)
        if COMB:
            mixes = _mixes(partial_ptr, squares_ptr, row, n_tokens, d, splits, rms_eps, SPLITS_PAD)
            logits = mixes * scale[None, :] + base[None, :]
            for j in tl.static_range(4):
                tl.store(post_ptr + row * 4 + j, 2.0 / (1.0 + tl.exp(-_column(logits, 4 + j))))
            _store_comb(
                logits, base_ptr, scale_ptr, comb_ptr, row, row < n_tokens, hc_eps, ITERS, AFFINE=False, FAST=PDL > 0
            )
