"""Compiled top-k: one selection of the k-th score, then one pass in entry order."""

from __future__ import annotations

import numpy as np

from dsv4_kernels.native import native, native_part


@native
def topk(scores, visible, k, out):
    """See ``index_topk_reference``."""
    for t in range(scores.shape[0]):
        pick(scores[t].copy(), max(0, min(visible[t], scores.shape[1])), k, out[t])


@native_part
def pick(scores, seen, k, out):
    """The ``min(k, seen)`` best of ``scores[:seen]`` in ascending order, -1 padded; NaN in ``scores`` become -inf."""
    out[:] = -1
    if seen <= k:
        for e in range(seen):
            out[e] = e
        return
    lowest = np.float32(-np.inf)
    for e in range(seen):
        if scores[e] != scores[e]:
            scores[e] = lowest
    bound = _ranked(scores[:seen].copy(), seen - k)
    ties = k
    for e in range(seen):
        if scores[e] > bound:
            ties -= 1
    place = 0
    for e in range(seen):
        take = scores[e] > bound
        if scores[e] == bound and ties > 0:
            take = True
            ties -= 1
        if take:
            out[place] = e
            place += 1


@native_part
def _ranked(values, place):
    """What sorting would put at ``place``, by quickselect; ``values``, which hold no NaN, are reordered."""
    first, last = 0, values.shape[0] - 1
    while first < last:
        pivot = values[(first + last) // 2]
        i, j = first, last
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if place <= j:
            last = j
        elif place >= i:
            first = i
        else:
            break
    return values[place]


@native_part
def score(q, weights, keys, page_table, per_page, seen, out):
    """Scores of a token's first ``seen`` entries, whose keys lie in the pages of ``page_table``."""
    heads, d = q.shape
    for e in range(seen):
        row = page_table[e // per_page] * per_page + e % per_page
        if not 0 <= row < keys.shape[0]:
            raise IndexError("an entry's key lies outside the pool")
        total = np.float32(0.0)
        for h in range(heads):
            product = np.float32(0.0)
            for j in range(d):
                product += q[h, j] * keys[row, j]
            total += weights[h] * max(product, np.float32(0.0))
        out[e] = total


@native
def select(q, weights, keys, page_table, request, visible, per_page, out):
    """Score and choose per token; see ``index_select_cpu``."""
    k = out.shape[1]
    longest = 0
    for t in range(q.shape[0]):
        longest = max(longest, visible[t])
    scores = np.empty(longest, np.float32)
    for t in range(q.shape[0]):
        seen = visible[t]
        if not 0 <= request[t] < page_table.shape[0] or not 0 <= seen <= page_table.shape[1] * per_page:
            raise IndexError("a token's request or its entries lie outside the page table")
        if seen > k:
            score(q[t], weights[t], keys, page_table[request[t]], per_page, seen, scores)
        pick(scores, seen, k, out[t])
