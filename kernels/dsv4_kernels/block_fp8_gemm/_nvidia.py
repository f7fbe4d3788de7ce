"""NVIDIA sibling of the fp8 products of few tokens: what each lane loads goes to ``mma.sync`` as it lies (Gluon).

A warp takes 16 rows and 128 columns at a step: lane ``4 r + t`` reads 16 bytes of the rows ``r`` and ``r + 8``, from
column ``16 t`` and from column ``64 + 16 t`` on, and of token ``r`` the same columns. As f16 pairs they lie where the
tensor core wants its operands, since both count their columns alike; the sums of the tokens ``2 t`` and ``2 t + 1``
come back to the lane. The warps of a program share the columns, and their sums meet once, at its end.

``AHEAD`` steps of weights are on their way in registers, the first of them before the kernel that makes the
activations has ended (``PDL``). Through shared memory (``cp.async``) they took 3 to 20 % longer on an H200, and so do
these where shared memory takes the place of the first cache: tokens and what is on its way are there.

Every e4m3 number is an f16 number: a block of 128 columns is summed as exact products in float32, then scaled. Hopper
has no ``mma.sync`` for fp8 itself: ptxas makes these conversions for it, too, but adds to its sums twice as often.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from dsv4_kernels.block_fp8_gemm._shared import TOKENS, WORDS, _ask_tokens, _lanes, _last, _places, _quantised
from dsv4_kernels.jit import power_of_e8m0

ROWS = gl.constexpr(16)


def _pairs(word: str, to: str) -> str:
    """PTX: the four codes of ``word`` as f16 pairs ``to0`` and ``to1``."""
    return f"mov.b32 {{h0, h1}}, {word}; cvt.rn.f16x2.e4m3x2 {to}0, h0; cvt.rn.f16x2.e4m3x2 {to}1, h1;"


def _products() -> str:
    """PTX of a step of a warp.

    Operands are the sums (4 of a lane), words of rows ``r`` and ``r + 8`` (4 of each) in the first half of the block
    and in the second, words of the token (4 of each half), the exponent of its scale and the block's factor (4 of each,
    alike), and the sums before (4).
    """
    body = [".reg .b32 l, p<2>, q<2>, x<2>;", ".reg .b16 h<2>;", ".reg .f32 c<4>, e<4>, s<2>;"]
    body += [f"mov.f32 {sums}{i}, 0f00000000;" for sums in "ce" for i in range(4)]
    for word in range(4):
        for half, sums in enumerate("ce"):
            upper, lower, x = 4 + 8 * half + word, 8 + 8 * half + word, 20 + 4 * half + word
            body += [_pairs(f"${upper}", "p"), _pairs(f"${lower}", "q"), _pairs(f"${x}", "x")]
            c = ", ".join(f"{sums}{i}" for i in range(4))
            body.append(
                f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{c}}}, {{p0, q0, p1, q1}}, {{x0, x1}}, {{{c}}};"
            )
    body += ["mov.u32 l, %laneid;", "and.b32 l, l, 3;", "shl.b32 l, l, 3;"]
    for token in range(2):  # lane 4 r has the exponent of token r
        body += [
            f"shfl.sync.idx.b32 p{token}, $28, l, 31, 0xffffffff;", f"shl.b32 p{token}, p{token}, 23;",
            f"mov.b32 s{token}, p{token};", f"mul.rn.f32 s{token}, s{token}, $32;", "add.u32 l, l, 4;",
        ]  # fmt: skip
    for i in range(4):
        body += [f"add.rn.f32 c{i}, c{i}, e{i};", f"fma.rn.f32 ${i}, c{i}, s{i % 2}, ${36 + i};"]
    return "{\n" + "\n".join(body) + "\n}"


_PRODUCTS = gl.constexpr(_products())
_PRODUCTS_OPERANDS = gl.constexpr(",".join(["=&f"] * 4 + ["r"] * 28 + ["f"] * 8))


@gluon.jit
def _rows(at, scales_at, block, below, STEP: gl.constexpr, BLOCKS: gl.constexpr):
    """A step's words of the rows ``r`` and ``r + 8`` in a block's first half, both in its second, and its exponent."""
    HALF: gl.constexpr = WORDS // 2
    ACROSS: gl.constexpr = block.shape[1]
    FULL: gl.constexpr = (STEP + 1) * ACROSS <= BLOCKS
    at, scales_at = at + STEP * ACROSS * WORDS, scales_at + STEP * ACROSS
    there = block + STEP * ACROSS < BLOCKS
    if FULL:
        exponent = gl.load(scales_at)
    else:
        exponent = gl.load(scales_at, mask=there, other=127)
    mask = _last(there)
    return (
        _once(at, mask, FULL), _once(at + below, mask, FULL),
        _once(at + HALF, mask, FULL), _once(at + below + HALF, mask, FULL), exponent,
    )  # fmt: skip


@gluon.jit
def _once(at, mask, FULL: gl.constexpr):
    """Words that are not read again, so that the tokens stay in the first cache; 0 without ``mask``."""
    if FULL:
        words = gl.load(at, eviction_policy="evict_first")
    else:
        words = gl.load(at, mask=mask, other=0, eviction_policy="evict_first")
    return words


@gluon.jit
def _add(acc, w, x):
    """``acc`` and the scaled products of a step's rows ``w`` and tokens ``x``."""
    token = _last(x[2]).broadcast_to(acc.shape)
    block = _last(power_of_e8m0(w[4].to(gl.int32))).broadcast_to(acc.shape)
    return gl.inline_asm_elementwise(
        _PRODUCTS, _PRODUCTS_OPERANDS, [w[0], w[1], w[2], w[3], x[0], x[1], token, block, acc],
        dtype=gl.float32, is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def _store(out_ptr, out_stride, acc, first, past, n_tokens, ACROSS: gl.constexpr, DOWN: gl.constexpr):
    """The sum over the blocks of ``acc [8 DOWN, ACROSS, 4, 4]``; tokens from ``past`` on."""
    if ACROSS > 1:
        flat: gl.constexpr = gl.BlockedLayout([1, ACROSS, 1, 1], [8, 1, 4, 1], [DOWN, 1, 1, ACROSS], [3, 2, 1, 0])
        acc = gl.convert_layout(acc, flat)
    y = gl.sum(acc, axis=1)
    L: gl.constexpr = y.type.layout
    i = gl.arange(0, 8 * DOWN, layout=gl.SliceLayout(1, gl.SliceLayout(2, L)))[:, None, None]
    t = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(2, L)))[None, :, None]
    j = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
    row, token = i // 8 * ROWS + i % 8 + j // 2 * 8, past + 2 * t + j % 2
    to = out_ptr + token * out_stride + (first + row)
    gl.store(to, y.to(out_ptr.dtype.element_ty), mask=(token < n_tokens) & (row >= 0))


