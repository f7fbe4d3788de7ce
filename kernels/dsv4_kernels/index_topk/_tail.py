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

MEMBERS = gl.constexpr(32)


@gluon.jit
def _narrow(memory, kept, total, take, WARPS: gl.constexpr, BINS: gl.constexpr):
    """Of the scores ``kept``, ``total`` numbers among NaN, those between which the ``take``-th lies: few or all alike.

    With them their count and what to take of them.
    """
    low, high = 0, 1
    while (total > MEMBERS) & (low < high):
        inside, key = kept == kept, _key(kept)
        low = ~gl.max(gl.max(gl.where(inside, ~key, HIDDEN), 1), 0)
        high = gl.max(gl.max(gl.where(inside, key, HIDDEN), 1), 0)
        if low < high:
            shared.clear(memory, WARPS, BINS)
            shared.wait()
            bin_ = gl.where(inside, ordinal(key, low, high, BINS), BINS)
            shared.count_first(memory, bin_, BINS)
            at, before, total = find(memory, take, WARPS, BINS)
            take -= before
            kept = gl.where(bin_ == at, kept, float("nan"))
    return kept, total, take


@gluon.jit
def _last_of(memory, kept, entry, members, take, WARPS: gl.constexpr):
    """Score and entry of the ``take``-th of the ``members``, at most ``MEMBERS``, that are ``kept``."""
    shared.append_numbers(memory, kept, entry)
    shared.wait()
    own = gl.arange(0, MEMBERS, layout=gl.BlockedLayout([1], [LANES], [WARPS], [0]))
    mine = shared.listed(memory, own)
    greater = own * 0
    for other in range(members):
        greater += (shared.listed(memory, other) > mine).to(gl.int32)
    last = (greater == take - 1) & (own < members)
    key = gl.max(gl.where(last, (mine >> 32).to(gl.int32), HIDDEN), 0)
    return _value(key), ~gl.max(gl.where(last, mine.to(gl.int32), HIDDEN), 0)


@gluon.jit
def _last_alike(memory, kept, entry, take, WARPS: gl.constexpr):
    """The same of any number that are all alike."""
    inside = kept == kept
    mine = inside & (sums_before(memory, inside.to(gl.int32), 3, WARPS) == take - 1)
    value = gl.max(gl.max(gl.where(inside, _key(kept), HIDDEN), 1), 0)
    return _value(value), gl.max(gl.max(gl.where(mine, entry, -1), 1), 0)


@gluon.jit
def _shown(x, entry, count):
    """Scores as they count: NaN is -inf, and from here on NaN is what does not count."""
    return gl.where(entry < count, shared.number(x), float("nan"))


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
    x = gl.load(row_ptr + entry, mask=entry < n_entries, other=0.0)
    count = gl.minimum(gl.load(visible_ptr + row).to(gl.int32), n_entries)
    target = out_ptr + row.to(gl.int64) * out_stride
    if count <= K:
        place = gl.arange(0, BLOCK_KK, layout=line)
        gl.store(target + place, gl.where(place < count, place, -1), mask=place < K)
    else:
        score = _shown(x, entry, count)
        low, high = bounds(memory, score, count, K, WARPS)
        total, take, at = count, K, 0
        bin_, useful = linear(score, low, high, BINS)
        if useful:
            shared.count_first(memory, bin_, BINS)
            at, before, total = find(memory, take, WARPS, BINS)
            take -= before
        else:
            bin_ = gl.where(score == score, 0, BINS)
        entry = shared.anew(thread * PER)[:, None] + gl.arange(0, PER, layout=gl.SliceLayout(0, layout))[None, :]
        if total != take:
            kept = gl.where(bin_ == at, score, float("nan"))
            if total > MEMBERS:
                kept, total, take = _narrow(memory, kept, total, take, WARPS, BINS)
            if total <= MEMBERS:
                last, last_entry = _last_of(memory, kept, entry, total, take, WARPS)
            else:
                last, last_entry = _last_alike(memory, kept, entry, take, WARPS)
            bin_, at = gl.where((score > last) | ((score == last) & (entry <= last_entry)), 0, 1), 0
        taken = bin_ <= at
        gl.store(target + sums_before(memory, taken.to(gl.int32), 4, WARPS), entry, mask=taken)
