"""NVIDIA sibling of the top-k kernel for rows of one program: a histogram of the scores that may be taken.

Of groups of neighbouring entries, as many as are to be taken or more, each has a greatest score, and the least of
those is a bound: so many scores reach it. Only scores from there on are counted, in bins of equal width from the
greatest score down, in shared memory. If all of the bin that decides are taken, that is the choice; else its scores,
a handful, are compared with each other. If it has many, it gets bins of its own, of equal width in the order of floats,
so that three more rounds end whatever the scores are; so do all scores if bins of equal width are of no use
(infinities, a bound that equals the greatest score).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from dsv4_kernels.index_topk import _shared as shared
from dsv4_kernels.index_topk._counting import HIDDEN, LANES, bounds, find, linear, ordinal, sums_before
from dsv4_kernels.index_topk._nvidia import _key, _value

MEMBERS = gl.constexpr(32)  # as many as the list has room for


@gluon.jit
def _narrow(memory, row_scores, entry, count, bin_, at, total, take, WARPS: gl.constexpr, BINS: gl.constexpr):
    """Bins of which ``at`` has few scores, or only such as are alike; with them its count and what to take of it.

    Of the scores that were in it the others are in bins before or after it. Scores are read in every round, which is
    better than to hold them.
    """
    low, high = 0, 1
    while (total > MEMBERS) & (low < high):
        inside, key = bin_ == at, _key(_shown(row_scores, entry, count))
        low = ~gl.max(gl.max(gl.where(inside, ~key, HIDDEN), 1), 0)
        high = gl.max(gl.max(gl.where(inside, key, HIDDEN), 1), 0)
        if low < high:
            shared.clear(memory, WARPS, BINS)
            shared.wait()
            shared.count_first(memory, gl.where(inside, ordinal(key, low, high, BINS), BINS), BINS)
            last, before, total = find(memory, take, WARPS, BINS)
            take -= before
            own = ordinal(_key(_shown(row_scores, entry, count)), low, high, BINS)
            bin_ = gl.where(inside & (own < last), -1, gl.where(inside & (own > last), BINS, bin_))
    return bin_, total, take


@gluon.jit
def _last_of(memory, members, take, WARPS: gl.constexpr):
    """Score and entry of the ``take``-th of the list's ``members``."""
    own = gl.arange(0, MEMBERS, layout=gl.BlockedLayout([1], [LANES], [WARPS], [0]))
    mine = shared.listed(memory, own)
    greater = own * 0
    for other in range(members):
        greater += (shared.listed(memory, other) > mine).to(gl.int32)
    last = (greater == take - 1) & (own < members)
    key = gl.max(gl.where(last, (mine >> 32).to(gl.int32), HIDDEN), 0)
    return _value(key), ~gl.max(gl.where(last, mine.to(gl.int32), HIDDEN), 0)


@gluon.jit
def _settled(memory, score, entry, bin_, at, total, take, WARPS: gl.constexpr, BINS: gl.constexpr):
    """Bins such that all in ``at`` or before are taken: of the ``total`` in it, few or all alike, ``take`` stay."""
    if total <= MEMBERS:
        shared.append_bin(memory, bin_, at, score, entry)
        shared.wait()
        last, last_entry = _last_of(memory, total, take, WARPS)
        bin_ = shared.settled(bin_, at, score, entry, last, last_entry)
    else:
        inside = bin_ == at
        bin_ = gl.where(inside & (sums_before(memory, inside.to(gl.int32), 3, WARPS) >= take), BINS, bin_)
    return bin_


@gluon.jit
def _loaded(row_ptr, n_entries, PER: gl.constexpr, WARPS: gl.constexpr):
    """A row, ``[threads, PER]``, in shared memory. Neighbours load neighbours: a thread's own entries fill lines."""
    N: gl.constexpr = WARPS * LANES
    across: gl.constexpr = gl.BlockedLayout([1, 4], [4 * LANES // PER, PER // 4], [WARPS, 1], [1, 0])
    first = gl.arange(0, N, layout=gl.SliceLayout(1, across))[:, None] * PER
    place = first + gl.arange(0, PER, layout=gl.SliceLayout(0, across))[None, :]
    return shared.placed(gl.load(row_ptr + place, mask=place < n_entries, other=0.0))


@gluon.jit
def _shown(row_scores, entry, count):
    """Scores as they count: NaN is -inf, and from here on NaN is what does not count."""
    return gl.where(entry < count, shared.number(shared.taken(row_scores, entry)), float("nan"))


@gluon.jit
def _index_topk_tail_kernel(
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
    row_ptr = scores_ptr + row.to(gl.int64) * scores_stride
    row_scores = _loaded(row_ptr, n_entries, PER, WARPS)
    count = gl.minimum(gl.load(visible_ptr + row).to(gl.int32), n_entries)
    target = out_ptr + row.to(gl.int64) * out_stride
    if count <= K:
        place = gl.arange(0, BLOCK_KK, layout=line)
        gl.store(target + place, gl.where(place < count, place, -1), mask=place < K)
    else:
        score = _shown(row_scores, entry, count)
        low, high = bounds(memory, score, count, K, WARPS)
        total, take, at = count, K, 0
        bin_, useful = linear(score, low, high, BINS)
        if useful:
            shared.count_first(memory, bin_, BINS)
            at, before, total = find(memory, take, WARPS, BINS)
            take -= before
            if PER >= 32:  # computed again, as what follows: there are not registers enough for all
                bin_ = linear(score, shared.anew(low), high, BINS)[0]
        else:
            bin_ = gl.where(score == score, 0, BINS)
        entry = shared.anew(thread * PER)[:, None] + gl.arange(0, PER, layout=gl.SliceLayout(0, layout))[None, :]
        if total != take:
            if total > MEMBERS:
                bin_, total, take = _narrow(memory, row_scores, entry, count, bin_, at, total, take, WARPS, BINS)
            if PER >= 32:
                score = _shown(row_scores, entry, count)
            bin_ = _settled(memory, score, entry, bin_, at, total, take, WARPS, BINS)
        taken = bin_ <= at
        gl.store(target + sums_before(memory, taken.to(gl.int32), 4, WARPS), entry, mask=taken)
