"""Indexer scores of long contexts: a program takes a run of entries of one token, whose next keys are on their way."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import power_of_e8m0


@triton.jit
def _queries(place, h, d, HEADS: tl.constexpr):
    """Queries ``[heads, values]`` as float32."""
    return tl.load(place + d[None, :], (h < HEADS)[:, None] & (d >= 0)[None, :], 0.0).to(tl.float32)


@triton.jit
def _exponent_of(amax):
    """Biased exponent, int32, of the power of two that brings ``amax`` into ``[2^14, 2^15)``: it fits float16, and
    what is up to ``2^29`` times smaller keeps the 8 bits of bf16.
    """
    return tl.minimum(268 - (amax.to(tl.int32, bitcast=True) >> 23), 253)


@triton.jit
def _low_codes(code, PACKED: tl.constexpr):
    """e4m3 bytes of the low e2m1 codes of bytes, ``2^-6`` of their value: exponent and sign only change their place."""
    if PACKED:
        code = tl.inline_asm_elementwise(
            "{ .reg .b32 a, b; shl.b32 a, $1, 2; shl.b32 b, $1, 4; and.b32 a, a, 0x1C1C1C1C;"
            " lop3.b32 $0, b, 0x80808080, a, 0xEA; }",
            "=r,r", [code], dtype=tl.uint8, is_pure=True, pack=4,
        )  # fmt: skip
    else:
        code = (((code & 7) << 2) | ((code & 8) << 4)).to(tl.uint8)
    return code.to(tl.float8e4nv, bitcast=True).to(tl.float16)


@triton.jit
def _high_codes(code, PACKED: tl.constexpr):
    """As above, of the high codes."""
    if PACKED:
        code = tl.inline_asm_elementwise(
            "{ .reg .b32 a; shr.b32 a, $1, 2; and.b32 a, a, 0x1C1C1C1C; lop3.b32 $0, $1, 0x80808080, a, 0xEA; }",
            "=r,r", [code], dtype=tl.uint8, is_pure=True, pack=4,
        )  # fmt: skip
    else:
        code = (((code >> 2) & 28) | (code & 128)).to(tl.uint8)
    return code.to(tl.float8e4nv, bitcast=True).to(tl.float16)


@triton.jit
def _fp4_group(
    at, ok, low_queries, high_queries, exponents, GROUP: tl.constexpr, PACKED: tl.constexpr
):  # fmt: skip
    """Products of 32 values of the keys, the e8m0 scale of that group among them."""
    code = tl.load(at[:, None] + GROUP * 16 + tl.arange(0, 16)[None, :], ok[:, None], 0)
    s = tl.dot(_low_codes(code, PACKED), low_queries)
    s = tl.dot(_high_codes(code, PACKED), high_queries, s)
    return s * power_of_e8m0((exponents >> (8 * GROUP)) & 255)[:, None]


@triton.jit
def _paired(place, h, GROUP: tl.constexpr, ODD: tl.constexpr, HEADS: tl.constexpr, factor):
    """Every other value of a group of 32, ``[16, heads]``."""
    d = GROUP * 32 + 2 * tl.arange(0, 16) + ODD
    return tl.trans((_queries(place, h, d, HEADS) * factor).to(tl.float16))


@triton.jit
def _index_score_long_kernel(
    q_ptr, weights_ptr, keys_ptr, page_table_ptr, request_ptr, visible_ptr, out_ptr, run, factor,
    q_stride_t, q_stride_h, w_stride, page_bytes, page_table_stride, out_stride,
    HEADS: tl.constexpr, BLOCK_HEADS: tl.constexpr, DIM: tl.constexpr, PER_PAGE: tl.constexpr, KIND: tl.constexpr,
    PACKED: tl.constexpr, PDL: tl.constexpr, BLOCK_E: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``run`` entries, a multiple of ``BLOCK_E``, of token ``program_id(1)``.

    Keys that are quantised are multiplied as float16, which holds e4m3 and e2m1 exactly, and so does it hold queries
    once a power of two, which the head's weight takes back, has brought them into its range.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(1).to(tl.int64)
    begin = tl.program_id(0) * run
    end = tl.minimum(begin + run, tl.load(visible_ptr + token).to(tl.int32))
    if begin >= end:
        return
    table = page_table_ptr + tl.load(request_ptr + token).to(tl.int64) * page_table_stride
    h = tl.arange(0, BLOCK_HEADS)
    place = q_ptr + token * q_stride_t + (h * q_stride_h)[:, None]
    w = tl.load(weights_ptr + token * w_stride + h, h < HEADS, 0.0).to(tl.float32) * factor
    q = _queries(place, h, tl.arange(0, DIM), HEADS)
    if KIND == 0:
        queries = tl.trans(q.to(keys_ptr.dtype.element_ty))
    else:
        exponent = _exponent_of(tl.max(tl.abs(q), 1))
        factor = power_of_e8m0(exponent)[:, None]
        w *= power_of_e8m0(254 - exponent)
        if KIND == 1:
            queries = tl.trans((q * factor).to(tl.float16))
        else:
            w *= 64.0
            a0 = _paired(place, h, 0, 0, HEADS, factor)
            b0 = _paired(place, h, 0, 1, HEADS, factor)
            a1 = _paired(place, h, 1, 0, HEADS, factor)
            b1 = _paired(place, h, 1, 1, HEADS, factor)
            a2 = _paired(place, h, 2, 0, HEADS, factor)
            b2 = _paired(place, h, 2, 1, HEADS, factor)
            a3 = _paired(place, h, 3, 0, HEADS, factor)
            b3 = _paired(place, h, 3, 1, HEADS, factor)
    for at in tl.range(begin, end, BLOCK_E, num_stages=STAGES):
        e = at + tl.arange(0, BLOCK_E)
        ok = e < end
        base = keys_ptr + tl.load(table + e // PER_PAGE, ok, 0).to(tl.int64) * page_bytes
        row = e % PER_PAGE
        scale = 1.0
        if KIND == 0:
            key = tl.load((base + row * DIM)[:, None] + tl.arange(0, DIM)[None, :], ok[:, None], 0.0)
            s = tl.dot(key, queries)
        elif KIND == 1:
            code = tl.load((base + row * DIM)[:, None] + tl.arange(0, DIM)[None, :], ok[:, None], 0)
            scale = tl.load((base + PER_PAGE * DIM).to(tl.pointer_type(tl.float32)) + row, ok, 0.0)
            s = tl.dot(code.to(tl.float8e4nv, bitcast=True).to(tl.float16), queries)
        else:
            exponents = tl.load((base + PER_PAGE * (DIM // 2)).to(tl.pointer_type(tl.int32)) + row, ok, 0)
            codes = base + row * (DIM // 2)
            s = _fp4_group(codes, ok, a0, b0, exponents, 0, PACKED)
            s += _fp4_group(codes, ok, a1, b1, exponents, 1, PACKED)
            s += _fp4_group(codes, ok, a2, b2, exponents, 2, PACKED)
            s += _fp4_group(codes, ok, a3, b3, exponents, 3, PACKED)
        s = tl.sum(tl.maximum(s, 0.0) * w[None, :], 1) * scale
        tl.store(out_ptr + token * out_stride + e, s, ok)
