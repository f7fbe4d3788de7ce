"""The choice of a token's experts by a program: each warp finds the best of its share, then those are ranked.

A share is a run of experts. Its best are found one by one, each by a reduction of one instruction, and listed in shared
memory: the rank of a score above the complement of the expert, so that ties go to the lower expert. Where a share has
the same score twice among its best, all is done again the slow way.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.jit import constexpr_function

LANES = gl.constexpr(32)
GONE = gl.constexpr(-0x80000000)
SCORES = gl.constexpr(512)
FLAGS = gl.constexpr(768)

SUMS = gl.constexpr(800)

# 64 numbers of 64 bits, as many scores, a flag of each warp, and in turn two times 32 sums of each of 8 warps.
_MEMORY = gl.constexpr("""
    .shared .align 16 .b8 route_numbers[2848];
    mov.u32 $0, route_numbers;
""")
_EMPTY = gl.constexpr("st.shared.b64 [$1], 0x8000000000000000; mov.u32 $0, 0;")
_LIST = gl.constexpr("""
{
    .reg .pred p;
    .reg .b32 at, other;
    setp.lt.s32 p, $1, $2;
    mad.lo.s32 at, $1, $3, $4;
    mad.lo.s32 other, at, 4, $8;
    mad.lo.s32 at, at, 8, $8;
    @p st.shared.v2.b32 [at], {$6, $5};
    @p st.shared.b32 [other + 512], $7;
    mov.u32 $0, 0;
}
""")
_TELL = gl.constexpr("st.shared.b32 [$1], $2; mov.u32 $0, 0;")
_TELL_SUM = gl.constexpr("st.shared.f32 [$1], $2; mov.u32 $0, 0;")
_ANY_TOLD = gl.constexpr("""
{
    .reg .b32 lane, at, flag;
    mov.u32 lane, %laneid;
    and.b32 lane, lane, $2;
    mad.lo.u32 at, lane, 4, $1;
    ld.shared.u32 flag, [at];
    redux.sync.or.b32 $0, flag, 0xffffffff;
}
""")
_NUMBER = gl.constexpr("ld.shared.b64 $0, [$1];")
_SCORE = gl.constexpr("ld.shared.b32 $0, [$1];")


@constexpr_function
def _await(WORDS):
    """PTX: so many words from an address on once none is 0; zeros at address 0. After seconds it ends with an error."""
    names = [f"w{i}" for i in range(WORDS)]
    of_four = {1: "b32 w0", 2: "v2.b32 {w0, w1}", 4: "v4.b32 {w0, w1, w2, w3}"}[WORDS]
    there = "\n".join(f"setp.eq.or.s32 p, {name}, 0, p;" for name in names[1:])
    out = "\n".join(f"mov.b32 ${i}, {name};" for i, name in enumerate(names))
    zero = "\n".join(f"mov.b32 {name}, 0;" for name in names)
    return f"""
{{
    .reg .pred p;
    .reg .b32 {", ".join(names)}, patience;
    mov.b32 patience, 0;
    {zero}
    setp.eq.s64 p, ${WORDS}, 0;
    @p bra DONE;
AGAIN:
    add.u32 patience, patience, 1;
    setp.gt.u32 p, patience, 0x1000000;
    @p trap;
    ld.relaxed.gpu.global.{of_four}, [${WORDS}];
    setp.eq.s32 p, w0, 0;
    {there}
    @p bra AGAIN;
DONE:
    {out}
}}
"""


@constexpr_function
def _operands(WORDS):
    return ",".join(["=&r"] * WORDS + ["l"] * WORDS)


@constexpr_function
def _rank(NUMBERS):
    """PTX: how many of so many numbers, an even one, at an address are greater than one."""
    text = "{ .reg .pred p; .reg .b64 a, b; mov.b32 $0, 0;"
    for i in range(NUMBERS // 2):
        text += f"\nld.shared.v2.b64 {{a, b}}, [$2 + {16 * i}];"
        for name in "ab":
            text += f"\nsetp.gt.s64 p, {name}, $1; @p add.s32 $0, $0, 1;"
    return text + "}"


@constexpr_function
def _sum_of(WARPS, COLUMNS):
    """PTX: the sum of a column's number of each warp, in order."""
    text = "{ .reg .f32 f; ld.shared.f32 $0, [$1];"
    for warp in range(1, WARPS):
        text += f"\nld.shared.f32 f, [$1 + {warp * COLUMNS * 4}]; add.f32 $0, $0, f;"
    return text + "}"


