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

from dsv4_kernels.moe_route._choose import begin, choose, total
from dsv4_kernels.moe_route._kernel import _score

LANES = gl.constexpr(32)
NAN = gl.constexpr(0x7FFFFFFF)
ROWS = gl.constexpr(2)

# Sums (4 of a lane) of two experts' words (2 of each) and a token's (2), and the sums before.
_PRODUCT = gl.constexpr(
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
    " {$0, $1, $2, $3}, {$4, $6, $5, $7}, {$8, $9}, {$10, $11, $12, $13};"
)
_PRODUCT_OPERANDS = gl.constexpr("=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f")


@gluon.jit
def _word(score):
    """int32 of float32 ``score``, never 0; NaN as one of them."""
    bits = gl.where(score == score, score.to(gl.int32, bitcast=True), NAN)
    return ~bits


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
def _route_words_kernel(
    x_ptr, gate_ptr, bias_ptr, weights_ptr, experts_ptr, words_ptr,
    n_tokens, x_stride, gate_stride, weights_stride, experts_stride, scale,
    PDL: gl.constexpr, HAS_BIAS: gl.constexpr, SCORING: gl.constexpr, RENORMALISE: gl.constexpr,
    TOP_K: gl.constexpr, N_EXPERTS: gl.constexpr, E_PAD: gl.constexpr, STEPS: gl.constexpr,
    PAIRS: gl.constexpr, GROUP: gl.constexpr, VEC: gl.constexpr,
):  # fmt: skip
    """Scores of all tokens and ``2 PAIRS`` experts; the last programs choose. Grid: expert tiles, all full, more than
    there are tokens.

    ``words``: int32 ``[n_tokens, E_PAD]``, 0 before and after. ``GROUP``: tokens of a round, 1, 2, 4 or 8. ``VEC``:
    columns of a lane in a step.
    """
    WARPS: gl.constexpr = gl.num_warps()
    BLOCK_D: gl.constexpr = VEC * LANES * WARPS
    L: gl.constexpr = gl.BlockedLayout([VEC], [LANES], [WARPS], [0])
    line: gl.constexpr = gl.BlockedLayout([1], [LANES], [WARPS], [0])
    E: gl.constexpr = gl.BlockedLayout([E_PAD // (WARPS * LANES)], [LANES], [WARPS], [0])
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
    memory = begin()
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for turn in range(0, n_tokens, GROUP):
        sums = _of_group(
            x_ptr, turn, n_tokens, a0, a1, b0, b1, col, x_stride, STEPS, PAIRS, VEC, BLOCK_D, GROUP
        )  # fmt: skip
        logits = total(memory, sums, turn // GROUP % 2)
        of = gl.arange(0, ROWS * PAIRS * GROUP, layout=line)
        token = turn + of % GROUP
        own = first + of // GROUP // PAIRS + of // GROUP % PAIRS * 2
        word = _word(_score(logits, SCORING))
        gl.atomic_add(words_ptr + token * E_PAD + own, word, mask=token < n_tokens, sem="relaxed")
    token = gl.num_programs(0) - 1 - gl.program_id(0)
    if token < n_tokens:
        place = token.to(gl.int64)
        choose(
            memory, words_ptr + token * E_PAD, bias, weights_ptr + place * weights_stride,
            experts_ptr + place * experts_stride, scale, RENORMALISE, TOP_K, N_EXPERTS, E_PAD,
        )  # fmt: skip
