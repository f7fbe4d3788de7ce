"""NVIDIA sibling of the top-k kernel for rows of one program: searched by value, few barriers a round (Gluon).

Every thread holds neighbouring entries of the row. A round counts the keys from two pivots on: inside a warp by one
reduction, between warps by one exchange that leaves every thread with all partial counts. One pivot interpolates the
counts at the ends of the bracket, the other halves it: some 7 rounds of random scores instead of 18 bits.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LANES = gl.constexpr(32)
HIDDEN = gl.constexpr(-0x80000000)
BY_VALUE = gl.constexpr(8)


@gluon.jit
def _key(x):
    """int32 in the order of float32 ``x``; NaN as -inf, -0 as 0. Greater than ``HIDDEN`` for every number."""
    x = gl.where(x != x, float("-inf"), x) + 0.0
    bits = x.to(gl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@gluon.jit
def _value(key):
    """The float32 whose key is ``key``."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(gl.float32, bitcast=True)


@gluon.jit
def _everywhere(part, WARPS: gl.constexpr):
    """``part [..., WARPS]``, one for each warp, with every element in every thread."""
    all_: gl.constexpr = gl.BlockedLayout([WARPS], [LANES], [WARPS], [0])
    return gl.convert_layout(part, all_)


@gluon.jit
def _total(x, WARPS: gl.constexpr):
    """Sum of ``x``, one int32 of each thread."""
    return gl.sum(_everywhere(gl.sum(gl.reshape(x, [WARPS, LANES]), 1), WARPS), 0)


@gluon.jit
def _bounds(key, shown, WARPS: gl.constexpr):
    """Keys ``low`` and ``high`` (the upper half of each exact): ``low <= key <= high`` for every key ``shown``."""
    low = gl.max(gl.where(shown, ~key, HIDDEN), 1)
    high = gl.max(gl.where(shown, key, HIDDEN), 1)
    low = gl.max(gl.reshape(low, [WARPS, LANES]), 1)
    high = gl.max(gl.reshape(high, [WARPS, LANES]), 1)
    both = _everywhere((high & -0x10000) | ((low >> 16) & 0xFFFF), WARPS)  # one exchange for the two
    return ~(gl.max(both << 16, 0) | 0xFFFF), gl.max(both, 0) | 0xFFFF


@gluon.jit
def _pivots(low, high, n_low, n_high, take, turn):
    """Two keys between ``low`` and ``high``, neither of them included, the lesser first.

    Any two are right; those of infinite ends are poor guesses. From some turn on, or if there is no finite middle, one
    halves the keys of the bracket, so that the search ends after 32 more.
    """
    begin, end = _value(low), _value(high)
    share = (n_low - take).to(gl.float32) / (n_low - n_high).to(gl.float32)
    share = gl.minimum(gl.maximum(share, 0.015625), 0.984375)
    guess = _key(begin + (end - begin) * share)
    half = begin * 0.5 + end * 0.5
    by_value = (turn < BY_VALUE) & (gl.abs(half) < float("inf"))
    middle = gl.where(by_value, _key(half), (low & high) + ((low ^ high) >> 1))
    guess = gl.minimum(gl.maximum(guess, low + 1), high - 1)
    middle = gl.minimum(gl.maximum(middle, low + 1), high - 1)
    return gl.minimum(guess, middle), gl.maximum(guess, middle)


@gluon.jit
def _threshold(key, shown, count, take, WARPS: gl.constexpr):
    """``low`` such that ``n_low >= take`` keys are not less, and ``n_high < take`` keys that are greater.

    If ``n_low == take``, ``n_high`` says nothing.
    """
    low, high = _bounds(key, shown, WARPS)
    high += 1
    n_low, n_high = count, 0
    turn = 0
    while (n_low != take) & ((high - low).to(gl.uint32) > 1):
        first, second = _pivots(low, high, n_low, n_high, take, turn)
        reached = (key >= first).to(gl.int32)
        reached += (key >= second).to(gl.int32) << 16
        both = _total(gl.sum(reached, 1), WARPS)
        n_first, n_second = both & 0xFFFF, both >> 16
        if n_first < take:
            high, n_high = first, n_first
        else:
            low, n_low = first, n_first
            if n_second < take:
                high, n_high = second, n_second
            else:
                low, n_low = second, n_second
        turn += 1
    return low, n_low, n_high


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _before(flags, WARPS: gl.constexpr):
    """How many of ``flags [threads, PER]``, int32, are set in entries before each."""
    line: gl.constexpr = gl.BlockedLayout([1], [LANES], [WARPS], [0])
    within = gl.associative_scan(flags, 1, _add)
    mine = gl.convert_layout(gl.sum(flags, 1), line)
    earlier = gl.convert_layout(gl.associative_scan(mine, 0, _add) - mine, gl.SliceLayout(1, flags.type.layout))
    return earlier[:, None] + within - flags


@gluon.jit
def _index_topk_row_kernel(
    scores_ptr, visible_ptr, out_ptr, n_entries, scores_stride, out_stride,
    K: gl.constexpr, BLOCK_KK: gl.constexpr, PDL: gl.constexpr, BLOCK: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """One program per row writes ``out [T, K]``, -1 padded; a row has at most ``BLOCK`` entries."""
    THREADS: gl.constexpr = WARPS * LANES
    PER: gl.constexpr = BLOCK // THREADS
    layout: gl.constexpr = gl.BlockedLayout([1, PER], [LANES, 1], [WARPS, 1], [1, 0])
    line: gl.constexpr = gl.BlockedLayout([1], [LANES], [WARPS], [0])
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row = gl.program_id(0)
    thread = gl.arange(0, THREADS, layout=gl.SliceLayout(1, layout))
    entry = thread[:, None] * PER + gl.arange(0, PER, layout=gl.SliceLayout(0, layout))[None, :]
    # Loaded before `visible` is known: what lies beyond is not used.
    x = gl.load(scores_ptr + row.to(gl.int64) * scores_stride + entry, mask=entry < n_entries, other=0.0)
    count = gl.minimum(gl.load(visible_ptr + row).to(gl.int32), n_entries)
    target = out_ptr + row.to(gl.int64) * out_stride
    if count <= K:
        place = gl.arange(0, BLOCK_KK, layout=line)
        gl.store(target + place, gl.where(place < count, place, -1), mask=place < K)
    else:
        shown = entry < count
        key = gl.where(shown, _key(x), HIDDEN)
        low, n_low, n_high = _threshold(key, shown, count, K, WARPS)
        taken = (key >= low).to(gl.int32)
        if n_low != K:
            equal = (key == low).to(gl.int32)
            taken = (key > low).to(gl.int32) | (equal & (_before(equal, WARPS) < K - n_high).to(gl.int32))
        gl.store(target + _before(taken, WARPS), entry, mask=taken != 0)
