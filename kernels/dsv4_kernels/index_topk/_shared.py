"""Counters and a short list in a program's shared memory, as PTX: Gluon's shared memory knows no atomic additions.

The memory is a variable of the kernel's PTX, so :func:`memory` is called once, and all else is given its address. What
one thread writes another sees after :func:`wait`. A program may be a cluster of ``CTAS`` blocks of ``WARPS``, each with
memory of its own: a block counts what is its own, and writes what it tells into the memory of all. What is told in a
``turn`` (0, 1, ..., the same everywhere) is there after :func:`heard`. Of two turns in a row, one at least is told
something by every thread: so whoever is in a turn knows that all have done with the third before it.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.jit import constexpr_function

from dsv4_kernels.index_topk import _ptx as ptx

LANES = gl.constexpr(32)
NOTED = gl.constexpr(8320)
LISTED = gl.constexpr(8320 + 16)
LIST = gl.constexpr(8320 + 32)
TOLD = gl.constexpr(8320 + 288)
BARRIERS = gl.constexpr(9248)
OTHERS = gl.constexpr(9248 + 32)


@constexpr_function
def _blocks(CTAS, RANK, APART):
    """Bases of a layout over a cluster: its first dim is split over the blocks, or each has all to itself."""
    bits = range(CTAS.bit_length() - 1)
    return [[0 if APART else 1 << bit, *[0] * (RANK - 1)] for bit in bits]


@constexpr_function
def blocked(PER, OVER, WARPS, CTAS, APART=False):
    """A layout: so many elements of a thread, lanes and warps for each dim, the last one fastest."""
    return gl.BlockedLayout(PER, OVER, WARPS, list(range(len(PER)))[::-1], _blocks(CTAS, len(PER), APART))


@constexpr_function
def swizzled(PER, CTAS):
    """Of rows of ``PER`` float32 in shared memory."""
    phases = (32 // PER, PER // 4) if PER < 32 else (1, 8)
    return gl.SwizzledSharedLayout(4, *phases, [1, 0], _blocks(CTAS, 2, False))


@gluon.jit
def _asm(TEXT: gl.constexpr, OPERANDS: gl.constexpr, values):
    """The int32 that an instruction (or block) which touches shared memory makes of each element."""
    return gl.inline_asm_elementwise(TEXT, OPERANDS, values, dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def memory(CTAS: gl.constexpr):
    """The address; what lies there is not known. The blocks of a cluster have all begun."""
    if CTAS == 1:
        at = gl.inline_asm_elementwise(ptx.MEMORY_ALONE, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    else:
        at = gl.inline_asm_elementwise(ptx.MEMORY_OF_CLUSTER, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    return at


@gluon.jit
def begin(memory, CTAS: gl.constexpr):
    """Once, before anything is told: the blocks of a cluster have all begun, and what they cleared is clear."""
    if CTAS > 1:
        _asm(ptx.BEGIN, "=r,r", [memory + BARRIERS])


@gluon.jit
def wait():
    """Until all threads of the block are here."""
    gl.thread_barrier()


@gluon.jit
def heard(memory, turn, bytes_, CTAS: gl.constexpr):
    """Until what was told in the ``turn`` is there, so many bytes in a cluster."""
    if CTAS == 1:
        gl.thread_barrier()
    else:
        _asm(ptx.HEARD, "=r,r,r,r", [memory + BARRIERS, turn, bytes_])


@gluon.jit
def clear(memory, WARPS: gl.constexpr, CTAS: gl.constexpr):
    """Four counters a thread, and the list's length, to 0."""
    THREADS: gl.constexpr = WARPS * LANES
    thread = gl.arange(0, THREADS, layout=blocked([1], [LANES], [WARPS], CTAS, True))
    for part in gl.static_range(4):
        _asm(ptx.CLEAR, "=r,r", [memory + (part * THREADS + thread) * 4])
    _asm(ptx.CLEAR, "=r,r", [memory + LISTED])


@gluon.jit
def count_first(memory, bin_, BINS: gl.constexpr):
    """Each element whose ``bin_``, not negative, is less than ``BINS`` adds 1 to its counter; counters after those
    are spoilt, so that nothing branches.
    """
    L: gl.constexpr = bin_.type.layout
    lane = gl.arange(0, bin_.shape[0], layout=gl.SliceLayout(1, L)) % LANES
    other = memory + (BINS + lane) * 4
    _asm(ptx.COUNT_FIRST, "=r,r,r", [memory + bin_ * 4, other[:, None]])


@gluon.jit
def _four(at):
    """The int32 at an address and those after it, of which a thread has four times some."""
    return gl.inline_asm_elementwise(
        ptx.READ_FOUR, "=r,=r,=r,=r,r,r,r,r", [at], dtype=gl.int32, is_pure=False, pack=4
    )  # fmt: skip


@gluon.jit
def counts(memory, bin_, turn, WARPS: gl.constexpr, CTAS: gl.constexpr):
    """The counters of ``bin_``, of which a thread has four times some, in order: the sums over a cluster."""
    wait()
    sums = _four(memory + bin_ * 4)
    if CTAS > 1:
        EACH: gl.constexpr = WARPS * LANES * 16
        own = memory + OTHERS + _asm(ptx.RANK, "=r", []) * EACH + bin_ * 4
        for block in gl.static_range(CTAS):
            gl.inline_asm_elementwise(
                ptx.SEND_FOUR, "=r,=r,=r,=r" + ",r" * 20, [sums, own, memory + BARRIERS, turn, block],
                dtype=gl.int32, is_pure=False, pack=4,
            )  # fmt: skip
        heard(memory, turn, EACH * CTAS, CTAS)
        sums = bin_ * 0
        for block in gl.static_range(CTAS):
            sums += _four(memory + OTHERS + block * EACH + bin_ * 4)
    return sums


