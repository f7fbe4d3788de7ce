"""NVIDIA sibling of the router of few tokens: a few experts a program, products by ``mma.sync``, scores as messages.

A program holds its experts' rows of the gate, which come before the predecessor has ended, and reads each token once.
A lane multiplies the columns that it loaded itself: in a product of 16 x 8 rows and columns, row ``r`` of the left
operand is an expert's columns of the lanes ``4 r`` to ``4 r + 3``, row ``r + 8`` another expert's, and column ``r`` of
the right one the token's; so only the diagonals mean something, and nothing is converted or exchanged.

A score is sent as one word that is never 0. The last programs, one for each token, wait until all words of their token
are there, put them back to 0 for the next launch, and choose. No fence and no counter: the words are the message. At
most one program per token waits, after it has sent its own, so the others always find room.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from dsv4_kernels.moe_route._kernel import _score

LANES = gl.constexpr(32)
GONE = gl.constexpr(-0x80000000)
NAN = gl.constexpr(0x7FFFFFFF)
ROWS = gl.constexpr(2)

# Sums (4 of a lane) of two experts' words (2 of each) and a token's (2), and the sums before.
_PRODUCT = gl.constexpr(
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
    " {$0, $1, $2, $3}, {$4, $6, $5, $7}, {$8, $9}, {$10, $11, $12, $13};"
)
_PRODUCT_OPERANDS = gl.constexpr("=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f")

# Four words at the first of two addresses once none is 0; zeros at address 0. After seconds it gives up with an error.
_AWAIT = gl.constexpr("""
{
    .reg .pred p;
    .reg .b32 a, b, c, d, patience;
    mov.b32 patience, 0;
    mov.b64 $0, 0;
    mov.b64 $1, 0;
    setp.eq.s64 p, $2, 0;
    @p bra DONE;
AGAIN:
    add.u32 patience, patience, 1;
    setp.gt.u32 p, patience, 0x1000000;
    @p trap;
    ld.relaxed.gpu.global.v4.b32 {a, b, c, d}, [$2];
    setp.eq.s32 p, a, 0;
    setp.eq.or.s32 p, b, 0, p;
    setp.eq.or.s32 p, c, 0, p;
    setp.eq.or.s32 p, d, 0, p;
    @p bra AGAIN;
    mov.b64 $0, {a, b};
    mov.b64 $1, {c, d};
DONE:
}
""")


@gluon.jit
def _word(score):
    """int32 of float32 ``score``, never 0; NaN as one of them."""
    bits = gl.where(score == score, score.to(gl.int32, bitcast=True), NAN)
    return ~bits


@gluon.jit
def _rank(value):
    """int32 in the order of float32 ``value``, greater than ``GONE``; -0 equals 0, NaN is the least."""
    bits = (gl.where(value == value, value, -3.0e38) + 0.0).to(gl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@gluon.jit
def _rows(gate_ptr, col, first, gate_stride, STEPS: gl.constexpr, BLOCK_D: gl.constexpr):
    """The row ``first`` of the gate: a tuple of its steps' columns."""
    at = gate_ptr + first.to(gl.int64) * gate_stride + col
    parts = ()
    for step in gl.static_range(STEPS):
        parts += (gl.load(at + step * BLOCK_D),)  # type: ignore[assignment]
    return parts


