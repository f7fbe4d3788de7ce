"""Counters and a short list in a program's shared memory, as PTX: Gluon's shared memory knows no atomic additions.

The memory is a variable of the kernel's PTX, so :func:`memory` is called once, and all else is given its address. What
one thread writes another sees after :func:`wait`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LANES = gl.constexpr(32)
NOTED = gl.constexpr(8320)
LISTED = gl.constexpr(8320 + 16)
LIST = gl.constexpr(8320 + 32)
TOLD = gl.constexpr(8320 + 288)

# Room for 2048 counters and one of each lane, four numbers, the list's length (16 bytes), 32 numbers of 64 bits, and 5
# slots of a number of each warp. With a row of 8192 scores it stays below the 48 KiB that every launch may have.
_MEMORY = gl.constexpr("""
    .shared .align 16 .b8 topk_counters[9248];
    mov.u32 $0, topk_counters;
""")
_NUMBER = gl.constexpr("max.f32 $0, $1, 0fFF800000;")
_CLEAR = gl.constexpr("st.shared.u32 [$1], 0; mov.u32 $0, 0;")
_READ_FOUR = gl.constexpr("ld.shared.v4.u32 {$0, $1, $2, $3}, [$4];")
_READ_LISTED = gl.constexpr("ld.shared.u64 $0, [$1];")
_HIGHEST_BIT = gl.constexpr("bfind.u32 $0, $1;")
_COUNT_FIRST = gl.constexpr("""
{
    .reg .b32 at;
    min.u32 at, $1, $2;
    red.shared.add.u32 [at], 1;
    mov.u32 $0, 0;
}
""")
# A negative address means: nothing.
_NOTE = gl.constexpr("""
{
    .reg .pred p;
    setp.ge.s32 p, $1, 0;
    @p st.shared.v4.u32 [$1], {$2, $3, $4, $4};
    mov.u32 $0, 0;
}
""")
_TELL = gl.constexpr("st.shared.u32 [$1], $2; mov.u32 $0, 0;")
_TOLD_BEFORE = gl.constexpr("""
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
_MOST_TOLD = gl.constexpr("""
{
    .reg .b32 lane, at, number;
    mov.u32 lane, %laneid;
    and.b32 lane, lane, $2;
    mad.lo.u32 at, lane, 4, $1;
    ld.shared.u32 number, [at];
    redux.sync.max.s32 $0, number, 0xffffffff;
}
""")
# Of four elements, whose bins are $4 to $7, those in bin $8 are found.
_FIND_FOUR = """
{
    .reg .pred p;
    setp.eq.s32 p, $4, $8; setp.eq.or.s32 p, $5, $8, p;
    setp.eq.or.s32 p, $6, $8, p; setp.eq.or.s32 p, $7, $8, p;
    mov.u32 $0, $4; mov.u32 $1, $5; mov.u32 $2, $6; mov.u32 $3, $7;
    @!p bra DONE;
"""


def _of_four(then: str) -> gl.constexpr:
    """PTX that does ``then`` for each element that is found: BIN, SCORE and ENTRY are its operands, OUT the result."""
    text = _FIND_FOUR
    for i in range(4):
        each = then.replace("BIN", f"${4 + i}").replace("SCORE", f"${12 + i}").replace("ENTRY", f"${16 + i}")
        text += f"{{\n    .reg .pred p;\n    setp.ne.s32 p, ${4 + i}, $8;\n    @p bra NEXT;{each}NEXT:\n}}\n"
        text = text.replace("OUT", f"${i}")
    return gl.constexpr(text + "DONE:\n}\n")


