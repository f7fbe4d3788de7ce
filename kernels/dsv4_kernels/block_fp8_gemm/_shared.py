"""The tokens of a step of ``_nvidia.py`` as its lanes want them: codes as they lie, or made here of bf16 values."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from dsv4_kernels.jit import e8m0_of_amax

TOKENS = gl.constexpr(8)
WORDS = gl.constexpr(32)  # of 128 codes

# Four codes of two pairs of bf16 and a pair of factors, powers of two: the nearest, ties to even.
_CODES = gl.constexpr("""
{
    .reg .b32 v<2>, w<2>;
    .reg .b16 h<2>;
    mul.rn.bf16x2 v0, $1, $3;
    mul.rn.bf16x2 v1, $2, $3;
    and.b32 w0, v0, 0xffff0000;
    shl.b32 v0, v0, 16;
    and.b32 w1, v1, 0xffff0000;
    shl.b32 v1, v1, 16;
    cvt.rn.satfinite.e4m3x2.f32 h0, w0, v0;
    cvt.rn.satfinite.e4m3x2.f32 h1, w1, v1;
    mov.b32 $0, {h0, h1};
}
""")


@gluon.constexpr_function
def _lanes(across, down, words):
    """How a step ``[8 down, across, 4, words]`` lies in lanes: rows or tokens, blocks, groups of 16 codes, words."""
    return gl.BlockedLayout([1, 1, 1, words], [8, 1, 4, 1], [down, across, 1, 1], [3, 2, 1, 0])


@gluon.jit
def _places(ACROSS: gl.constexpr, DOWN: gl.constexpr, GROUP: gl.constexpr):
    """Rows ``[8 DOWN, 1]``, blocks ``[1, ACROSS]`` and words ``[1, ACROSS, 4, GROUP]`` of a step: where the first half
    of each block lies in a row, as four groups of ``GROUP``.
    """
    L: gl.constexpr = _lanes(ACROSS, DOWN, GROUP)
    L2: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, L))
    row = gl.arange(0, 8 * DOWN, layout=gl.SliceLayout(1, L2))[:, None]
    block = gl.arange(0, ACROSS, layout=gl.SliceLayout(0, L2))[None, :]
    group = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, L))))[None, None, :, None]
    word = gl.arange(0, GROUP, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, L))))[None, None, None, :]
    return row, block, _last(block) * (8 * GROUP) + group * GROUP + word


@gluon.jit
def _last(value):
    """``[., .]`` with two more dimensions behind."""
    return gl.expand_dims(gl.expand_dims(value, 2), 3)


@gluon.jit
def _tokens(at, scales_at, there, block, STEP: gl.constexpr, BLOCKS: gl.constexpr, QUANT: gl.constexpr):
    """Words of eight tokens in a block's first half and in its second: codes and the exponents of their scales, or
    pairs of bf16 values.
    """
    ACROSS: gl.constexpr = block.shape[1]
    HALF: gl.constexpr = WORDS if QUANT else WORDS // 2
    if (STEP + 1) * ACROSS > BLOCKS:
        there = there & (block + STEP * ACROSS < BLOCKS)
    mask, at = _last(there), at + STEP * ACROSS * 2 * HALF
    words = (gl.load(at, mask=mask, other=0), gl.load(at + HALF, mask=mask, other=0))
    if not QUANT:
        words += (gl.load(scales_at + (block + STEP * ACROSS), mask=there, other=127).to(gl.int32),)  # type: ignore[assignment]
    return words


@gluon.jit
def _ask_tokens(
    x_ptr, scales_ptr, token, block, words, n_tokens, stride, scales_stride,
    STEP: gl.constexpr, BLOCKS: gl.constexpr, QUANT: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """:func:`_tokens` of ``GROUPS`` times eight."""
    asked = ()
    for g in gl.static_range(GROUPS):
        i = token + g * TOKENS
        scales_at = scales_ptr
        if not QUANT:
            scales_at = scales_ptr + i * scales_stride
        at = x_ptr + (_last(i) * stride + words)
        asked += (_tokens(at, scales_at, i < n_tokens, block, STEP, BLOCKS, QUANT),)  # type: ignore[assignment]
    return asked


@gluon.jit
def _quantised(words):
    """What :func:`_tokens` gives for codes, of what it gives for values."""
    a, b = words[0], words[1]
    most = _half(_half(_half(_larger(a, b))))
    exponent = e8m0_of_amax(gl.max(gl.maximum(gl.abs(_low(most)), gl.abs(_high(most))), axis=2))
    L2: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, _lanes(a.shape[1], gl.num_warps() // a.shape[1], 4)))
    exponent = gl.convert_layout(exponent, L2, assert_trivial=True)
    return _codes(a, exponent), _codes(b, exponent), exponent


@gluon.jit
def _low(words):
    """The first bf16 of each word as float32."""
    return (words << 16).to(gl.float32, bitcast=True)


@gluon.jit
def _high(words):
    return (words & -65536).to(gl.float32, bitcast=True)


@gluon.jit
def _larger(a, b):
    """Pairs of bf16 as large as the larger of two; signs mean nothing."""
    return gl.inline_asm_elementwise(
        "max.xorsign.abs.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def _even_odd(words):
    """Of ``[., ., 4, n]`` the words of even and odd numbers, ``[., ., 4, n / 2]``."""
    N: gl.constexpr = words.shape[3] // 2
    return gl.split(gl.reshape(words, [words.shape[0], words.shape[1], 4, N, 2]))


@gluon.jit
def _half(words):
    """:func:`_larger` of neighbours, ``[., ., 4, n / 2]``; of two words ``[., ., 4]``."""
    if words.shape[3] == 2:
        a, b = gl.split(words)
    else:
        a, b = _even_odd(words)
    return _larger(a, b)


@gluon.jit
def _codes(words, exponent):
    """Words of four codes of pairs of values ``[., ., 4, 8]`` over their scales."""
    a, b = _even_odd(words)
    L: gl.constexpr = _lanes(a.shape[1], gl.num_warps() // a.shape[1], 4)
    a, b = gl.convert_layout(a, L, assert_trivial=True), gl.convert_layout(b, L, assert_trivial=True)
    factor = (254 - exponent) * 0x00800080  # bf16 pairs
    return gl.inline_asm_elementwise(
        _CODES, "=r,r,r,r", [a, b, _last(factor).broadcast_to(a.shape)], dtype=gl.int32, is_pure=True, pack=1
    )