@gluon.jit
def _sums(gate0, gate1, x, col, STEPS: gl.constexpr, VEC: gl.constexpr, BLOCK_D: gl.constexpr):
    """``[BLOCK_D / 4, 2]``: what a lane has of the two experts' sums."""
    L: gl.constexpr = col.type.layout
    acc = gl.zeros([BLOCK_D], gl.float32, layout=L)
    for step in gl.static_range(STEPS):
        acc = gl.inline_asm_elementwise(
            _PRODUCT, _PRODUCT_OPERANDS, [gate0[step], gate1[step], x[step], acc],
            dtype=gl.float32, is_pure=True, pack=4,
        )  # fmt: skip
    lane = col // VEC % LANES
    mine = (lane % 4 == lane // 8) & (col % 2 == lane // 4 % 2)
    return gl.sum(gl.reshape(gl.where(mine, acc, 0.0), [BLOCK_D // 4, 2, 2]), 2)


@gluon.jit
def _side_by_side(left, right):
    """``[N, 2 C]``: columns of ``left`` and ``right [N, C]`` in turn."""
    N: gl.constexpr = left.shape[0]
    C: gl.constexpr = 2 * left.shape[1]
    return gl.reshape(gl.join(left, right), [N, C])


@gluon.jit
def _of_token(
    x_ptr, token, a0, a1, b0, b1, col, x_stride,
    STEPS: gl.constexpr, PAIRS: gl.constexpr, VEC: gl.constexpr, BLOCK_D: gl.constexpr,
):  # fmt: skip
    """``[BLOCK_D / 4, 2 PAIRS]``: shares of a token's sums, expert ``i % PAIRS * 2 + i // PAIRS`` in column i."""
    x = _rows(x_ptr, col, token, x_stride, STEPS, BLOCK_D)
    sums = _sums(a0, a1, x, col, STEPS, VEC, BLOCK_D)
    if PAIRS == 2:
        sums = _side_by_side(sums, _sums(b0, b1, x, col, STEPS, VEC, BLOCK_D))
    return sums


@gluon.jit
def _of_group(
    x_ptr, turn, n_tokens, a0, a1, b0, b1, col, x_stride,
    STEPS: gl.constexpr, PAIRS: gl.constexpr, VEC: gl.constexpr, BLOCK_D: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """``[BLOCK_D / 4, 2 PAIRS GROUP]``: :func:`_of_token` of ``GROUP`` tokens from ``turn`` on, which come fastest.

    Past the last token it stands for the others.
    """
    parts = ()
    for i in gl.static_range(GROUP):
        # Bits in reverse, as every round below puts neighbours' columns in turn.
        other = (i % 2 * 4 + i // 2 % 2 * 2 + i // 4) * GROUP // 8
        token = gl.minimum(turn + other, n_tokens - 1)
        sums = _of_token(x_ptr, token, a0, a1, b0, b1, col, x_stride, STEPS, PAIRS, VEC, BLOCK_D)
        parts += (sums,)  # type: ignore[assignment]
    for round_ in gl.static_range(3):
        if GROUP >> round_ > 1:
            fewer = ()
            for i in gl.static_range(GROUP >> round_ + 1):
                fewer += (_side_by_side(parts[2 * i], parts[2 * i + 1]),)  # type: ignore[assignment]
            parts = fewer
    return parts[0]  # type: ignore[misc]


@gluon.jit
def _received(words_ptr, N_EXPERTS: gl.constexpr, E_PAD: gl.constexpr):
    """All words ``[E_PAD]`` of a token, 0 past the experts."""
    P: gl.constexpr = gl.BlockedLayout([2], [LANES], [gl.num_warps()], [0])
    pair = gl.arange(0, E_PAD // 2, layout=P)
    at = words_ptr.to(gl.int64) + pair.to(gl.int64) * 8
    both = gl.inline_asm_elementwise(
        _AWAIT, "=&l,=&l,l,l", [gl.where(pair * 2 < N_EXPERTS, at, 0)], dtype=gl.int64, is_pure=False, pack=2
    )  # fmt: skip
    return gl.reshape(gl.join(both.to(gl.int32), (both >> 32).to(gl.int32)), [E_PAD])


@gluon.jit
def _one_by_one(key, expert, TOP_K: gl.constexpr):
    """As :func:`_places`, where keys are alike: of those the lowest expert first."""
    place = key * 0 + TOP_K
    for at in range(TOP_K):
        best = gl.max(key, axis=0)
        mine = expert == gl.min(gl.where(key == best, expert, 2147483647), axis=0)
        place = gl.where(mine, at, place)
        key = gl.where(mine, GONE, key)
    return place


@gluon.jit
def _places(key, expert, TOP_K: gl.constexpr):
    """The rank of each ``key`` if it is one of the ``TOP_K`` greatest, else ``TOP_K``."""
    place = key * 0 + TOP_K
    left = key
    for at in gl.static_range(TOP_K):
        mine = left == gl.max(left, axis=0)
        place = gl.where(mine, at, place)
        left = gl.where(mine, GONE, left)
    if gl.sum((place < TOP_K).to(gl.int32), axis=0) != TOP_K:
        place = _one_by_one(key, expert, TOP_K)
    return place


@gluon.jit
def _choose(
    words_ptr, bias, weights_ptr, experts_ptr, scale,
    RENORMALISE: gl.constexpr, TOP_K: gl.constexpr, N_EXPERTS: gl.constexpr, E_PAD: gl.constexpr,
):  # fmt: skip
    """The choice of one token. Every warp makes it, so that nothing is exchanged. Words are 0 behind it."""
    E: gl.constexpr = bias.type.layout
    bits = gl.convert_layout(~_received(words_ptr, N_EXPERTS, E_PAD), E)
    score = bits.to(gl.float32, bitcast=True)
    expert = gl.arange(0, E_PAD, layout=E)
    place = _places(gl.where(expert < N_EXPERTS, _rank(score + bias), GONE), expert, TOP_K)
    chosen = place < TOP_K
    if RENORMALISE:
        score = score * (scale / (gl.sum(gl.where(chosen, score, 0.0), axis=0) + 1e-20))
    else:
        score = score * scale
    gl.store(weights_ptr + place, score, mask=chosen)
    gl.store(experts_ptr + place, expert.to(gl.int64), mask=chosen)
    gl.thread_barrier()  # all have read
    line: gl.constexpr = gl.BlockedLayout([4], [LANES], [gl.num_warps()], [0])
    word = gl.arange(0, E_PAD, layout=line)
    gl.store(words_ptr + word, gl.zeros([E_PAD], gl.int32, layout=line), mask=word < N_EXPERTS)


@gluon.jit
def _route_words_kernel(
    x_ptr, gate_ptr, bias_ptr, weights_ptr, experts_ptr, words_ptr,
    n_tokens, x_stride, gate_stride, weights_stride, experts_stride, scale,
    PDL: gl.constexpr, HAS_BIAS: gl.constexpr, SCORING: gl.constexpr, RENORMALISE: gl.constexpr,
    TOP_K: gl.constexpr, N_EXPERTS: gl.constexpr, E_PAD: gl.constexpr, STEPS: gl.constexpr,
    PAIRS: gl.constexpr, GROUP: gl.constexpr, VEC: gl.constexpr,
):  # fmt: skip
    """Scores of all tokens and ``2 PAIRS`` experts; the last programs choose. Grid: expert tiles, all full.

    ``words``: int32 ``[n_tokens, E_PAD]``, 0 before and after. ``GROUP``: tokens of a round, 1, 2, 4 or 8. ``VEC``:
    columns of a lane in a step.
    """
    WARPS: gl.constexpr = gl.num_warps()
    BLOCK_D: gl.constexpr = VEC * LANES * WARPS
    L: gl.constexpr = gl.BlockedLayout([VEC], [LANES], [WARPS], [0])
    line: gl.constexpr = gl.BlockedLayout([1], [LANES], [WARPS], [0])
    E: gl.constexpr = gl.SliceLayout(0, gl.BlockedLayout([1, 1], [1, LANES], [WARPS, 1], [1, 0]))
    col = gl.arange(0, BLOCK_D, layout=L)
    first = gl.program_id(0) * (ROWS * PAIRS)
    a0 = _rows(gate_ptr, col, first, gate_stride, STEPS, BLOCK_D)
    a1 = _rows(gate_ptr, col, first + 1, gate_stride, STEPS, BLOCK_D)
    b0, b1 = a0, a1
    if PAIRS == 2:
        b0 = _rows(gate_ptr, col, first + 2, gate_stride, STEPS, BLOCK_D)
        b1 = _rows(gate_ptr, col, first + 3, gate_stride, STEPS, BLOCK_D)
    every = gl.arange(0, E_PAD, layout=E)
    if HAS_BIAS:
        bias = gl.load(bias_ptr + every, mask=every < N_EXPERTS, other=0.0)
    else:
        bias = gl.zeros([E_PAD], gl.float32, layout=E)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for turn in range(0, n_tokens, GROUP):
        sums = _of_group(
            x_ptr, turn, n_tokens, a0, a1, b0, b1, col, x_stride, STEPS, PAIRS, VEC, BLOCK_D, GROUP
        )  # fmt: skip
        logits = gl.convert_layout(gl.sum(sums, 0), line)
        of = gl.arange(0, ROWS * PAIRS * GROUP, layout=line)
        token = turn + of % GROUP
        own = first + of // GROUP // PAIRS + of // GROUP % PAIRS * 2
        word = _word(_score(logits, SCORING))
        gl.atomic_add(words_ptr + token * E_PAD + own, word, mask=token < n_tokens, sem="relaxed")
    tiles = gl.num_programs(0)
    for token in range(tiles - 1 - gl.program_id(0), n_tokens, tiles):
        place = token.to(gl.int64)  # type: ignore[attr-defined]
        _choose(
            words_ptr + token * E_PAD, bias, weights_ptr + place * weights_stride, experts_ptr + place * experts_stride,
            scale, RENORMALISE, TOP_K, N_EXPERTS, E_PAD,
        )  # fmt: skip
