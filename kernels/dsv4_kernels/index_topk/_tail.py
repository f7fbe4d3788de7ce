"""NVIDIA sibling of the top-k kernel for rows of one program, or cluster: a histogram of the scores that may be taken.

Of groups of neighbouring entries, as many as are to be taken or more, each has a greatest score, and the least of
those is a bound: so many scores reach it. Only scores from there on are counted, in bins of equal width from the
greatest score down, in shared memory. If all of the bin that decides are taken, that is the choice; else its scores,
a handful, are compared with each other. If it has many, it gets bins of its own, of equal width in the order of floats,
so that three more rounds end whatever the scores are; so do all scores if bins of equal width are of no use
(infinities, a bound that equals the greatest score).

A thread has neighbouring entries, up to 32, and a word of marks for what it takes. From there on a mark costs, not an
entry: listed scores are read again, and taken entries are written, mark by mark.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from dsv4_kernels.index_topk import _shared as shared
from dsv4_kernels.index_topk._counting import (
    HIDDEN,
    ITS_BITS,
    LANES,
    bounds,
    find,
    greatest,
    key_of,
    linear,
    marks,
    ordinal,
    sum_before,
)

MEMBERS = gl.constexpr(32)  # as many as the list has room for


@gluon.jit
def _narrow(
    memory, held, entry, left, below, inside, total, take, turn,
    SHARE: gl.constexpr, WARPS: gl.constexpr, CTAS: gl.constexpr,
):  # fmt: skip
    """Marks of scores that are taken, and of few others, or of such as are alike; how many those are, and what to take.

    The last result is the next turn. Scores are taken anew in every round, which is better than to keep them.
    """
    BINS: gl.constexpr = 128 * WARPS
    bit = gl.arange(0, entry.shape[1], layout=gl.SliceLayout(0, entry.type.layout))[None, :]
    low, high = 0, 1
    while (total > MEMBERS) & (low < high):
        mine, key = ((inside[:, None] >> bit & 1) == 1, key_of(_shown(held, entry, shared.anew(left), SHARE)))
        low, high = (gl.max(gl.where(mine, ~key, HIDDEN), 1), gl.max(gl.where(mine, key, HIDDEN), 1))
        low, high = greatest(memory, low, high, turn, CTAS)
        low, turn = ~low, turn + 1
        if low < high:
            shared.clear(memory, WARPS, CTAS)
            shared.wait()
            shared.count_first(memory, gl.where(mine, ordinal(key, low, high, BINS), BINS), BINS)
            at, before, total = find(memory, take, turn, WARPS, CTAS)
            take, turn = take - before, turn + 1
            bin_ = gl.where(mine, ordinal(key, low, high, BINS), BINS)
            below |= marks(bin_ < at)
            inside = marks(bin_ == at)
    return below, inside, total, take, turn


@gluon.jit
def _settled(memory, inside, first, row_ptr, total, take, turn, CTAS: gl.constexpr):
    """The marks of the first ``take`` of the ``total`` that are marked, which are few or alike."""
    if total <= MEMBERS:
        shared.append(memory, inside, first, row_ptr, turn, CTAS)
        shared.heard(memory, turn, total * 8, CTAS)
        inside = shared.first_of(memory, inside, first, row_ptr, total, take)
    else:
        inside = shared.lowest(inside, take - sum_before(memory, shared.number_of(inside), 3, turn, CTAS))
    return inside


@gluon.jit
def _loaded(row_ptr, entry, n_entries, SHARE: gl.constexpr, CTAS: gl.constexpr):
    """A row, ``[threads, PER]``, spread as ``entry``; or, with ``SHARE``, in shared memory.

    There neighbours load neighbours: loads of a thread's own entries would each touch as many lines.
    """
    if SHARE:
        N: gl.constexpr = entry.shape[0]
        PER: gl.constexpr = entry.shape[1]
        across: gl.constexpr = shared.blocked([1, 4], [4 * LANES // PER, PER // 4], [N // LANES // CTAS, 1], CTAS)
        first = gl.arange(0, N, layout=gl.SliceLayout(1, across))[:, None] * PER
        place = first + gl.arange(0, PER, layout=gl.SliceLayout(0, across))[None, :]
        held = shared.placed(gl.load(row_ptr + place, mask=place < n_entries, other=0.0), CTAS)
    else:
        held = gl.load(row_ptr + entry, mask=entry < n_entries, other=0.0)
    return held


@gluon.jit
def _shown(held, like, left, SHARE: gl.constexpr):
    """A thread's first ``left`` scores as they count: NaN is -inf, and from here on NaN is what does not count."""
    if SHARE:
        held = shared.taken(held, like)
    place = gl.arange(0, like.shape[1], layout=gl.SliceLayout(0, like.type.layout))[None, :]
    return gl.where(place < left[:, None], shared.number(held), float("nan"))