_APPEND = _of_four("""
    .reg .f32 f;
    .reg .b32 at, key, flip, entry;
    add.f32 f, SCORE, 0f00000000;
    mov.b32 key, f;
    shr.s32 flip, key, 31; and.b32 flip, flip, 0x7FFFFFFF; xor.b32 key, key, flip;
    not.b32 entry, ENTRY;
    atom.shared.inc.u32 at, [$20 + -16], 0xFFFFFFFF;
    mad.lo.u32 at, at, 8, $20;
    st.shared.v2.b32 [at], {entry, key};
""")
# Those after the score $20 of entry $24 leave their bin.
_SETTLE = _of_four("""
    .reg .pred q;
    setp.eq.f32 q, SCORE, $20;
    setp.gt.and.s32 q, ENTRY, $24, q;
    setp.lt.or.f32 q, SCORE, $20, q;
    selp.b32 OUT, 0x7FFFFFFF, BIN, q;
""")
_APPEND_OPERANDS = gl.constexpr("=&r,=&r,=&r,=&r" + ",r" * 8 + ",f" * 4 + ",r" * 8)
_SETTLE_OPERANDS = gl.constexpr("=&r,=&r,=&r,=&r" + ",r" * 8 + ",f" * 4 + ",r" * 4 + ",f" * 4 + ",r" * 4)
# Of four elements those that are numbers ($8 to $11), as keys, each with its entry. The length is kept in bytes.
_APPEND_FOUR = gl.constexpr(
    """
{
    .reg .pred p;
    mov.u32 $0, 0; mov.u32 $1, 0; mov.u32 $2, 0; mov.u32 $3, 0;
    setp.num.f32 p, $8, $8; setp.num.or.f32 p, $9, $9, p;
    setp.num.or.f32 p, $10, $10, p; setp.num.or.f32 p, $11, $11, p;
    @!p bra DONE;
"""
    + "".join(
        f"""
    {{
        .reg .pred p; .reg .f32 f; .reg .b32 at, key, flip, entry;
        setp.nan.f32 p, ${8 + i}, ${8 + i};
        @p bra NEXT;
        atom.shared.add.u32 at, [$4 + -16], 8; add.u32 at, at, $4;
        add.f32 f, ${8 + i}, 0f00000000;
        mov.b32 key, f;
        shr.s32 flip, key, 31; and.b32 flip, flip, 0x7FFFFFFF; xor.b32 key, key, flip;
        not.b32 entry, ${12 + i};
        st.shared.v2.b32 [at], {{entry, key}};
    NEXT:
    }}
"""
        for i in range(4)
    )
    + """
DONE:
}
"""
)


