"""The PTX of ``_shared.py``, whose functions say what it does; ``$0`` and those after it are what comes out."""

from __future__ import annotations

from triton.experimental.gluon import language as gl

# Room for 2048 counters and one of each lane, four numbers, the list's length (16 bytes), 32 numbers of 64 bits, and 5
# slots of a number of each warp; in a cluster three barriers and the blocks' counters, four of a thread of 1024. With
# a block's scores, 32 KiB alone or 16 KiB in a cluster, it stays below the 48 KiB that every launch may have.
_MEMORY = """
    .shared .align 16 .b8 topk_counters[SIZE];
    mov.u32 $0, topk_counters;
"""
MEMORY_ALONE = gl.constexpr(_MEMORY.replace("SIZE", "9248"))
MEMORY_OF_CLUSTER = gl.constexpr(_MEMORY.replace("SIZE", "25664"))
NUMBER = gl.constexpr("max.f32 $0, $1, 0fFF800000;")
CLEAR = gl.constexpr("st.shared.u32 [$1], 0; mov.u32 $0, 0;")
READ_FOUR = gl.constexpr("ld.shared.v4.u32 {$0, $1, $2, $3}, [$4];")
HIGHEST_BIT = gl.constexpr("bfind.u32 $0, $1;")
COUNT_FIRST = gl.constexpr("""
{
    .reg .b32 at;
    min.u32 at, $1, $2;
    red.shared.add.u32 [at], 1;
    mov.u32 $0, 0;
}
""")
# A negative address means: nothing.
NOTE = gl.constexpr("""
{
    .reg .pred p;
    setp.ge.s32 p, $1, 0;
    @p st.shared.v4.u32 [$1], {$2, $3, $4, $4};
    mov.u32 $0, 0;
}
""")
TELL = gl.constexpr("st.shared.u32 [$1], $2; mov.u32 $0, 0;")
# A lane each for the blocks of the cluster. Barriers are used in turn; each expects the bytes of one turn.
TELL_ALL = gl.constexpr("""
{
    .reg .pred p;
    .reg .b32 lane, at, barrier;
    mov.u32 lane, %laneid;
    setp.lt.u32 p, lane, $5;
    rem.u32 barrier, $4, 3;
    mad.lo.u32 barrier, barrier, 8, $3;
    @p mapa.shared::cluster.u32 at, $1, lane;
    @p mapa.shared::cluster.u32 barrier, barrier, lane;
    @p st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [at], $2, [barrier];
    mov.u32 $0, 0;
}
""")
BEGIN = gl.constexpr("""
{
    .reg .pred p;
    .reg .b32 thread;
    mov.u32 thread, %tid.x;
    setp.eq.u32 p, thread, 0;
    @p mbarrier.init.shared::cta.b64 [$1], 1;
    @p mbarrier.init.shared::cta.b64 [$1 + 8], 1;
    @p mbarrier.init.shared::cta.b64 [$1 + 16], 1;
    @p fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    mov.u32 $0, 0;
}
""")
# In the end it gives up with an error.
HEARD = gl.constexpr("""
{
    .reg .pred p;
    .reg .b32 thread, barrier, parity, patience;
    .reg .b64 state;
    rem.u32 barrier, $2, 3;
    mad.lo.u32 barrier, barrier, 8, $1;
    div.u32 parity, $2, 3;
    and.b32 parity, parity, 1;
    mov.u32 thread, %tid.x;
    setp.eq.u32 p, thread, 0;
    @p mbarrier.arrive.expect_tx.shared::cta.b64 state, [barrier], $3;
    mov.b32 patience, 0;
AGAIN:
    add.u32 patience, patience, 1;
    setp.gt.u32 p, patience, 0x1000000;
    @p trap;
    mbarrier.try_wait.parity.shared::cta.b64 p, [barrier], parity;
    @!p bra AGAIN;
    mov.u32 $0, 0;
}
""")
# Four numbers into the memory of block $8.
SEND_FOUR = gl.constexpr("""
{
    .reg .b32 at, barrier;
    rem.u32 barrier, $16, 3;
    mad.lo.u32 barrier, barrier, 8, $12;
    mapa.shared::cluster.u32 at, $8, $20;
    mapa.shared::cluster.u32 barrier, barrier, $20;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [at], {$4, $5, $6, $7}, [barrier];
    mov.u32 $0, 0; mov.u32 $1, 0; mov.u32 $2, 0; mov.u32 $3, 0;
}
""")
RANK = gl.constexpr("mov.u32 $0, %cluster_ctarank;")
TOLD_BEFORE = gl.constexpr("""
{
    .reg .pred p;
    .reg .b32 lane, at, number;
    mov.u32 lane, %laneid;
    setp.lt.s32 p, lane, $2;
    mad.lo.u32 at, lane, 4, $1;
    mov.u32 number, 0;
    @p ld.shared.u32 number, [at];
    redux.sync.add.s32 $0, number, 0xffffffff;
}
""")
MOST_TOLD = gl.constexpr("""
{
    .reg .b32 lane, at, number;
    mov.u32 lane, %laneid;
    and.b32 lane, lane, $2;
    mad.lo.u32 at, lane, 4, $1;
    ld.shared.u32 number, [at];
    redux.sync.max.s32 $0, number, 0xffffffff;
}
""")
# Of a thread's marks each in turn, from the lowest: its element's entry ENTRY, and its score SCORE as it counts.
_EACH_MARK = """
{
    .reg .pred p, q;
    .reg .b32 marks, mark, at, ENTRY, key, flip;
    .reg .b64 address;
    .reg .f32 SCORE;
    mov.b32 marks, $1;
    BEGIN
AGAIN:
    setp.eq.s32 p, marks, 0;
    @p bra DONE;
    neg.s32 mark, marks;
    and.b32 mark, mark, marks;
    xor.b32 marks, marks, mark;
    bfind.u32 ENTRY, mark;
    add.s32 ENTRY, ENTRY, $2;
    THEN
    bra AGAIN;
DONE:
    END
}
"""
_TAKE_SCORE = """
    mad.wide.s32 address, ENTRY, 4, $3;
    ld.global.f32 SCORE, [address];
    max.f32 SCORE, SCORE, 0fFF800000;
    add.f32 SCORE, SCORE, 0f00000000;
"""