@gluon.jit
def _index_topk_tail_kernel(
    scores_ptr, visible_ptr, out_ptr, n_entries, scores_stride, out_stride,
    K: gl.constexpr, BLOCK_KK: gl.constexpr, PDL: gl.constexpr, BLOCK: gl.constexpr,
    SHARE: gl.constexpr, CTAS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """One program per row writes ``out [T, K]``, -1 padded; a row has at most ``BLOCK`` entries."""
    THREADS: gl.constexpr = CTAS * WARPS * LANES
    PER: gl.constexpr = BLOCK // THREADS
    BINS: gl.constexpr = 128 * WARPS
    layout: gl.constexpr = shared.blocked([1, PER], [LANES, 1], [WARPS, 1], CTAS)
    line: gl.constexpr = shared.blocked([1], [LANES], [WARPS], CTAS, True)
    memory = shared.memory(CTAS)
    shared.clear(memory, WARPS, CTAS)
    shared.begin(memory, CTAS)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row = gl.program_id(0)
    thread = gl.arange(0, THREADS, layout=gl.SliceLayout(1, layout))
    entry = thread[:, None] * PER + gl.arange(0, PER, layout=gl.SliceLayout(0, layout))[None, :]
    # Loaded before `visible` is known: what lies beyond is not used.
    row_ptr = scores_ptr + row.to(gl.int64) * scores_stride
    held = _loaded(row_ptr, entry, n_entries, SHARE, CTAS)
    count = gl.minimum(gl.load(visible_ptr + row).to(gl.int32), n_entries)
    target = out_ptr + row.to(gl.int64) * out_stride
    if count <= K:
        place = gl.arange(0, BLOCK_KK, layout=line)
        gl.store(target + place, gl.where(place < count, place, -1), mask=place < K)
    else:
        first = thread * PER
        left = count - first
        score = _shown(held, entry, left, SHARE)
        low, high = bounds(memory, score, count, 0, K, CTAS)
        total, take, turn = count, K, 1
        bits, useful = linear(score, low, high, BINS)
        if useful:
            shared.count_first(memory, bits - ITS_BITS, BINS)
            at, before, total = find(memory, take, 1, WARPS, CTAS)
            take, turn = take - before, 2
            if PER >= 32:  # computed again: there are not registers enough for all
                bits = linear(score, shared.anew(low), high, BINS)[0]
            below, inside = marks(bits < at + ITS_BITS), marks(bits == at + ITS_BITS)
        else:
            inside = marks(score == score)
            below = inside & 0
        if total != take:
            if total > MEMBERS:
                below, inside, total, take, turn = _narrow(
                    memory, held, entry, left, below, inside, total, take, turn, SHARE, WARPS, CTAS
                )  # fmt: skip
            inside = _settled(memory, inside, first, row_ptr, total, take, turn, CTAS)
            turn += 1
        taken = below | inside
        shared.write(target + sum_before(memory, shared.number_of(taken), 4, turn, CTAS), taken, first, PER)