@gluon.jit
def _asm(TEXT: gl.constexpr, OPERANDS: gl.constexpr, values):
    """The int32 that an instruction (or block) which touches shared memory makes of each element."""
    return gl.inline_asm_elementwise(TEXT, OPERANDS, values, dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def memory():
    """The address; what lies there is not known."""
    return gl.inline_asm_elementwise(_MEMORY, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def wait():
    """Until all threads are here."""
    gl.thread_barrier()


@gluon.jit
def clear(memory, WARPS: gl.constexpr, BINS: gl.constexpr):
    """``BINS`` counters and the list's length to 0."""
    THREADS: gl.constexpr = WARPS * LANES
    thread = gl.arange(0, THREADS, layout=gl.BlockedLayout([1], [LANES], [WARPS], [0]))
    for part in gl.static_range(BINS // THREADS):
        _asm(_CLEAR, "=r,r", [memory + (part * THREADS + thread) * 4])
    _asm(_CLEAR, "=r,r", [memory + LISTED])


@gluon.jit
def count_first(memory, bin_, BINS: gl.constexpr):
    """Each element whose ``bin_``, not negative, is less than ``BINS`` adds 1 to its counter; counters after those
    are spoilt, so that nothing branches.
    """
    L: gl.constexpr = bin_.type.layout
    lane = gl.arange(0, bin_.shape[0], layout=gl.SliceLayout(1, L)) % LANES
    other = memory + (BINS + lane) * 4
    _asm(_COUNT_FIRST, "=r,r,r", [memory + bin_ * 4, other[:, None]])


@gluon.jit
def counts(memory, bin_):
    """The counters of ``bin_``, of which a thread has four times some, in order."""
    return gl.inline_asm_elementwise(
        _READ_FOUR, "=r,=r,=r,=r,r,r,r,r", [memory + bin_ * 4], dtype=gl.int32, is_pure=False, pack=4
    )  # fmt: skip


@gluon.jit
def note(memory, found, a, b, c):
    """Three numbers of the one element that is ``found``."""
    _asm(_NOTE, "=r,r,r,r,r", [gl.where(found, memory + NOTED, -1), a, b, c])


@gluon.jit
def noted(memory):
    """What :func:`note` was given: three scalars."""
    four = gl.inline_asm_elementwise(
        _READ_FOUR, "=r,=r,=r,=r,r", [memory + NOTED],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=False, pack=1,
    )  # fmt: skip
    return four[0], four[1], four[2]


@gluon.jit
def append_numbers(memory, kept, entry):
    """List elements that are numbers, in any order: the key of each above the complement of its entry.

    A thread has four times some elements, and most have no such ones.
    """
    gl.inline_asm_elementwise(
        _APPEND_FOUR, "=r,=r,=r,=r" + ",r" * 4 + ",f" * 4 + ",r" * 4, [memory + LIST, kept, entry],
        dtype=gl.int32, is_pure=False, pack=4,
    )  # fmt: skip


@gluon.jit
def append_bin(memory, bin_, at, score, entry):
    """List elements whose ``bin_`` is ``at``, in any order: the key of each score above the complement of its entry.

    A thread has four times some elements, and most have no such ones.
    """
    gl.inline_asm_elementwise(
        _APPEND, _APPEND_OPERANDS, [bin_, at, score, entry, memory + LIST], dtype=gl.int32, is_pure=False, pack=4
    )  # fmt: skip


@gluon.jit
def listed(memory, place):
    """int64 at each ``place`` of the list."""
    return gl.inline_asm_elementwise(
        _READ_LISTED, "=l,r", [memory + LIST + place * 8], dtype=gl.int64, is_pure=False, pack=1
    )  # fmt: skip


@gluon.jit
def settled(bin_, at, score, entry, last, last_entry):
    """``bin_``, where of those in bin ``at`` all that come after the score ``last`` of ``last_entry`` go to the end."""
    return gl.inline_asm_elementwise(
        _SETTLE, _SETTLE_OPERANDS, [bin_, at, score, entry, last, last_entry], dtype=gl.int32, is_pure=False, pack=4
    )  # fmt: skip


@gluon.jit
def number(x):
    """``x``, NaN as -inf."""
    return gl.inline_asm_elementwise(_NUMBER, "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def placed(x):
    """``x [threads, PER]`` in shared memory, such that a thread's row and neighbours in a row are read alike."""
    PER: gl.constexpr = x.shape[1]
    layout: gl.constexpr = gl.SwizzledSharedLayout(4, 32 // PER if PER < 32 else 1, PER // 4 if PER < 32 else 8, [1, 0])
    return gl.allocate_shared_memory(x.dtype, x.shape, layout, x)


@gluon.jit
def taken(place, like):
    """What was :func:`placed`, spread as ``like``."""
    return place.load(like.type.layout)


@gluon.jit
def tell(memory, SLOT: gl.constexpr, warp, number):
    """The int32 ``number`` of each ``warp`` into ``SLOT``, 0 to 4."""
    _asm(_TELL, "=r,r,r", [memory + TOLD + SLOT * 128 + warp * 4, number])


@gluon.jit
def told_before(memory, SLOT: gl.constexpr, warp):
    """The sum of what warps before each ``warp`` told."""
    return _asm(_TOLD_BEFORE, "=r,r,r", [memory + TOLD + SLOT * 128 + warp * 0, warp])


@gluon.jit
def most_told(memory, SLOT: gl.constexpr, WARPS: gl.constexpr):
    """The greatest that was told: a scalar."""
    return _asm(_MOST_TOLD, "=r,r,r", [memory + TOLD + SLOT * 128, WARPS - 1])


@gluon.jit
def anew(number):
    """``number``, int32, which the compiler does not know: what follows from it is computed where it is used."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [number], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def highest_bit(number):
    """Of a scalar that is not 0, as if it were unsigned."""
    return gl.inline_asm_elementwise(_HIGHEST_BIT, "=r,r", [number], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def extremes(numbers):
    """The least and the greatest number of each row of ``[N, M]``, NaN passed over, as the hardware does; or NaN."""
    return gl.min(numbers, 1), gl.max(numbers, 1)
