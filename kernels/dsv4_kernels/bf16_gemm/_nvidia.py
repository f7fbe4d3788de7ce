"""NVIDIA sibling of the bf16 product of few tokens: what each lane loads goes to ``mma.sync`` as it lies (Gluon).

A warp takes 128 columns at a step, as two blocks of 64, each of two quarters: lane ``4 r + t`` reads the ``t``-th 16
bytes of a quarter of row ``r`` of the weight, and of token ``r``. The tensor core's operands count their columns alike,
so these pairs of bf16 are its operands as they lie. The left one has 16 rows: ``r`` and ``r + 8`` of the weight; or
(``TWICE``) row ``r`` in the first block and row ``r`` again in the second, with tokens 0 to 3 of the first block and of
the second as the right one's columns, so that half as many rows make a program.

``AHEAD`` steps of weights are on their way in registers, the first of them before the kernel that makes the activations
has ended (``PDL``). The warps of a program share the columns; their sums meet once, at its end. The order of a row's
sum follows from its length, from how many warps share it, and from whether there are more than 8 tokens.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

COLUMNS = gl.constexpr(128)
WORDS = gl.constexpr(64)  # of int32: a step's columns
QUARTER = gl.constexpr(16)

_MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"

# Sums (4 of a lane), words of the left operand's upper and lower rows and of the right one's column, the sums before.
_PRODUCTS = gl.constexpr(
    "{ .reg .f32 c<4>;\n"
    f"{_MMA} {{c0, c1, c2, c3}}, {{$4, $8, $5, $9}}, {{$12, $13}}, {{$16, $17, $18, $19}};\n"
    f"{_MMA} {{$0, $1, $2, $3}}, {{$6, $10, $7, $11}}, {{$14, $15}}, {{c0, c1, c2, c3}};\n"
    "}"
)
_PRODUCTS_OPERANDS = gl.constexpr(",".join(["=&f"] * 4 + ["r"] * 12 + ["f"] * 4))


@gluon.constexpr_function
def _lanes(across, down):
    """How ``[8 down, across, 4, 4]`` lies in lanes: rows or tokens, warps that share them, lanes of a row, words."""
    return gl.BlockedLayout([1, 1, 1, 4], [8, 1, 4, 1], [down, across, 1, 1], [3, 2, 1, 0])


@gluon.jit
def _behind(value):
    """``[., .]`` with two more dimensions behind."""
    return gl.expand_dims(gl.expand_dims(value, 2), 3)


@gluon.jit
def _places(ACROSS: gl.constexpr, DOWN: gl.constexpr):
    """Rows ``[8 DOWN, 1]``, warps that share them ``[1, ACROSS]``, words of a quarter ``[1, ACROSS, 4, 4]``."""
    L: gl.constexpr = _lanes(ACROSS, DOWN)
    L2: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, L))
    row = gl.arange(0, 8 * DOWN, layout=gl.SliceLayout(1, L2))[:, None]
    warp = gl.arange(0, ACROSS, layout=gl.SliceLayout(0, L2))[None, :]
    lane = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, L))))[None, None, :, None]
    word = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, L))))[None, None, None, :]
    return row, warp, _behind(warp) * WORDS + lane * 4 + word


@gluon.jit
def _quarters(at, warp, STEP: gl.constexpr, BLOCKS: gl.constexpr, N: gl.constexpr, POLICY: gl.constexpr):
    """Words of the first ``N`` quarters of a step from ``at`` on; zeros past the last of ``BLOCKS``."""
    ACROSS: gl.constexpr = warp.shape[1]
    at += STEP * ACROSS * WORDS
    words = ()
    for q in gl.static_range(N):
        if (STEP + 1) * ACROSS <= BLOCKS:
            w = gl.load(at + q * QUARTER, eviction_policy=POLICY)
        else:
            mask = _behind(warp + STEP * ACROSS < BLOCKS)
            w = gl.load(at + q * QUARTER, mask=mask, other=0, eviction_policy=POLICY)
        words += (w,)  # type: ignore[assignment]
    return words


@gluon.jit
def _rows(ats, warp, STEP: gl.constexpr, BLOCKS: gl.constexpr, TWICE: gl.constexpr):
    """A step's words of each row tile's left operand: of its upper rows, then of its lower ones.

    They are read once, and are to leave the first cache to the activations, which the next program there reads again.
    """
    N: gl.constexpr = 2 if TWICE else 4
    tiles = ()
    for i in gl.static_range(len(ats)):
        upper = _quarters(ats[i][0], warp, STEP, BLOCKS, N, "evict_first")
        tiles += (upper + _quarters(ats[i][1], warp, STEP, BLOCKS, N, "evict_first"),)  # type: ignore[assignment]
    return tiles


@gluon.jit
def _tokens(ats, warp, STEP: gl.constexpr, BLOCKS: gl.constexpr, TWICE: gl.constexpr):
    """A step's words of each token tile's right operand."""
    tiles = ()
    for t in gl.static_range(len(ats)):
        tiles += (_quarters(ats[t], warp, STEP, BLOCKS, 2 if TWICE else 4, ""),)  # type: ignore[assignment]
    return tiles


@gluon.constexpr_function
def _zero_of(count):
    """PTX: 0 to the four words ``$0`` to ``$3``, by ``count`` operands of four words and a last one, which is 0."""
    body = [f"or.b32 t, t, ${4 + 4 * at};" for at in range(1, count)]
    end = [f"and.b32 $0, t, ${4 + 4 * count};", *(f"mov.b32 ${at}, $0;" for at in range(1, 4))]
    return "\n".join(["{", ".reg .b32 t;", "mov.b32 t, $4;", *body, *end, "}"])


@gluon.constexpr_function
def _zero_operands(count):
    return ",".join(["=&f"] * 4 + ["r"] * (4 * count + 4))


@gluon.jit
def _zero(xs, zero):
    """0 as sums, but not before all of ``xs`` is there: so the compiler asks for all of it at once."""
    words = ()
    for s in gl.static_range(len(xs)):
        for t in gl.static_range(len(xs[s])):
            words += xs[s][t]
    N: gl.constexpr = len(words)
    words += (gl.zeros_like(words[0]) + zero,)
    return gl.inline_asm_elementwise(_zero_of(N), _zero_operands(N), words, dtype=gl.float32, is_pure=True, pack=4)


@gluon.jit
def _add(accs, w, x):
    """A tile's sums, with a step's products added: one for each quarter, or one for both blocks' together."""
    N: gl.constexpr = len(x)
    CHAINS: gl.constexpr = len(accs)
    sums = ()
    for c in gl.static_range(CHAINS):
        acc = accs[c]
        for q in gl.static_range(c, N, CHAINS):
            acc = gl.inline_asm_elementwise(
                _PRODUCTS, _PRODUCTS_OPERANDS, [w[q], w[N + q], x[q], acc], dtype=gl.float32, is_pure=True, pack=4
            )
        sums += (acc,)
    return sums