@gluon.jit
def note(memory, found, a, b, c):
    """Three numbers of the one element that is ``found``."""
    _asm(ptx.NOTE, "=r,r,r,r,r", [gl.where(found, memory + NOTED, -1), a, b, c])


@gluon.jit
def noted(memory):
    """What :func:`note` was given: three scalars."""
    four = gl.inline_asm_elementwise(
        ptx.READ_FOUR, "=r,=r,=r,=r,r", [memory + NOTED],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=False, pack=1,
    )  # fmt: skip
    return four[0], four[1], four[2]


@gluon.jit
def sums_of_four(counts):
    """Of a thread's elements, of which it has four, the sum up to each."""
    return gl.inline_asm_elementwise(
        ptx.SUMS_OF_FOUR, "=&r,=&r,=&r,=&r,r,r,r,r", [counts], dtype=gl.int32, is_pure=True, pack=4
    )  # fmt: skip


@gluon.jit
def number_of(marks):
    """How many marks each thread has."""
    return gl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [marks], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def append(memory, marks, first, row_ptr, turn, CTAS: gl.constexpr):
    """List what is marked, in any order: the key of its score above the complement of its entry. 8 bytes each.

    The lowest mark of a thread is of its entry ``first`` in the row at ``row_ptr``. Few threads have any.
    """
    if CTAS == 1:
        _asm(ptx.APPEND, "=r,r,r,l,r", [marks, first, row_ptr.to(gl.int64), memory + LIST])
    else:
        operands = [marks, first, row_ptr.to(gl.int64), memory + LIST, memory + BARRIERS, turn, CTAS]
        _asm(ptx.APPEND_ALL, "=r,r,r,l,r,r,r,r", operands)


@gluon.jit
def first_of(memory, marks, first, row_ptr, total, take):
    """Those ``marks`` of :func:`append` that are among the first ``take`` of the ``total`` on the list."""
    return _asm(ptx.FIRST, "=&r,r,r,l,r,r,r", [marks, first, row_ptr.to(gl.int64), memory + LIST, total, take])


@gluon.jit
def lowest(marks, number):
    """So many of the ``marks``, from the lowest on."""
    return _asm(ptx.LOWEST, "=&r,r,r", [marks, number])


@gluon.jit
def write(target, marks, first, PER: gl.constexpr):
    """The entries of marks, of which a thread may have ``PER``, in order from its ``target`` on."""
    if PER <= 8:
        _asm(ptx.WRITE_OF_8, "=r,r,r,l", [marks, first, target.to(gl.int64)])
    elif PER <= 16:
        _asm(ptx.WRITE_OF_16, "=r,r,r,l", [marks, first, target.to(gl.int64)])
    else:
        _asm(ptx.WRITE, "=r,r,r,l", [marks, first, target.to(gl.int64)])


@gluon.jit
def number(x):
    """``x``, NaN as -inf."""
    return gl.inline_asm_elementwise(ptx.NUMBER, "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def placed(x, CTAS: gl.constexpr):
    """``x [threads, PER]`` in shared memory, such that a thread's row and neighbours in a row are read alike."""
    layout: gl.constexpr = swizzled(x.shape[1], CTAS)
    return gl.allocate_shared_memory(x.dtype, x.shape, layout, x)


@gluon.jit
def taken(place, like):
    """What was :func:`placed`, spread as ``like``."""
    return place.load(like.type.layout)


@gluon.jit
def tell(memory, SLOT: gl.constexpr, warp, number, turn, CTAS: gl.constexpr):
    """The int32 ``number`` of each ``warp`` into ``SLOT``, 0 to 4, of every block: 4 bytes each."""
    at = memory + TOLD + SLOT * 128 + warp * 4
    if CTAS == 1:
        _asm(ptx.TELL, "=r,r,r", [at, number])
    else:
        _asm(ptx.TELL_ALL, "=r,r,r,r,r,r", [at, number, memory + BARRIERS, turn, CTAS])


@gluon.jit
def told_before(memory, SLOT: gl.constexpr, warp):
    """The sum of what warps before each ``warp`` told."""
    return _asm(ptx.TOLD_BEFORE, "=r,r,r", [memory + TOLD + SLOT * 128 + warp * 0, warp])


@gluon.jit
def most_told(memory, SLOT: gl.constexpr, WARPS: gl.constexpr):
    """The greatest that was told: a scalar."""
    return _asm(ptx.MOST_TOLD, "=r,r,r", [memory + TOLD + SLOT * 128, WARPS - 1])


@gluon.jit
def anew(number):
    """``number``, int32, which the compiler does not know: what follows from it is computed where it is used."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [number], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def highest_bit(number):
    """Of a scalar that is not 0, as if it were unsigned."""
    return gl.inline_asm_elementwise(ptx.HIGHEST_BIT, "=r,r", [number], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def extremes(numbers):
    """The least and the greatest number of each row of ``[N, M]``, NaN passed over, as the hardware does; or NaN."""
    return gl.min(numbers, 1), gl.max(numbers, 1)
