"""Routed experts. Few tokens: matrix-vector products that read weights as 32-bit words of codes. Many: tiles.

A word holds 2 bf16, 4 fp8 or 8 fp4 codes. Codes are turned into bf16 pairs with shifts and masks, so that their
exponent field sits where bf16 has its own: values come out as ``code * 2^-120`` (fp8) or ``code * 2^-126`` (fp4),
exact, and the powers of two are taken back by the activations (``2^100``) and the scales (the rest).
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import clamped_swiglu

BF16 = tl.constexpr(0)
FP8 = tl.constexpr(1)
FP4 = tl.constexpr(2)
LIFT = tl.constexpr(1.2676506002282294e30)  # 2^100


@triton.jit
def _halves(pairs):
    """The two bf16 of each int32, low half first, as float32."""
    low = (pairs << 16).to(tl.float32, bitcast=True)
    return low, (pairs & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _decoded(words, PAIR: tl.constexpr, FORMAT: tl.constexpr):
    """Codes number ``PAIR`` and ``PAIR`` + half a word's codes, as float32."""
    if FORMAT == 2:
        shifted = words >> (4 * PAIR)
        pairs = ((shifted & 0x00070007) << 6) | ((shifted & 0x00080008) << 12)
    elif FORMAT == 1:
        shifted = words >> (8 * PAIR)
        pairs = ((shifted & 0x007F007F) << 4) | ((shifted & 0x00800080) << 8)
    else:
        pairs = words
    return _halves(pairs)


