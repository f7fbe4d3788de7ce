"""NVIDIA sibling of the fp4 matrix-vector kernels: each lane's own group of 32 codes through ``mma.sync`` (Gluon).

A warp takes 16 rows and four groups of 32 codes at a step: lane ``4 r + t`` reads 16 bytes of rows ``r`` and ``r + 8``,
all of group ``t``, and decodes them into bf16 pairs (k, k + 4) of ``code * 2^-126``. These lie where the tensor core
wants its left operand, with the four lanes of a row holding four different groups. The right operand keeps them
apart: its column ``2 t`` has the activations of group ``t`` at the places of lane ``t`` and zeros at those of the
others, so the sum over all lanes is the sum of one group, and it comes back to lane ``t`` of that row, which scales it.
Nothing goes through shared memory but one sum over the warps at the end, and multiplying costs no ALU instructions.

Activations are lifted by ``2^100``, so that sums are normal; the scales take back what is left. Larger ones than
``2^27`` overflow.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from dsv4_kernels.jit import clamped_swiglu

LIFT = gl.constexpr(26)  # 126 - 100
ROWS = gl.constexpr(16)

# Four words of bf16 pairs (x0 x1) (x2 x3) (x4 x5) (x6 x7) as pairs (x0 x4) (x1 x5) (x2 x6) (x3 x7), times 2^100.
_PAIRS = gl.constexpr("""
{
    .reg .b32 c;
    mov.b32 c, 0x71807180;
    prmt.b32 $0, $4, $6, 0x5410;   mul.rn.bf16x2 $0, $0, c;
    prmt.b32 $1, $4, $6, 0x7632;   mul.rn.bf16x2 $1, $1, c;
    prmt.b32 $2, $5, $7, 0x5410;   mul.rn.bf16x2 $2, $2, c;
    prmt.b32 $3, $5, $7, 0x7632;   mul.rn.bf16x2 $3, $3, c;
}
""")


def _decode(word: str, to: str) -> str:
    """PTX: the eight codes of ``word`` as bf16 pairs ``to0`` to ``to3``.

    A product has two copies of a pair's codes, one with the sign where bf16 has it, one with the rest.
    """
    lines = []
    for pair in range(4):
        if pair == 2:
            lines.append(f"shr.u32 s, {word}, 8;")
        codes, factor = (("0x000F000F", "0x1040"), ("0x00F000F0", "0x0104"))[pair % 2]
        lines.append(f"and.b32 m, {word if pair < 2 else 's'}, {codes}; mul.lo.u32 m, m, {factor};")
        lines.append(f"and.b32 {to}{pair}, m, 0x81C081C0;")
    return "\n".join(lines)


def _products() -> str:
    """PTX of one step of a warp: operands are the sums (4 of a lane, every other one used), words of row ``r`` (4) and

    ``r + 8`` (4), the right operand of each word (4 of 4), scales of both rows (4 of each, alike), sums before (4).
    """
    head = [".reg .b32 s, m, p<4>, q<4>;", ".reg .f32 c<4>, e<4>;"]
    for sums in "ce":
        head += [f"mov.f32 {sums}{i}, 0f00000000;" for i in range(4)]
    body = []
    for word in range(4):
        sums = ", ".join(f"{'ce'[word % 2]}{i}" for i in range(4))
        body += [_decode(f"${4 + word}", "p"), _decode(f"${8 + word}", "q")]
        for half in (0, 2):
            left = f"p{half}, q{half}, p{half + 1}, q{half + 1}"
            right = f"${12 + 4 * word + half}, ${12 + 4 * word + half + 1}"
            body.append(
                f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{{sums}}}, {{{left}}}, {{{right}}}, {{{sums}}};"
            )
    tail = [
        "add.f32 c0, c0, e0;", "add.f32 c2, c2, e2;",
        "fma.rn.f32 $0, c0, $28, $36;", "mov.f32 $1, 0f00000000;",
        "fma.rn.f32 $2, c2, $32, $38;", "mov.f32 $3, 0f00000000;",
    ]  # fmt: skip
    return "{\n" + "\n".join(head + body + tail) + "\n}"


_PRODUCTS = gl.constexpr(_products())
_PRODUCTS_OPERANDS = gl.constexpr(",".join(["=&f"] * 4 + ["r"] * 24 + ["f"] * 12))


@gluon.jit
def _right(x_ptr, at, mask):
    """The right operand of one word's codes: ``[., ., 4]`` from the word ``at`` of activations on."""
    words = gl.load(x_ptr + at, mask=mask, other=0)
    return gl.inline_asm_elementwise(_PAIRS, "=&r,=&r,=&r,=&r,r,r,r,r", [words], dtype=gl.int32, is_pure=True, pack=4)


