"""Counters and a short list in a program's shared memory, as PTX: Gluon's shared memory knows no atomic additions.

The memory is a variable of the kernel's PTX, so :func:`memory` is called once, and all else is given its address. What
one thread writes another sees after :func:`wait`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LANES = gl.constexpr(32)
NOTED = gl.constexpr(16384)
LISTED = gl.constexpr(16384 + 16)
LIST = gl.constexpr(16384 + 32)

# Room for 4096 counters, four numbers, the list's length (16 bytes) and 16 numbers of 64 bits.
_MEMORY = gl.constexpr("""
    .shared .align 16 .b8 topk_counters[16544];
    mov.u32 $0, topk_counters;
""")
_CLEAR = gl.constexpr("st.shared.u32 [$1], 0; mov.u32 $0, 0;")
_READ_FOUR = gl.constexpr("ld.shared.v4.u32 {$0, $1, $2, $3}, [$4];")
_READ_LISTED = gl.constexpr("ld.shared.u64 $0, [$1];")
_HIGHEST_BIT = gl.constexpr("bfind.u32 $0, $1;")
# In all that follow a negative address means: nothing.
_COUNT = gl.constexpr("""
{
    .reg .pred p;
    setp.ge.s32 p, $1, 0;
    @p red.shared.add.u32 [$1], 1;
    mov.u32 $0, 0;
}
""")
_NOTE = gl.constexpr("""
{
    .reg .pred p;
    setp.ge.s32 p, $1, 0;
    @p st.shared.v4.u32 [$1], {$2, $3, $4, $4};
    mov.u32 $0, 0;
}
""")
# The length is kept in bytes.
_APPEND = gl.constexpr("""
{
    .reg .pred p;
    .reg .f32 f;
    .reg .b32 at, key, flip, entry;
    mov.u32 $0, 0;
    setp.lt.s32 p, $1, 0;
    @p bra DONE;
    atom.shared.add.u32 at, [$1 + -16], 8;
    add.u32 at, at, $1;
    add.f32 f, $2, 0f00000000;
    mov.b32 key, f;
    shr.s32 flip, key, 31;
    and.b32 flip, flip, 0x7FFFFFFF;
    xor.b32 key, key, flip;
    not.b32 entry, $3;
    st.shared.v2.b32 [at], {entry, key};
DONE:
}
""")


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
def count(memory, bin_, inside):
    """Each element that is ``inside`` adds 1 to the counter of its ``bin_``."""
    _asm(_COUNT, "=r,r", [gl.where(inside, memory + bin_ * 4, -1)])


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
def append(memory, inside, score, entry):
    """List each element that is ``inside``, in any order: the key of its score above the complement of its entry."""
    _asm(_APPEND, "=r,r,r,r", [gl.where(inside, memory + LIST, -1), score, entry])


@gluon.jit
def listed(memory, place):
    """int64 at each ``place`` of the list."""
    return gl.inline_asm_elementwise(
        _READ_LISTED, "=l,r", [memory + LIST + place * 8], dtype=gl.int64, is_pure=False, pack=1
    )  # fmt: skip


@gluon.jit
def highest_bit(number):
    """Of a scalar that is not 0, as if it were unsigned."""
    return gl.inline_asm_elementwise(_HIGHEST_BIT, "=r,r", [number], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def extremes(numbers):
    """The least and the greatest number of each row of ``[N, M]``, NaN passed over, as the hardware does; or NaN."""
    return gl.min(numbers, 1), gl.max(numbers, 1)
