"""Parts of NVIDIA's sibling of the top-k: keys of scores, the bound from which it counts, bins, sums over threads."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from dsv4_kernels.index_topk import _shared as shared

LANES = gl.constexpr(32)
HIDDEN = gl.constexpr(-0x80000000)
TWO_TO_23 = gl.constexpr(8388608.0)  # in a sum with it the other summand is in the last bits
ITS_BITS = gl.constexpr(0x4B000000)


@gluon.jit
def key_of(x):
    """int32 in the order of float32 ``x``; NaN as -inf, -0 as 0. Greater than ``HIDDEN`` for every number."""
    x = gl.where(x != x, float("-inf"), x) + 0.0
    bits = x.to(gl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@gluon.jit
def value_of(key):
    """The float32 whose key is ``key``."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(gl.float32, bitcast=True)


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def sum_before(memory, number, SLOT: gl.constexpr, turn, CTAS: gl.constexpr, APART: gl.constexpr = False):
    """Sums of ``number [threads]`` before each; warps exchange theirs in ``SLOT``.

    ``APART``: every block of the cluster has numbers of its own.
    """
    WARPS: gl.constexpr = number.shape[0] // LANES
    OVER: gl.constexpr = 1 if APART else CTAS
    square: gl.constexpr = shared.blocked([1, 1], [1, LANES], [WARPS // OVER, 1], CTAS, APART)
    mine = gl.convert_layout(gl.reshape(number, [WARPS, LANES]), square)
    lanes = gl.associative_scan(mine, 1, _add)
    warp = gl.arange(0, WARPS, layout=gl.SliceLayout(1, square))
    shared.tell(memory, SLOT, warp, gl.sum(mine, 1), turn, OVER)
    shared.heard(memory, turn, 4 * WARPS, OVER)
    begin = shared.told_before(memory, SLOT, warp)[:, None] + lanes - mine
    return gl.convert_layout(gl.reshape(begin, [WARPS * LANES]), number.type.layout)


@gluon.jit
def marks(which):
    """int32 of each thread: bit ``i`` is whether its element ``i`` of ``which [threads, PER]`` is true."""
    bit = 1 << gl.arange(0, which.shape[1], layout=gl.SliceLayout(0, which.type.layout))
    return gl.sum(gl.where(which, bit[None, :], 0), 1)


@gluon.jit
def greatest(memory, first, second, turn, CTAS: gl.constexpr):
    """The greatest of ``first`` and that of ``second``, int32 of every thread: two scalars. Slots 0 and 1."""
    WARPS: gl.constexpr = first.shape[0] // LANES
    square: gl.constexpr = shared.blocked([1, 1], [1, LANES], [WARPS // CTAS, 1], CTAS)
    warp = gl.arange(0, WARPS, layout=gl.SliceLayout(1, square))
    first = gl.max(gl.convert_layout(gl.reshape(first, [WARPS, LANES]), square), 1)
    second = gl.max(gl.convert_layout(gl.reshape(second, [WARPS, LANES]), square), 1)
    shared.tell(memory, 0, warp, first, turn, CTAS)
    shared.tell(memory, 1, warp, second, turn, CTAS)
    shared.heard(memory, turn, 8 * WARPS, CTAS)
    return shared.most_told(memory, 0, WARPS), shared.most_told(memory, 1, WARPS)


@gluon.jit
def _halved(best):
    """``best [N, M / 2]``: the greater of neighbours of ``[N, M]``, NaN passed over."""
    N: gl.constexpr = best.shape[0]
    M: gl.constexpr = best.shape[1]
    left, right = gl.split(gl.reshape(best, [N, M // 2, 2]))
    return gl.maximum(left, right)


@gluon.jit
def bounds(memory, score, count, turn, K: gl.constexpr, CTAS: gl.constexpr):
    """Keys of a score that ``K`` or more of ``count`` reach, and of the greatest.

    Of groups of 2^n entries there are enough if ``count > 2^n (K - 1)``.
    """
    PER: gl.constexpr = score.shape[1]
    best = _halved(score)
    if count > 2 * (K - 1):
        least = gl.convert_layout(shared.extremes(best)[0], gl.SliceLayout(1, score.type.layout))
    else:
        least = shared.extremes(score)[0]
    for level in gl.static_range(2, 6):
        if 1 << level <= PER:
            best = _halved(best)
            these = gl.convert_layout(shared.extremes(best)[0], least.type.layout)
            least = gl.where(count > (1 << level) * (K - 1), these, least)
    most = gl.convert_layout(shared.extremes(best)[1], least.type.layout)
    low = gl.where(least == least, ~key_of(least), HIDDEN)
    high = gl.where(most == most, key_of(most), HIDDEN)
    low, high = greatest(memory, low, high, turn, CTAS)
    return ~low, high


@gluon.jit
def find(memory, take, turn, WARPS: gl.constexpr, CTAS: gl.constexpr):
    """The bin in which the ``take``-th of all counted lies, the count in bins before it and its own.

    Every block of a cluster finds it.
    """
    layout: gl.constexpr = shared.blocked([1, 4], [LANES, 1], [WARPS, 1], CTAS, True)
    thread = gl.arange(0, WARPS * LANES, layout=gl.SliceLayout(1, layout))[:, None]
    own = thread * 4 + gl.arange(0, 4, layout=gl.SliceLayout(0, layout))[None, :]
    counts = shared.counts(memory, own, turn, WARPS, CTAS)
    before = shared.sums_of_four(counts) - counts
    before += sum_before(memory, gl.sum(counts, 1), 2, turn, CTAS, True)[:, None]
    shared.note(memory, (before < take) & (before + counts >= take), own, before, counts)
    shared.wait()
    return shared.noted(memory)


@gluon.jit
def linear(score, low, high, BINS: gl.constexpr):
    """Bins of equal width in value, from the key ``high`` down, more by ``ITS_BITS``, and whether they may be used.

    Every score from ``low`` on is in one of ``BINS``; lesser ones come after them, and what is no number last.
    """
    low, high = value_of(low), value_of(high)
    scale = (BINS - 4) / (high - low)
    farthest = gl.maximum(gl.abs(low), gl.abs(high))
    useful = (high - low < 1e38) & (farthest * scale < 2097152.0)
    sums = score * -scale + (TWO_TO_23 + 2.0 + high * scale)
    return sums.to(gl.int32, bitcast=True), useful


@gluon.jit
def ordinal(key, low, high, BINS: gl.constexpr):
    """Bins of equal width in the order of floats, from ``high`` down to ``low``, which lie in different ones."""
    bit = shared.highest_bit(high - low)
    shift = bit * 0
    for fewer in gl.static_range(1, 13):
        if 1 << fewer == BINS:
            shift = gl.maximum(bit - (fewer - 1), 0)
    return ((high - key).to(gl.uint32) >> shift.to(gl.uint32)).to(gl.int32)