@gluon.jit
def _step(acc, upper, lower, x0, x1, x2, x3, upper_scale, lower_scale):
    """``acc`` and one step's products: all ``[8 WR, G, 4]``."""
    return gl.inline_asm_elementwise(
        _PRODUCTS, _PRODUCTS_OPERANDS, [upper, lower, x0, x1, x2, x3, upper_scale, lower_scale, acc],
        dtype=gl.float32, is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def _scale(exponent, factor, like):
    """Scales of rows and groups, ``exponent [8 WR, G]`` as stored, times ``factor``, in the shape of ``like``."""
    scale = ((exponent.to(gl.int32) + LIFT) << 23).to(gl.float32, bitcast=True) * factor
    return gl.expand_dims(scale, 2).broadcast_to(like.shape)


@gluon.jit
def _fetch(w_ptr, scales_ptr, at, word, mask, below):
    """Words of the rows ``r`` and ``r + 8`` and their scales; ``at [8 WR, G]``: groups, ``below``: groups of 8 rows."""
    words, there = gl.expand_dims(at, 2) * 4 + word, gl.expand_dims(mask, 2)
    upper = gl.load(w_ptr + words, mask=there, other=0)
    lower = gl.load(w_ptr + words + below * 4, mask=there, other=0)
    return (
        upper, lower, gl.load(scales_ptr + at, mask=mask, other=0),
        gl.load(scales_ptr + at + below, mask=mask, other=0),
    )  # fmt: skip


@gluon.jit
def _add_two(gate, up, g, u, x_ptr, group, word, own, groups):
    """Both sums with the products of one step's words ``g`` and ``u``, as :func:`_fetch` gives them."""
    at, there = gl.expand_dims(group, 2) * 16 + word, own & gl.expand_dims(group < groups, 2)
    x0, x1 = _right(x_ptr, at, there), _right(x_ptr, at + 4, there)
    x2, x3 = _right(x_ptr, at + 8, there), _right(x_ptr, at + 12, there)
    gate = _step(gate, g[0], g[1], x0, x1, x2, x3, _scale(g[2], 1.0, gate), _scale(g[3], 1.0, gate))
    up = _step(up, u[0], u[1], x0, x1, x2, x3, _scale(u[2], 1.0, up), _scale(u[3], 1.0, up))
    return gate, up


@gluon.jit
def _gate_up_lanes_kernel(
    x_ptr, experts_ptr, w13_ptr, scales_ptr, h_ptr, inter, groups, slots, x_stride, experts_stride, limit,
    PDL: gl.constexpr, LIFTED: gl.constexpr, WARP_ROWS: gl.constexpr, BLOCK_G: gl.constexpr,
):  # fmt: skip
    """``h [pairs, inter]`` = swiglu of the two products; grid: tiles of ``16 WARP_ROWS`` rows, (token, slot) pairs.

    ``groups``: groups of four words in a row of ``w13``. ``x_stride`` in int32 words. ``BLOCK_G``: groups of a step.
    ``LIFTED``: ``h`` as ``_down_ring_kernel`` reads it.
    A round of the loop is two steps, each on words that were asked for a step before, in registers of their own.
    """
    WARP_GROUPS: gl.constexpr = gl.num_warps() // WARP_ROWS
    L: gl.constexpr = gl.BlockedLayout([1, 1, 4], [8, 4, 1], [WARP_ROWS, WARP_GROUPS, 1], [2, 1, 0])
    L2: gl.constexpr = gl.SliceLayout(2, L)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    pair = gl.program_id(1)
    token, slot = pair // slots, pair % slots
    expert = gl.load(experts_ptr + token * experts_stride + slot).to(gl.int64)
    i = gl.arange(0, 8 * WARP_ROWS, layout=gl.SliceLayout(1, L2))[:, None]
    lane_group = gl.arange(0, BLOCK_G, layout=gl.SliceLayout(0, L2))[None, :]
    row = gl.program_id(0) * (ROWS * WARP_ROWS) + i // 8 * ROWS + i % 8
    word = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
    own = gl.expand_dims((i % 8 == lane_group % 4 * 2), 2)
    inside = row < inter
    base = w13_ptr + expert * (2 * inter) * groups * 4
    scales = scales_ptr + expert * (2 * inter) * groups
    x_at = x_ptr + token.to(gl.int64) * x_stride
    half, below = inter * groups, 8 * groups
    gate = gl.zeros([8 * WARP_ROWS, BLOCK_G, 4], gl.float32, layout=L)
    up = gl.zeros([8 * WARP_ROWS, BLOCK_G, 4], gl.float32, layout=L)
    at, mask = row * groups + lane_group, inside & (lane_group < groups)
    g = _fetch(base, scales, at, word, mask, below)
    u = _fetch(base, scales, at + half, word, mask, below)
    for first in range(0, groups, 2 * BLOCK_G):
        group = lane_group + first
        mask = inside & (group + BLOCK_G < groups)
        next_g = _fetch(base, scales, at + BLOCK_G, word, mask, below)
        next_u = _fetch(base, scales, at + half + BLOCK_G, word, mask, below)
        gate, up = _add_two(gate, up, g, u, x_at, group, word, own, groups)
        at += 2 * BLOCK_G
        mask = inside & (group + 2 * BLOCK_G < groups)
        g = _fetch(base, scales, at, word, mask, below)
        u = _fetch(base, scales, at + half, word, mask, below)
        gate, up = _add_two(gate, up, next_g, next_u, x_at, group + BLOCK_G, word, own, groups)
    y = clamped_swiglu(gl.sum(gate, axis=1), gl.sum(up, axis=1), limit).to(h_ptr.dtype.element_ty)
    out_row, kept = _out_rows(WARP_ROWS, L)
    if LIFTED:
        y, out_row = _lifted(y, out_row)
    out_row += gl.program_id(0) * (ROWS * WARP_ROWS)
    gl.store(h_ptr + pair.to(gl.int64) * inter + out_row, y, mask=kept & (out_row < inter))


@gluon.jit
def _lifted(y, row):
    """Results times ``2^100``, and where they belong as pairs (k, k + 4), as ``_ring.py`` reads them."""
    at = row % 8
    return (y.to(gl.float32) * 1.2676506002282294e30).to(y.dtype), row + gl.where(at < 4, at, at - 7)


@gluon.jit
def _out_rows(WARP_ROWS: gl.constexpr, L: gl.constexpr):
    """Of a sum over groups: the row of each element within the tile, and whether it holds one."""
    S: gl.constexpr = gl.SliceLayout(1, L)
    i = gl.arange(0, 8 * WARP_ROWS, layout=gl.SliceLayout(1, S))[:, None]
    j = gl.arange(0, 4, layout=gl.SliceLayout(0, S))[None, :]
    return i // 8 * ROWS + i % 8 + j // 2 * 8, (j % 2 == 0) & (i >= 0)


@gluon.jit
def _down_place(experts_ptr, weights_ptr, flat, row, inside, d, GROUPS: gl.constexpr, ALL: gl.constexpr):
    """Where groups ``flat [1, G]`` of all slots lie for ``row [8 WR, 1]``, which are there, and their slot's weight."""
    there = flat < ALL
    slot = flat // GROUPS
    expert = gl.load(experts_ptr + slot, mask=there, other=0, cache_modifier=".cg").to(gl.int64)
    weight = gl.load(weights_ptr + slot, mask=there, other=0.0, cache_modifier=".cg")
    return (expert * d + row) * GROUPS + flat % GROUPS, inside & there, weight


@gluon.jit
def _add_one(acc, w, weight, h_ptr, flat, word, own, ALL: gl.constexpr):
    """The sum with the products of one step's words ``w``, as :func:`_fetch` gives them."""
    at, there = gl.expand_dims(flat, 2) * 16 + word, own & gl.expand_dims(flat < ALL, 2)
    x0, x1 = _right(h_ptr, at, there), _right(h_ptr, at + 4, there)
    x2, x3 = _right(h_ptr, at + 8, there), _right(h_ptr, at + 12, there)
    return _step(acc, w[0], w[1], x0, x1, x2, x3, _scale(w[2], weight, acc), _scale(w[3], weight, acc))


@gluon.jit
def _down_lanes_kernel(
    h_ptr, experts_ptr, weights_ptr, w2_ptr, scales_ptr, out_ptr, d, experts_stride, weights_stride, out_stride,
    GROUPS: gl.constexpr, SLOTS: gl.constexpr, PDL: gl.constexpr, WARP_ROWS: gl.constexpr, BLOCK_G: gl.constexpr,
):  # fmt: skip
    """``out [T, d]``: the slots' products, weighted and added; grid: tiles of ``16 WARP_ROWS`` rows, tokens.

    ``h``: bf16 as int32 words, rows of pairs without gaps. The groups of all slots are one row of ``SLOTS GROUPS``.
    With ``PDL`` the first weights are on their way while the kernel that writes ``h`` still runs: that one waited for
    the router, whose choice is there to read. Steps as in :func:`_gate_up_lanes_kernel`; a step's place is looked up
    one more step ahead.
    """
    WARP_GROUPS: gl.constexpr = gl.num_warps() // WARP_ROWS
    L: gl.constexpr = gl.BlockedLayout([1, 1, 4], [8, 4, 1], [WARP_ROWS, WARP_GROUPS, 1], [2, 1, 0])
    L2: gl.constexpr = gl.SliceLayout(2, L)
    ALL: gl.constexpr = GROUPS * SLOTS
    below: gl.constexpr = 8 * GROUPS
    token = gl.program_id(1)
    i = gl.arange(0, 8 * WARP_ROWS, layout=gl.SliceLayout(1, L2))[:, None]
    lane_group = gl.arange(0, BLOCK_G, layout=gl.SliceLayout(0, L2))[None, :]
    row = gl.program_id(0) * (ROWS * WARP_ROWS) + i // 8 * ROWS + i % 8
    word = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
    own = gl.expand_dims((i % 8 == lane_group % 4 * 2), 2)
    inside = row < d
    experts_at, weights_at = experts_ptr + token * experts_stride, weights_ptr + token * weights_stride
    h_at = h_ptr + token.to(gl.int64) * (ALL * 16)
    acc = gl.zeros([8 * WARP_ROWS, BLOCK_G, 4], gl.float32, layout=L)
    at, mask, weight = _down_place(experts_at, weights_at, lane_group, row, inside, d, GROUPS, ALL)
    w = _fetch(w2_ptr, scales_ptr, at, word, mask, below)
    at, mask, next_weight = _down_place(experts_at, weights_at, lane_group + BLOCK_G, row, inside, d, GROUPS, ALL)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for first in range(0, ALL, 2 * BLOCK_G):
        flat = lane_group + first
        next_w = _fetch(w2_ptr, scales_ptr, at, word, mask, below)
        at, mask, later_weight = _down_place(experts_at, weights_at, flat + 2 * BLOCK_G, row, inside, d, GROUPS, ALL)
        acc = _add_one(acc, w, weight, h_at, flat, word, own, ALL)
        w = _fetch(w2_ptr, scales_ptr, at, word, mask, below)
        weight = later_weight
        at, mask, later_weight = _down_place(experts_at, weights_at, flat + 3 * BLOCK_G, row, inside, d, GROUPS, ALL)
        acc = _add_one(acc, next_w, next_weight, h_at, flat + BLOCK_G, word, own, ALL)
        next_weight = later_weight
    out_row, kept = _out_rows(WARP_ROWS, L)
    out_row += gl.program_id(0) * (ROWS * WARP_ROWS)
    gl.store(out_ptr + token.to(gl.int64) * out_stride + out_row, gl.sum(acc, axis=1), mask=kept & (out_row < d))
