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


@triton.jit
def memory():
    return tl.cast(ADDRESS, tl.int64).to(tl.pointer_type(tl.int64), bitcast=True)


@triton.jit
def wait():
    pass


@triton.jit
def clear(memory, WARPS, BINS: tl.constexpr):
    tl.store(memory + tl.arange(0, BINS), tl.zeros((BINS,), tl.int64))
    tl.store(memory + LENGTH, 0)


@triton.jit
def count_first(memory, bin_, BINS: tl.constexpr):
    tl.atomic_add(memory + bin_, tl.full(bin_.shape, 1, tl.int64), mask=bin_.to(tl.uint32, bitcast=True) < BINS)


@triton.jit
def counts(memory, bin_):
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
def append_numbers(memory, kept, entry):
    inside = kept == kept
    bits = (kept + 0.0).to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    place = tl.atomic_add(memory + LENGTH + entry * 0, tl.full(entry.shape, 1, tl.int64), mask=inside)
    number = (key.to(tl.int64) << 32) | (~entry).to(tl.uint32, bitcast=True).to(tl.int64)
    tl.store(memory + LIST + place, number, mask=inside)


@triton.jit
def append_bin(memory, bin_, at, score, entry):
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    number = (key.to(tl.int64) << 32) | (~entry).to(tl.uint32, bitcast=True).to(tl.int64)
    place = tl.atomic_add(memory + LENGTH + entry * 0, tl.full(entry.shape, 1, tl.int64), mask=bin_ == at)
    tl.store(memory + LIST + place, number, mask=bin_ == at)


@triton.jit
def listed(memory, place):
    return tl.load(memory + LIST + place)


@triton.jit
def settled(bin_, at, score, entry, last, last_entry):
    later = (score < last) | ((score == last) & (entry > last_entry))
    return tl.where((bin_ == at) & later, 0x7FFFFFFF, bin_)


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
def tell(memory, SLOT, warp, number):
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
def placed(x):
    return x


@triton.jit
def taken(place, like):
    return place