@triton.jit
def _dot_words(words, x_ptr, first, FORMAT: tl.constexpr):
    """``sum over codes`` of ``words [BN, G, 4]`` times the activations from word ``first [G, 4]`` on: ``[BN, G]``.

    ``x``: bf16 read as int32 pairs.
    """
    half: tl.constexpr = 1 if FORMAT == 0 else (2 if FORMAT == 1 else 4)
    sums = tl.zeros(words.shape, tl.float32)
    if half == 1:
        low, high = _halves(tl.load(x_ptr + first))
        a, b = _decoded(words, 0, FORMAT)
        sums = sums + a * low[None, :, :]
        sums = sums + b * high[None, :, :]
    else:
        for pair in tl.static_range(0, half, 2):
            # Codes pair, pair + 1 meet the activations of one word, codes pair + half, pair + half + 1 of another.
            x0, x1 = _halves(tl.load(x_ptr + first * half + pair // 2))
            x2, x3 = _halves(tl.load(x_ptr + first * half + (pair + half) // 2))
            a, c = _decoded(words, pair, FORMAT)
            b, d = _decoded(words, pair + 1, FORMAT)
            sums = sums + a * (x0 * LIFT)[None, :, :]
            sums = sums + c * (x2 * LIFT)[None, :, :]
            sums = sums + b * (x1 * LIFT)[None, :, :]
            sums = sums + d * (x3 * LIFT)[None, :, :]
    return tl.sum(sums, axis=2)


@triton.jit
def _scales(scales_ptr, expert, row, group, there, rows, groups, FORMAT: tl.constexpr):
    """Scale of each row and group of four words, ``[BN, G]`` float32, with what is left of the powers of two.

    ``expert``: one, or ``[G]``. ``there [G]``: which groups are.
    """
    lift: tl.constexpr = 26 if FORMAT == 2 else 20
    expert += tl.zeros(group.shape, tl.int64)
    if FORMAT == 2:
        at = scales_ptr + (expert[None, :] * rows + row[:, None]) * groups + group[None, :]
    else:
        at = scales_ptr + (expert[None, :] * (rows // 128) + row[:, None] // 128) * (groups // 8) + group[None, :] // 8
    exponent = tl.load(at, mask=there[None, :], other=0).to(tl.int32) + lift
    return (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def _gate_up_kernel(
    x_ptr, experts_ptr, w13_ptr, scales_ptr, h_ptr, inter, groups, slots, x_stride, experts_stride, limit,
    FORMAT: tl.constexpr, PDL: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """``h [pairs, inter]`` = swiglu of the two products; grid: row tiles, (token, slot) pairs.

    ``groups``: groups of four words in a row of ``w13``. ``x_stride`` in int32 words.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    pair = tl.program_id(1)
    token, slot = pair // slots, pair % slots
    expert = tl.load(experts_ptr + token * experts_stride + slot).to(tl.int64)
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    word = tl.arange(0, 4)
    gate = tl.zeros((BLOCK_N, BLOCK_G), tl.float32)
    up = tl.zeros((BLOCK_N, BLOCK_G), tl.float32)
    x_at = x_ptr + token.to(tl.int64) * x_stride
    base = w13_ptr + expert * (2 * inter) * groups * 4
    inside = (row < inter)[:, None, None]
    for at in range(0, groups, BLOCK_G):
        group = at + tl.arange(0, BLOCK_G)
        there = group < groups
        first = tl.where(there, group, 0)[:, None] * 4 + word[None, :]
        where = row[:, None, None] * (groups * 4) + (group[:, None] * 4 + word[None, :])[None, :, :]
        mask = inside & there[None, :, None]
        g = tl.load(base + where, mask=mask, other=0)
        u = tl.load(base + inter * groups * 4 + where, mask=mask, other=0)
        g_sum = _dot_words(g, x_at, first, FORMAT)
        u_sum = _dot_words(u, x_at, first, FORMAT)
        if FORMAT == 0:
            gate += g_sum
            up += u_sum
        else:
            safe = tl.where(row < inter, row, 0)
            gate += g_sum * _scales(scales_ptr, expert, safe, group, there, 2 * inter, groups, FORMAT)
            up += u_sum * _scales(scales_ptr, expert, safe + inter, group, there, 2 * inter, groups, FORMAT)
    y = clamped_swiglu(tl.sum(gate, axis=1), tl.sum(up, axis=1), limit)
    tl.store(h_ptr + pair.to(tl.int64) * inter + row, y.to(h_ptr.dtype.element_ty), mask=row < inter)


@triton.jit
def _down_kernel(
    h_ptr, experts_ptr, weights_ptr, w2_ptr, scales_ptr, out_ptr, d, groups, slots,
    experts_stride, weights_stride, out_stride,
    FORMAT: tl.constexpr, PDL: tl.constexpr, ONE: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """``out [T, d]``: the slots' products, weighted and added; grid: row tiles, tokens.

    ``h``: bf16 as int32 words, rows of pairs without gaps. A step takes ``BLOCK_S`` slots and ``BLOCK_G`` groups of
    four words side by side; ``ONE``: one step is all. With ``PDL`` and one step the weights are on their way while
    the kernel that writes ``h`` still runs: that one waited for the router, whose choice is there to read.
    """
    token = tl.program_id(1)
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane, word = tl.arange(0, BLOCK_S * BLOCK_G), tl.arange(0, 4)
    total = tl.zeros((BLOCK_N, BLOCK_S * BLOCK_G), tl.float32)
    safe = tl.where(row < d, row, 0)
    if PDL and not ONE:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for first_slot in range(0, slots, BLOCK_S):
        slot = first_slot + lane // BLOCK_G
        chosen = token * experts_stride + slot
        expert = tl.load(experts_ptr + chosen, mask=slot < slots, other=0, cache_modifier=".cg").to(tl.int64)
        at_weight = weights_ptr + token * weights_stride + slot
        weight = tl.load(at_weight, mask=slot < slots, other=0.0, cache_modifier=".cg")
        for at in range(0, groups, BLOCK_G):
            group = at + lane % BLOCK_G
            there = (group < groups) & (slot < slots)
            where = (expert[None, :] * d + row[:, None]) * groups + group[None, :]
            mask = (row < d)[:, None, None] & there[None, :, None]
            words = tl.load(w2_ptr + where[:, :, None] * 4 + word[None, None, :], mask=mask, other=0)
            scale = weight[None, :]
            if FORMAT != 0:
                scale = _scales(scales_ptr, expert, safe, group, there, d, groups, FORMAT) * scale
            if PDL and ONE:
                tl.extra.cuda.gdc_wait()
                tl.extra.cuda.gdc_launch_dependents()
            first = tl.where(there, ((token * slots + slot) * groups + group) * 4, 0)
            total += _dot_words(words, h_ptr, first[:, None] + word[None, :], FORMAT) * scale
    tl.store(out_ptr + token.to(tl.int64) * out_stride + row, tl.sum(total, axis=1), mask=row < d)


@triton.jit
def _tile_product(
    acc, a, w_ptr, scales_ptr, expert, row, at, rows, k,
    FORMAT: tl.constexpr, SCALED_DOT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """``acc + a [BM, BLOCK_K] @ w[expert, row, at:].T``; ``row`` must be in range."""
    if FORMAT == 2:
        byte = at // 2 + tl.arange(0, BLOCK_K // 2)
        group = at // 32 + tl.arange(0, BLOCK_K // 32)
        packed = tl.load(w_ptr + (expert * rows + row)[None, :] * (k // 2) + byte[:, None])
        scale = tl.load(scales_ptr + (expert * rows + row)[:, None] * (k // 32) + group[None, :])
        if SCALED_DOT:
            acc = tl.dot_scaled(a, None, "bf16", packed, scale, "e2m1", acc)
        else:
            codes = tl.trans(packed).to(tl.int32)
            low = (((codes & 0x07) << 22) | ((codes & 0x08) << 28)).to(tl.float32, bitcast=True)
            high = (((codes & 0x70) << 18) | ((codes & 0x80) << 24)).to(tl.float32, bitcast=True)
            value = tl.reshape(tl.join(low, high), (BLOCK_N, BLOCK_K // 32, 32))
            power = ((scale.to(tl.int32) + 63) << 23).to(tl.float32, bitcast=True)
            # 2^126 = 2^63 twice: the first factor lifts the codes out of the subnormals.
            w = tl.reshape(value * 9.223372036854775808e18 * power[:, :, None], (BLOCK_N, BLOCK_K))
            acc = tl.dot(a, tl.trans(w.to(tl.bfloat16)), acc)
    elif FORMAT == 1:
        col = at + tl.arange(0, BLOCK_K)
        w = tl.load(w_ptr + (expert * rows + row)[None, :] * k + col[:, None])
        scale = tl.load(scales_ptr + (expert * (rows // 128) + row // 128) * (k // 128) + at // 128).to(tl.int32)
        sums = tl.dot(a, w.to(tl.float8e4nv, bitcast=True).to(tl.bfloat16))
        acc += sums * (scale << 23).to(tl.float32, bitcast=True)[None, :]
    else:
        col = at + tl.arange(0, BLOCK_K)
        w = tl.load(w_ptr + (expert * rows + row)[None, :] * k + col[:, None])
        acc = tl.dot(a, w, acc)
    return acc


@triton.jit
def _gate_up_tiles_kernel(
    x_ptr, order_ptr, block_expert_ptr, block_first_ptr, block_rows_ptr, w13_ptr, scales_ptr, h_ptr,
    d, inter, slots, x_stride, limit,
    FORMAT: tl.constexpr, SCALED_DOT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """``h [pairs, inter]`` in order of the experts; grid: column tiles of ``h``, blocks of pairs of one expert."""
    block = tl.program_id(1)
    rows = tl.load(block_rows_ptr + block)
    if rows > 0:
        expert = tl.load(block_expert_ptr + block).to(tl.int64)
        first = tl.load(block_first_ptr + block)
        m = tl.arange(0, BLOCK_M)
        token = tl.load(order_ptr + first + m, mask=m < rows, other=0) // slots
        col = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        row = tl.where(col < inter, col, 0).to(tl.int64)
        gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for at in range(0, d, BLOCK_K):
            k = at + tl.arange(0, BLOCK_K)
            a = tl.load(
                x_ptr + token.to(tl.int64)[:, None] * x_stride + k[None, :], mask=(m < rows)[:, None], other=0.0
            )
            gate = _tile_product(
                gate, a, w13_ptr, scales_ptr, expert, row, at, 2 * inter, d, FORMAT, SCALED_DOT, BLOCK_N, BLOCK_K
            )
            up = _tile_product(
                up, a, w13_ptr, scales_ptr, expert, row + inter, at, 2 * inter, d, FORMAT, SCALED_DOT, BLOCK_N, BLOCK_K
            )
        y = clamped_swiglu(gate, up, limit).to(h_ptr.dtype.element_ty)
        mask = (m < rows)[:, None] & (col < inter)[None, :]
        tl.store(h_ptr + (first + m).to(tl.int64)[:, None] * inter + col[None, :], y, mask=mask)


@triton.jit
def _down_tiles_kernel(
    h_ptr, order_ptr, block_expert_ptr, block_first_ptr, block_rows_ptr, w2_ptr, scales_ptr, y_ptr, d, inter,
    FORMAT: tl.constexpr, SCALED_DOT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """``y [pairs, d]`` at each pair's own place; grid: column tiles, blocks of pairs of one expert."""
    block = tl.program_id(1)
    rows = tl.load(block_rows_ptr + block)
    if rows > 0:
        expert = tl.load(block_expert_ptr + block).to(tl.int64)
        first = tl.load(block_first_ptr + block)
        m = tl.arange(0, BLOCK_M)
        pair = tl.load(order_ptr + first + m, mask=m < rows, other=0).to(tl.int64)
        col = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        row = tl.where(col < d, col, 0).to(tl.int64)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for at in range(0, inter, BLOCK_K):
            k = at + tl.arange(0, BLOCK_K)
            a = tl.load(
                h_ptr + (first + m).to(tl.int64)[:, None] * inter + k[None, :], mask=(m < rows)[:, None], other=0.0
            )
            acc = _tile_product(
                acc, a, w2_ptr, scales_ptr, expert, row, at, d, inter, FORMAT, SCALED_DOT, BLOCK_N, BLOCK_K
            )
        mask = (m < rows)[:, None] & (col < d)[None, :]
        tl.store(y_ptr + pair[:, None] * d + col[None, :], acc.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _combine_kernel(y_ptr, weights_ptr, out_ptr, d, slots, weights_stride, out_stride, BLOCK: tl.constexpr):
    """``out [T, d]`` = sum of ``weights[t, i] y[t, i]`` in order of the slots."""
    token = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in range(slots):
        y = tl.load(y_ptr + (token * slots + slot) * d + col, mask=col < d, other=0.0).to(tl.float32)
        total += y * tl.load(weights_ptr + token * weights_stride + slot)
    tl.store(out_ptr + token * out_stride + col, total, mask=col < d)