def _each_mark(then: str, begin: str = "", end: str = "mov.b32 $0, 0;") -> gl.constexpr:
    return gl.constexpr(_EACH_MARK.replace("THEN", then).replace("BEGIN", begin).replace("END", end))


_APPEND_NUMBER = (
    _TAKE_SCORE
    + """
    mov.b32 key, SCORE;
    shr.s32 flip, key, 31; and.b32 flip, flip, 0x7FFFFFFF; xor.b32 key, key, flip;
    not.b32 ENTRY, ENTRY;
    """
)
APPEND = _each_mark(
    _APPEND_NUMBER
    + """
    atom.shared.inc.u32 at, [$4 + -16], 0xFFFFFFFF;
    mad.lo.u32 at, at, 8, $4;
    st.shared.v2.b32 [at], {ENTRY, key};
    """
)
# Its place is given by the first block; it is sent to all $7.
APPEND_ALL = _each_mark(
    _APPEND_NUMBER
    + """
    atom.relaxed.cluster.shared::cluster.add.u32 at, [length], 8;
    add.u32 at, at, $4;
    mov.b32 flip, 0;
EVERY:
    mapa.shared::cluster.u32 place, at, flip;
    mapa.shared::cluster.u32 each, barrier, flip;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [place], {ENTRY, key}, [each];
    add.u32 flip, flip, 1;
    setp.lt.u32 q, flip, $7;
    @q bra EVERY;
    """,
    """
    .reg .b32 length, each, place, barrier;
    add.u32 length, $4, -16;
    mapa.shared::cluster.u32 length, length, 0;
    rem.u32 barrier, $6, 3;
    mad.lo.u32 barrier, barrier, 8, $5;
    """,
)
# Those go that $6 or more of the $5 that are listed at $4 come before.
FIRST = _each_mark(
    _APPEND_NUMBER
    + """
    mov.b64 number, {ENTRY, key};
    mov.b32 at, $4;
    mov.b32 others, $5;
    mov.b32 before, 0;
COMPARE:
    ld.shared.b64 other, [at];
    setp.gt.s64 q, other, number;
    @q add.u32 before, before, 1;
    add.u32 at, at, 8;
    add.u32 others, others, -1;
    setp.ne.u32 q, others, 0;
    @q bra COMPARE;
    setp.ge.s32 q, before, $6;
    @q xor.b32 $0, $0, mark;
    """,
    """
    .reg .b32 before, others;
    .reg .b64 number, other;
    mov.b32 $0, $1;
    """,
    "",
)
WRITE = _each_mark("st.global.b32 [address], ENTRY; add.s64 address, address, 4;", "mov.b64 address, $3;")


def _write_of(most: int) -> gl.constexpr:
    text = "{ .reg .pred p; .reg .b32 entry; .reg .b64 address; mov.b64 address, $3;"
    for i in range(most):
        text += f"""
    and.b32 entry, $1, {1 << i};
    setp.ne.b32 p, entry, 0;
    add.s32 entry, $2, {i};
    @p st.global.b32 [address], entry;
    @p add.s64 address, address, 4;"""
    return gl.constexpr(text + "mov.b32 $0, 0; }")


WRITE_OF_8, WRITE_OF_16 = _write_of(8), _write_of(16)
# The $2 lowest marks, none if that is not positive.
LOWEST = gl.constexpr("""
{
    .reg .pred p;
    .reg .b32 number, most, mark;
    max.s32 most, $2, 0;
    mov.b32 $0, $1;
AGAIN:
    popc.b32 number, $0;
    setp.le.s32 p, number, most;
    @p bra DONE;
    bfind.u32 mark, $0;
    shl.b32 mark, 1, mark;
    xor.b32 $0, $0, mark;
    bra AGAIN;
DONE:
}
""")
SUMS_OF_FOUR = gl.constexpr("mov.b32 $0, $4; add.s32 $1, $0, $5; add.s32 $2, $1, $6; add.s32 $3, $2, $7;")