@gluon.jit
def _asm(TEXT: gl.constexpr, OPERANDS: gl.constexpr, values):
    """int32 that an instruction (or block) which touches shared memory makes of each element."""
    return gl.inline_asm_elementwise(TEXT, OPERANDS, values, dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def begin():
    """The address of the memory that :func:`choose` is given: an empty list."""
    memory = gl.inline_asm_elementwise(_MEMORY, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    each = gl.arange(0, 64, layout=gl.BlockedLayout([1], [LANES], [gl.num_warps()], [0]))
    _asm(_EMPTY, "=r,r", [memory + each * 8])
    return memory


@gluon.jit
def total(memory, sums, turn):
    """``[C]``, one a thread: the sums of the columns of ``sums [N, C]``, of which each warp has rows of its own.

    ``turn``: 0 or 1, another one than in the call before.
    """
    WARPS: gl.constexpr = gl.num_warps()
    C: gl.constexpr = sums.shape[1]
    mine = gl.sum(gl.reshape(sums, [WARPS, sums.shape[0] // WARPS, C]), 1)
    warp = gl.arange(0, WARPS, layout=gl.SliceLayout(1, mine.type.layout))[:, None]
    column = gl.arange(0, C, layout=gl.SliceLayout(0, mine.type.layout))[None, :]
    own = memory + SUMS + turn * 1024
    _asm(_TELL_SUM, "=r,r,f", [own + (warp * C + column) * 4, mine])
    gl.thread_barrier()
    each = own + gl.arange(0, C, layout=gl.BlockedLayout([1], [LANES], [WARPS], [0])) * 4
    return gl.inline_asm_elementwise(
        _sum_of(WARPS, C), "=&f,r", [each], dtype=gl.float32, is_pure=False, pack=1
    )  # fmt: skip


@gluon.jit
def _rank_of(value):
    """int32 in the order of float32 ``value``, greater than ``GONE + 1``; -0 equals 0, NaN is the least."""
    bits = (gl.where(value == value, value, -3.0e38) + 0.0).to(gl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@gluon.jit
def _received(words_ptr, expert, N_EXPERTS: gl.constexpr, WORDS: gl.constexpr):
    """The word of each ``expert``, 0 past them; a thread has ``WORDS`` neighbours."""
    at = gl.where(expert < N_EXPERTS, words_ptr.to(gl.int64) + expert.to(gl.int64) * 4, 0)
    return gl.inline_asm_elementwise(_await(WORDS), _operands(WORDS), [at], dtype=gl.int32, is_pure=False, pack=WORDS)


@gluon.jit
def _one_by_one(key, expert, TOP_K: gl.constexpr):
    """The place of each ``key`` if it is one of the ``TOP_K`` greatest, the lower expert first; else ``TOP_K``."""
    place = key * 0 + TOP_K
    for at in range(TOP_K):
        best = gl.max(key, axis=0)
        mine = expert == gl.min(gl.where(key == best, expert, 2147483647), axis=0)
        place = gl.where(mine, at, place)
        key = gl.where(mine, GONE, key)
    return place


@gluon.jit
def _store(weights_ptr, experts_ptr, place, expert, score, scale, RENORMALISE: gl.constexpr, TOP_K: gl.constexpr):
    """Experts with a ``place`` less than ``TOP_K``, and their weights."""
    chosen = place < TOP_K
    if RENORMALISE:
        score = score * (scale / (gl.sum(gl.where(chosen, score, 0.0), axis=0) + 1e-20))
    else:
        score = score * scale
    gl.store(weights_ptr + place, score, mask=chosen)
    gl.store(experts_ptr + place, expert.to(gl.int64), mask=chosen)


@gluon.jit
def _listed(memory, key, expert, bits, TOP_K: gl.constexpr, N_EXPERTS: gl.constexpr):
    """List the best of every warp's share; whether no share has the same key twice among them."""
    WARPS: gl.constexpr = gl.num_warps()
    SHARE: gl.constexpr = key.shape[0] // WARPS
    left = gl.reshape(key, [WARPS, SHARE])
    place = left * 0 + TOP_K
    for at in gl.static_range(TOP_K):
        mine = left == gl.maximum(gl.max(left, 1), GONE + 1)[:, None]
        place = gl.where(mine, at, place)
        left = gl.where(mine, GONE, left)
    warp = gl.arange(0, WARPS, layout=gl.SliceLayout(1, left.type.layout))
    there = gl.minimum(gl.maximum(N_EXPERTS - warp * SHARE, 0), TOP_K)
    twice = (gl.sum((place < TOP_K).to(gl.int32), 1) != there).to(gl.int32)
    _asm(_TELL, "=r,r,r", [memory + FLAGS + warp * 4, twice])
    share = gl.convert_layout(expert, key.type.layout) // SHARE
    operands = [gl.reshape(place, [key.shape[0]]), TOP_K, WARPS, share, key, ~expert, bits, memory]
    _asm(_LIST, "=r,r,r,r,r,r,r,r,r", operands)
    gl.thread_barrier()
    return _asm(_ANY_TOLD, "=r,r,r", [memory + FLAGS, WARPS - 1]) == 0


@gluon.jit
def _store_listed(memory, weights_ptr, experts_ptr, scale, RENORMALISE: gl.constexpr, TOP_K: gl.constexpr):
    """The best of the list. Every warp finds them, so that nothing is exchanged."""
    WARPS: gl.constexpr = gl.num_warps()
    PADDED: gl.constexpr = 32 if TOP_K * WARPS <= 32 else 64
    own = gl.arange(0, PADDED, layout=gl.BlockedLayout([PADDED // LANES], [LANES], [WARPS], [0]))
    at = memory + own * 8
    number = gl.inline_asm_elementwise(_NUMBER, "=l,r", [at], dtype=gl.int64, is_pure=False, pack=1)
    place = _asm(_rank(TOP_K * WARPS), "=&r,l,r", [number, memory])
    score = _asm(_SCORE, "=r,r", [memory + SCORES + own * 4]).to(gl.float32, bitcast=True)
    _store(weights_ptr, experts_ptr, place, ~number.to(gl.int32), score, scale, RENORMALISE, TOP_K)


@gluon.jit
def choose(
    memory, words_ptr, bias, weights_ptr, experts_ptr, scale,
    RENORMALISE: gl.constexpr, TOP_K: gl.constexpr, N_EXPERTS: gl.constexpr, E_PAD: gl.constexpr,
):  # fmt: skip
    """The choice of one token, whose words are 0 behind it; once a launch. ``bias [E_PAD]``: neighbours in a thread."""
    WARPS: gl.constexpr = gl.num_warps()
    E: gl.constexpr = bias.type.layout
    expert = gl.arange(0, E_PAD, layout=E)
    bits = ~_received(words_ptr, expert, N_EXPERTS, E_PAD // (WARPS * LANES))
    score = bits.to(gl.float32, bitcast=True)
    key = gl.where(expert < N_EXPERTS, _rank_of(score + bias), GONE)
    distinct = _listed(memory, key, expert, bits, TOP_K, N_EXPERTS)
    # All have read the words.
    gl.store(words_ptr + expert, expert * 0, mask=expert < N_EXPERTS)
    if distinct:
        _store_listed(memory, weights_ptr, experts_ptr, scale, RENORMALISE, TOP_K)
    else:
        place = _one_by_one(key, expert, TOP_K)
        _store(weights_ptr, experts_ptr, place, expert, score, scale, RENORMALISE, TOP_K)
