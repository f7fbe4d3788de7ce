"""What NVIDIA's siblings of the top-k that count few scores share: the bound from which they count, and the bins."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from dsv4_kernels.index_topk import _shared as shared
from dsv4_kernels.index_topk._nvidia import _add, _key, _value

LANES = gl.constexpr(32)
HIDDEN = gl.constexpr(-0x80000000)
TWO_TO_23 = gl.constexpr(8388608.0)  # in a sum with it the other summand is in the last bits
ITS_BITS = gl.constexpr(0x4B000000)


@gluon.jit
def sums_before(memory, counts, SLOT: gl.constexpr, WARPS: gl.constexpr):
    """Sums of ``counts [threads, PER]`` before each, in order; warps exchange theirs in ``SLOT``."""
    square: gl.constexpr = gl.BlockedLayout([1, 1], [1, LANES], [WARPS, 1], [1, 0])
    within = gl.associative_scan(counts, 1, _add)
    mine = gl.convert_layout(gl.reshape(gl.sum(counts, 1), [WARPS, LANES]), square)
    lanes = gl.associative_scan(mine, 1, _add)
    warp = gl.arange(0, WARPS, layout=gl.SliceLayout(1, square))
    shared.tell(memory, SLOT, warp, gl.sum(mine, 1))
    shared.wait()
    begin = shared.told_before(memory, SLOT, warp)[:, None] + lanes - mine
    begin = gl.convert_layout(gl.reshape(begin, [WARPS * LANES]), gl.SliceLayout(1, counts.type.layout))
    return begin[:, None] + within - counts


@gluon.jit
def halved(best):
    """``best [N, M / 2]``: the greater of neighbours of ``[N, M]``, NaN passed over."""
    N: gl.constexpr = best.shape[0]
    M: gl.constexpr = best.shape[1]
    left, right = gl.split(gl.reshape(best, [N, M // 2, 2]))
    return gl.maximum(left, right)


@gluon.jit
def bounds(memory, score, count, K: gl.constexpr, WARPS: gl.constexpr):
    """Keys of a score that ``K`` or more of ``count`` reach, and of the greatest.

    Of groups of 2^n entries there are enough if ``count > 2^n (K - 1)``.
    """
    square: gl.constexpr = gl.BlockedLayout([1, 1], [1, LANES], [WARPS, 1], [1, 0])
    PER: gl.constexpr = score.shape[1]
    best = halved(score)
    if count > 2 * (K - 1):
        least = gl.convert_layout(shared.extremes(best)[0], gl.SliceLayout(1, score.type.layout))
    else:
        least = shared.extremes(score)[0]
    for level in gl.static_range(2, 6):
        if 1 << level <= PER:
            best = halved(best)
            these = gl.convert_layout(shared.extremes(best)[0], least.type.layout)
            least = gl.where(count > (1 << level) * (K - 1), these, least)
    most = gl.convert_layout(shared.extremes(best)[1], least.type.layout)
    low = gl.where(least == least, ~_key(least), HIDDEN)
    high = gl.where(most == most, _key(most), HIDDEN)
    low = gl.max(gl.convert_layout(gl.reshape(low, [WARPS, LANES]), square), 1)
    high = gl.max(gl.convert_layout(gl.reshape(high, [WARPS, LANES]), square), 1)
    warp = gl.arange(0, WARPS, layout=gl.SliceLayout(1, square))
    shared.tell(memory, 0, warp, low)
    shared.tell(memory, 1, warp, high)
    shared.wait()
    return ~shared.most_told(memory, 0, WARPS), shared.most_told(memory, 1, WARPS)


@gluon.jit
def find(memory, take, WARPS: gl.constexpr, BINS: gl.constexpr):
    """The bin in which the ``take``-th of all counted lies, the count in bins before it and its own."""
    THREADS: gl.constexpr = WARPS * LANES
    PER: gl.constexpr = BINS // THREADS
    layout: gl.constexpr = gl.BlockedLayout([1, PER], [LANES, 1], [WARPS, 1], [1, 0])
    shared.wait()
    thread = gl.arange(0, THREADS, layout=gl.SliceLayout(1, layout))[:, None]
    own = thread * PER + gl.arange(0, PER, layout=gl.SliceLayout(0, layout))[None, :]
    counts = shared.counts(memory, own)
    before = sums_before(memory, counts, 2, WARPS)
    shared.note(memory, (before < take) & (before + counts >= take), own, before, counts)
    shared.wait()
    return shared.noted(memory)


@gluon.jit
def linear(score, low, high, BINS: gl.constexpr):
    """Bins of equal width in value, from the key ``high`` down, and whether they may be used.

    Every score from ``low`` on is in one of ``BINS``; lesser ones come after them, and what is no number last.
    """
    low, high = _value(low), _value(high)
    scale = (BINS - 4) / (high - low)
    farthest = gl.maximum(gl.abs(low), gl.abs(high))
    useful = (high - low < 1e38) & (farthest * scale < 2097152.0)
    sums = score * -scale + (TWO_TO_23 + 2.0 + high * scale)
    return sums.to(gl.int32, bitcast=True) - ITS_BITS, useful


@gluon.jit
def ordinal(key, low, high, BINS: gl.constexpr):
    """Bins of equal width in the order of floats, from ``high`` down to ``low``, which lie in different ones."""
    bit = shared.highest_bit(high - low)
    shift = bit * 0
    for fewer in gl.static_range(1, 13):
        if 1 << fewer == BINS:
            shift = gl.maximum(bit - (fewer - 1), 0)
    return ((high - key).to(gl.uint32) >> shift.to(gl.uint32)).to(gl.int32)