@gluon.jit
def _few_lanes_kernel(
    x_ptr, x_scales_ptr, weight_ptr, weight_scales_ptr, out_ptr,
    n_tokens, x_stride, x_scales_stride, weight_stride, weight_scales_stride, out_stride,
    QUANT: gl.constexpr, PDL: gl.constexpr, BLOCKS: gl.constexpr, GROUPS: gl.constexpr, AHEAD: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """``out [T, n]`` for up to ``8 GROUPS`` tokens; grid: row tiles, all full.

    ``weight``, and ``x`` as codes or as bf16, are int32 words; strides in words. ``BLOCKS`` of 128 columns are a row,
    ``BLOCK_K`` columns a step of the warps that share rows; ``AHEAD`` steps, no more than there are, are on their way.
    """
    ACROSS: gl.constexpr = BLOCK_K // 128
    DOWN: gl.constexpr = gl.num_warps() // ACROSS
    STEPS: gl.constexpr = (BLOCKS + ACROSS - 1) // ACROSS
    TILES: gl.constexpr = BLOCK_N // (ROWS * DOWN)
    SOON: gl.constexpr = 1 if QUANT or GROUPS > 1 else 4
    row, block, words = _places(ACROSS, DOWN, 4)
    first = gl.program_id(0) * BLOCK_N
    w_at = weight_ptr + first.to(gl.int64) * weight_stride
    w_at = w_at + (_last(row // 8 * ROWS + row % 8) * weight_stride + words)
    sw_at = weight_scales_ptr + first // 128 * weight_scales_stride + block
    below, tile = 8 * weight_stride, ROWS * DOWN * weight_stride
    ws = ()
    for s in gl.static_range(AHEAD):
        for i in gl.static_range(TILES):
            ws += (_rows(w_at + i * tile, sw_at, block, below, s, BLOCKS),)  # type: ignore[assignment]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    token, x_block, x_words = _places(ACROSS, DOWN, 8 if QUANT else 4)
    token = token % 8
    xs, accs = (), ()
    for s in gl.static_range(STEPS):
        if s < SOON:
            xs += _ask_tokens(
                x_ptr, x_scales_ptr, token, x_block, x_words, n_tokens, x_stride, x_scales_stride,
                s, BLOCKS, QUANT, GROUPS,
            )  # fmt: skip
    for _ in gl.static_range(GROUPS * TILES):
        accs += (gl.zeros([8 * DOWN, ACROSS, 4, 4], gl.float32, layout=_lanes(ACROSS, DOWN, 4)),)  # type: ignore[assignment]
    for s in gl.static_range(STEPS):
        sums = ()
        for g in gl.static_range(GROUPS):
            x = xs[s * GROUPS + g]  # type: ignore[var-annotated]
            if QUANT:
                x = _quantised(x)
            for i in gl.static_range(TILES):
                sums += (_add(accs[g * TILES + i], ws[s * TILES + i], x),)  # type: ignore[assignment]
        accs = sums
        if s + AHEAD < STEPS:
            for i in gl.static_range(TILES):
                ws += (_rows(w_at + i * tile, sw_at, block, below, s + AHEAD, BLOCKS),)  # type: ignore[assignment]
        if s + SOON < STEPS:
            xs += _ask_tokens(
                x_ptr, x_scales_ptr, token, x_block, x_words, n_tokens, x_stride, x_scales_stride,
                s + SOON, BLOCKS, QUANT, GROUPS,
            )  # fmt: skip
    for i in gl.static_range(GROUPS * TILES):
        past, at = i // TILES * TOKENS, first + i % TILES * ROWS * DOWN
        _store(out_ptr, out_stride, accs[i], at, past, n_tokens, ACROSS, DOWN)
