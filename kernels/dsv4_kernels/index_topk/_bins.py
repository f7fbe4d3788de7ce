"""NVIDIA sibling of the top-k kernel for rows of one program: a histogram, then the few keys of the bin that decides.

Scores are counted in bins of equal width between the least and the greatest, in shared memory. The bin in which the
last one taken lies has a handful of scores, which are compared with each other. If it has many, it gets bins of its
own, of equal width in the order of floats, so that three more rounds end whatever the scores are; so do all if bins of
equal width are of no use (infinities). What is found is the last entry taken, its score and its number.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from dsv4_kernels.index_topk import _shared as shared
from dsv4_kernels.index_topk._nvidia import _before, _everywhere, _key, _value

LANES = gl.constexpr(32)
HIDDEN = gl.constexpr(-0x80000000)
MEMBERS = gl.constexpr(16)
TWO_TO_23 = gl.constexpr(8388608.0)  # in a sum with it the other summand is in the last bits
ITS_BITS = gl.constexpr(0x4B000000)


@gluon.jit
def _bounds(score, WARPS: gl.constexpr):
    """Keys at or below and above those of every ``score`` that is a number, exact in the upper half."""
    least, most = shared.extremes(score)
    low = gl.where(least == least, ~_key(least), HIDDEN)
    high = gl.where(most == most, _key(most), HIDDEN)
    low = gl.max(gl.reshape(low, [WARPS, LANES]), 1)
    high = gl.max(gl.reshape(high, [WARPS, LANES]), 1)
    both = _everywhere((high & -0x10000) | ((low >> 16) & 0xFFFF), WARPS)  # one exchange for the two
    return ~(gl.max(both << 16, 0) | 0xFFFF), gl.max(both, 0) | 0xFFFF


@gluon.jit
def _find(memory, bin_, inside, total, take, WARPS: gl.constexpr, BINS: gl.constexpr):
    """The bin in which the ``take``-th from above of ``total`` scores ``inside`` lies, the count above it and its own.

    The counters are 0 before.
    """
    THREADS: gl.constexpr = WARPS * LANES
    PER: gl.constexpr = BINS // THREADS
    layout: gl.constexpr = gl.BlockedLayout([1, PER], [LANES, 1], [WARPS, 1], [1, 0])
    shared.count(memory, bin_, inside)
    shared.wait()
    thread = gl.arange(0, THREADS, layout=gl.SliceLayout(1, layout))[:, None]
    own = thread * PER + gl.arange(0, PER, layout=gl.SliceLayout(0, layout))[None, :]
    counts = shared.counts(memory, own)
    above = total - _before(counts, WARPS) - counts
    shared.note(memory, (above < take) & (above + counts >= take), own, above, counts)
    shared.wait()
    return shared.noted(memory)


@gluon.jit
def _linear(score, low, high, BINS: gl.constexpr):
    """Bins of equal width in value, and whether they may be used: not if an end is infinite, or all are alike."""
    begin, end = _value(low), _value(high)
    scale = (BINS - 4) / (end - begin)
    farthest = gl.maximum(gl.abs(begin), gl.abs(end))
    useful = (end - begin < 1e38) & (farthest * scale < 2097152.0)
    sums = score * scale + (TWO_TO_23 + 2.0 - begin * scale)
    return sums.to(gl.int32, bitcast=True) - ITS_BITS, useful


@gluon.jit
def _ordinal(key, low, high, BINS: gl.constexpr):
    """Bins of equal width in the order of floats, for ``low <= key <= high``; the ends lie in different ones."""
    bit = shared.highest_bit(high - low)
    shift = bit * 0
    for fewer in gl.static_range(1, 13):
        if 1 << fewer == BINS:
            shift = gl.maximum(bit - (fewer - 1), 0)
    return ((key - low).to(gl.uint32) >> shift.to(gl.uint32)).to(gl.int32)


@gluon.jit
def _narrow(memory, score, bin_, at, total, take, WARPS: gl.constexpr, BINS: gl.constexpr):
    """The same of the scores in bin ``at``, until few or all alike: bins, that bin, its count, what to take."""
    key = _key(score)
    low, high = 0, 1
    while (total > MEMBERS) & (low < high):
        inside = bin_ == at
        low = ~gl.max(gl.max(gl.where(inside, ~key, HIDDEN), 1), 0)
        high = gl.max(gl.max(gl.where(inside, key, HIDDEN), 1), 0)
        if low < high:
            shared.clear(memory, WARPS, BINS)
            shared.wait()
            bin_ = gl.where(inside, _ordinal(key, low, high, BINS), -1)
            at, above, total = _find(memory, bin_, inside, total, take, WARPS, BINS)
            take -= above
    return bin_, at, total, take


@gluon.jit
def _last_of(memory, score, entry, inside, members, take, WARPS: gl.constexpr):
    """Score and entry of the ``take``-th of the ``members``, at most ``MEMBERS``, that are ``inside``."""
    pairs: gl.constexpr = gl.BlockedLayout([1, MEMBERS], [LANES, 1], [WARPS, 1], [1, 0])
    shared.append(memory, inside, score, entry)
    shared.wait()
    own = gl.arange(0, MEMBERS, layout=gl.SliceLayout(1, pairs))
    other = gl.arange(0, MEMBERS, layout=gl.SliceLayout(0, pairs))
    mine, theirs = shared.listed(memory, own), shared.listed(memory, other)
    greater = (theirs[None, :] > mine[:, None]) & (other < members)[None, :]
    last = (gl.sum(greater.to(gl.int32), 1) == take - 1) & (own < members)
    key = gl.max(gl.where(last, (mine >> 32).to(gl.int32), HIDDEN), 0)
    return _value(key), ~gl.max(gl.where(last, mine.to(gl.int32), HIDDEN), 0)


@gluon.jit
def _last_alike(score, entry, inside, take, WARPS: gl.constexpr):
    """The same of any number whose scores are all alike."""
    mine = inside & (_before(inside.to(gl.int32), WARPS) == take - 1)
    value = gl.max(gl.max(gl.where(inside, _key(score), HIDDEN), 1), 0)
    return _value(value), gl.max(gl.max(gl.where(mine, entry, -1), 1), 0)


@gluon.jit
def _index_topk_bins_kernel(
    scores_ptr, visible_ptr, out_ptr, n_entries, scores_stride, out_stride,
    K: gl.constexpr, BLOCK_KK: gl.constexpr, PDL: gl.constexpr, BLOCK: gl.constexpr, BINS: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """One program per row writes ``out [T, K]``, -1 padded; a row has at most ``BLOCK`` entries."""
    THREADS: gl.constexpr = WARPS * LANES
    PER: gl.constexpr = BLOCK // THREADS
    layout: gl.constexpr = gl.BlockedLayout([1, PER], [LANES, 1], [WARPS, 1], [1, 0])
    line: gl.constexpr = gl.BlockedLayout([1], [LANES], [WARPS], [0])
    memory = shared.memory()
    shared.clear(memory, WARPS, BINS)
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
        # NaN counts as -inf; from here on NaN is what does not count.
        score = gl.where(entry < count, gl.where(x == x, x, float("-inf")), float("nan"))
        low, high = _bounds(score, WARPS)
        total, take, at = count, K, 0
        bin_, useful = _linear(score, low, high, BINS)
        if useful:
            at, above, total = _find(memory, bin_, score == score, total, take, WARPS, BINS)
            take -= above
        else:
            bin_ = gl.where(score == score, 0, -1)
        if total > MEMBERS:
            bin_, at, total, take = _narrow(memory, score, bin_, at, total, take, WARPS, BINS)
        if total <= MEMBERS:
            last, last_entry = _last_of(memory, score, entry, bin_ == at, total, take, WARPS)
        else:
            last, last_entry = _last_alike(score, entry, bin_ == at, take, WARPS)
        taken = ((score > last) | ((score == last) & (entry <= last_entry))).to(gl.int32)
        gl.store(target + _before(taken, WARPS), entry, mask=taken != 0)