@gluon.jit
def _meet(accs, ACROSS: gl.constexpr, DOWN: gl.constexpr, TWICE: gl.constexpr):
    """A tile's sums over quarters and blocks, in shared memory: ``[8 DOWN, ACROSS, lanes, sums]``."""
    acc = accs[0] + accs[1]
    if TWICE:
        L: gl.constexpr = _lanes(ACROSS, DOWN)
        lane = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, L))))[None, None, :, None]
        at = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, L))))[None, None, None, :]
        acc = gl.reshape(gl.where(lane // 2 == at // 2, acc, 0.0), [8 * DOWN, ACROSS, 2, 2, 2, 2])
        acc = gl.sum(gl.sum(acc, axis=4), axis=2)
    elif len(accs) == 4:
        acc = acc + (accs[2] + accs[3])
    banks: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0, 2, 3, 1])
    return gl.allocate_shared_memory(gl.float32, acc.shape, banks, acc)


@gluon.jit
def _store(
    out_ptr, stride, memory, first, past, n, n_tokens, ACROSS: gl.constexpr, DOWN: gl.constexpr, TWICE: gl.constexpr
):  # fmt: skip
    """Sums of the warps' sums, as :func:`_meet` gives them, to rows from ``first`` and tokens from ``past`` on."""
    lanes: gl.constexpr = [8, 1, 2, 2] if TWICE else [8, 1, 4, 1]
    flat: gl.constexpr = gl.BlockedLayout([1, ACROSS, 1, 1], lanes, [DOWN, 1, 1, ACROSS], [3, 2, 1, 0])
    y = gl.sum(memory.load(flat), axis=1)
    L: gl.constexpr = y.type.layout
    i = gl.arange(0, y.shape[0], layout=gl.SliceLayout(1, gl.SliceLayout(2, L)))[:, None, None]
    t = gl.arange(0, y.shape[1], layout=gl.SliceLayout(0, gl.SliceLayout(2, L)))[None, :, None]
    j = gl.arange(0, y.shape[2], layout=gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
    row, token = first + i, past + 2 * t + j % 2
    if not TWICE:
        row = first + i // 8 * 16 + i % 8 + j // 2 * 8
    at = out_ptr + token.to(gl.int64) * stride + row
    gl.store(at, y.to(out_ptr.dtype.element_ty), mask=(token < n_tokens) & (row < n))


@gluon.jit
def _bf16_lanes_kernel(
    x_ptr, w_ptr, out_ptr, n_tokens, n, x_stride_t, x_stride_g, w_stride_g, w_stride, out_stride_t, out_stride_g,
    PDL: gl.constexpr, BLOCKS: gl.constexpr, TILES: gl.constexpr, AHEAD: gl.constexpr, SOON: gl.constexpr,
    TWICE: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """``out [T, G, n]``; grid: row tiles, groups. ``TILES`` of 8 tokens, with ``TWICE`` of 4.

    ``x`` and ``w`` are int32 words and their strides in words, each row at a multiple of 16 bytes. ``BLOCKS`` of 128
    columns are a row; ``BLOCK_K`` columns a step of the warps that share rows. A warp has ``SOON`` steps of activations
    on their way.
    """
    ACROSS: gl.constexpr = BLOCK_K // COLUMNS
    DOWN: gl.constexpr = gl.num_warps() // ACROSS
    STEPS: gl.constexpr = (BLOCKS + ACROSS - 1) // ACROSS
    TOKENS: gl.constexpr = 4 if TWICE else 8
    ROWS: gl.constexpr = (8 if TWICE else 16) * DOWN
    group = gl.program_id(1).to(gl.int64)
    first = gl.program_id(0) * BLOCK_N
    i, warp, words = _places(ACROSS, DOWN)
    w_at = w_ptr + group * w_stride_g
    w_ats, ws = (), ()
    for r in gl.static_range(BLOCK_N // ROWS):
        row = first + r * ROWS + (i if TWICE else i // 8 * 16 + i % 8)
        upper = w_at + (_behind(gl.minimum(row, n - 1).to(gl.int64) * w_stride) + words)
        if TWICE:
            lower = upper + 2 * QUARTER
        else:
            lower = w_at + (_behind(gl.minimum(row + 8, n - 1).to(gl.int64) * w_stride) + words)
        w_ats += ((upper, lower),)  # type: ignore[assignment]
    for s in gl.static_range(STEPS):
        if s < AHEAD:
            ws += (_rows(w_ats, warp, s, BLOCKS, TWICE),)  # type: ignore[assignment]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    x_at = x_ptr + group * x_stride_g
    x_ats, accs, xs = (), (), ()
    for t in gl.static_range(TILES):
        token = gl.minimum(t * TOKENS + i % TOKENS, n_tokens - 1).to(gl.int64) * x_stride_t
        if TWICE:
            token += i % 8 // 4 * (2 * QUARTER)
        x_ats += (x_at + (_behind(token) + words),)  # type: ignore[assignment]
    for s in gl.static_range(STEPS):
        if s < SOON:
            xs += (_tokens(x_ats, warp, s, BLOCKS, TWICE),)  # type: ignore[assignment]
    zero = _zero(xs, n_tokens >> 30)
    for _ in gl.static_range(BLOCK_N // ROWS * TILES):
        accs += ((zero, zero) if TWICE or TILES > 1 else (zero, zero, zero, zero),)  # type: ignore[assignment]
    for s in gl.static_range(STEPS):
        sums = ()
        for r in gl.static_range(BLOCK_N // ROWS):
            for t in gl.static_range(TILES):
                sums += (_add(accs[r * TILES + t], ws[s][r], xs[s][t]),)  # type: ignore[assignment]
        accs = sums
        if s + AHEAD < STEPS:
            ws += (_rows(w_ats, warp, s + AHEAD, BLOCKS, TWICE),)  # type: ignore[assignment]
        if s + SOON < STEPS:
            xs += (_tokens(x_ats, warp, s + SOON, BLOCKS, TWICE),)  # type: ignore[assignment]
    met = ()
    for r in gl.static_range(BLOCK_N // ROWS * TILES):
        met += (_meet(accs[r], ACROSS, DOWN, TWICE),)  # type: ignore[assignment]
    out_at = out_ptr + group * out_stride_g
    for r in gl.static_range(BLOCK_N // ROWS * TILES):
        at, past = first + r // TILES * ROWS, r % TILES * TOKENS
        _store(out_at, out_stride_t, met[r], at, past, n, n_tokens, ACROSS, DOWN, TWICE)
