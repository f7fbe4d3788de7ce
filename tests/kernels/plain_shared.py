"""What ``dsv4_kernels.index_topk._shared`` does, for Triton's interpreter: in memory of the host, a program at once."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

ROOM = np.zeros(4400, np.int64)
ADDRESS = tl.constexpr(ROOM.ctypes.data)
NOTED = tl.constexpr(4096)
LENGTH = tl.constexpr(4100)
LIST = tl.constexpr(4104)
TOLD = tl.constexpr(4200)


def blocked(*_):
    return None


@triton.jit
def memory(CTAS):
    return tl.cast(ADDRESS, tl.int64).to(tl.pointer_type(tl.int64), bitcast=True)


@triton.jit
def begin(memory, CTAS):
    pass


@triton.jit
def wait():
    pass


@triton.jit
def heard(memory, turn, bytes_, CTAS):
    pass


@triton.jit
def clear(memory, WARPS: tl.constexpr, CTAS):
    tl.store(memory + tl.arange(0, 128 * WARPS), tl.zeros((128 * WARPS,), tl.int64))
    tl.store(memory + LENGTH, 0)


@triton.jit
def count_first(memory, bin_, BINS: tl.constexpr):
    tl.atomic_add(memory + bin_, tl.full(bin_.shape, 1, tl.int64), mask=bin_.to(tl.uint32, bitcast=True) < BINS)


@triton.jit
def counts(memory, bin_, turn, WARPS, CTAS):
    return tl.load(memory + bin_).to(tl.int32)


@triton.jit
def note(memory, found, a, b, c):
    tl.store(memory + NOTED + a * 0, a.to(tl.int64), mask=found)
    tl.store(memory + NOTED + 1 + a * 0, b.to(tl.int64), mask=found)
    tl.store(memory + NOTED + 2 + a * 0, c.to(tl.int64), mask=found)


@triton.jit
def noted(memory):
    at = memory + NOTED
    return tl.load(at).to(tl.int32), tl.load(at + 1).to(tl.int32), tl.load(at + 2).to(tl.int32)


@triton.jit
def sums_of_four(counts):
    return tl.cumsum(counts, 1)


@triton.jit
def _set(marks):
    """Each bit of ``marks [N]``, ``[N, 32]``, and whether it is set."""
    bit = tl.arange(0, 32)[None, :]
    return bit, (marks[:, None] >> bit & 1) == 1


@triton.jit
def _marks(bit, which):
    return tl.sum(tl.where(which, 1 << bit, 0), 1).to(tl.int32)


@triton.jit
def number_of(marks):
    return tl.sum(_set(marks)[1].to(tl.int32), 1)


@triton.jit
def _numbers(marks, first, row_ptr):
    bit, which = _set(marks)
    entry = first[:, None] + bit
    bits = (number(tl.load(row_ptr + entry, mask=which, other=0.0)) + 0.0).to(tl.int32, bitcast=True)
    key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    return bit, which, (key << 32) | (~entry).to(tl.uint32, bitcast=True).to(tl.int64)


@triton.jit
def append(memory, marks, first, row_ptr, turn, CTAS):
    _, which, each = _numbers(marks, first, row_ptr)
    place = tl.atomic_add(memory + LENGTH + each * 0, tl.full(each.shape, 1, tl.int64), mask=which)
    tl.store(memory + LIST + place, each, mask=which)


@triton.jit
def first_of(memory, marks, first, row_ptr, total, take):
    bit, which, each = _numbers(marks, first, row_ptr)
    before = (each * 0).to(tl.int32)
    for i in range(total):
        before += (tl.load(memory + LIST + i) > each).to(tl.int32)
    return _marks(bit, which & (before < take))


@triton.jit
def lowest(marks, number):
    bit, which = _set(marks)
    return _marks(bit, which & (tl.cumsum(which.to(tl.int32), 1) <= number[:, None]))


@triton.jit
def write(target, marks, first, PER):
    bit, which = _set(marks)
    place = tl.cumsum(which.to(tl.int32), 1) - 1
    tl.store(target[:, None] + place, first[:, None] + bit, mask=which)


@triton.jit
def number(x):
    return tl.where(x == x, x, float("-inf"))


@triton.jit
def highest_bit(number):
    return tl.floor(tl.log2(number.to(tl.uint32, bitcast=True).to(tl.float64))).to(tl.int32)


@triton.jit
def extremes(numbers):
    least = tl.min(tl.where(numbers == numbers, numbers, float("inf")), 1)
    return least, tl.max(tl.where(numbers == numbers, numbers, float("-inf")), 1)


@triton.jit
def tell(memory, SLOT, warp, number, turn, CTAS):
    tl.store(memory + TOLD + SLOT * 32 + warp, number.to(tl.int64))


@triton.jit
def told_before(memory, SLOT, warp):
    told = tl.load(memory + TOLD + SLOT * 32 + warp).to(tl.int32)
    return tl.sum(tl.where(warp[None, :] < warp[:, None], told[None, :], 0), 1)


@triton.jit
def most_told(memory, SLOT, WARPS: tl.constexpr):
    return tl.max(tl.load(memory + TOLD + SLOT * 32 + tl.arange(0, WARPS)), 0).to(tl.int32)


@triton.jit
def anew(number):
    return number


@triton.jit
def placed(x, CTAS):
    return x


@triton.jit
def taken(place, like):
    return place
