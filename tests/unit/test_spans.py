from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.viz.spans import SpanIndex

SLICES = st.lists(st.tuples(st.integers(0, 3), st.integers(-50, 100), st.integers(0, 40)), max_size=25)
EDGES = st.lists(st.integers(-70, 160), min_size=2, max_size=8, unique=True).map(sorted)


@given(SLICES, EDGES, st.sampled_from([0, 10**9, 1_700_000_000 * 10**9]))
def test_time_and_starts_as_counted_one_by_one(
    slices: list[tuple[int, int, int]], edges: list[int], shift: int
) -> None:
    group, start, dur = (np.array([s[i] for s in slices], np.int64) for i in range(3))
    index = SpanIndex.build(start + shift, start + dur + shift, group, 5)
    time, count = index.measure([3, 0, 4, 1], np.array(edges) + shift)
    for at, wanted in enumerate([3, 0, 4, 1]):
        own = [(s, s + d) for g, s, d in slices if g == wanted]
        bins = list(pairwise(edges))
        assert time[at].tolist() == [sum(max(0, min(e, b) - max(s, a)) for s, e in own) for a, b in bins]
        assert count[at].tolist() == [sum(a <= s < b for s, _ in own) for a, b in bins]


def test_sums_that_leave_64_bits_still_give_exact_differences() -> None:
    start = np.full(1000, 2**61, np.int64)
    start[0] = -(2**61)
    index = SpanIndex.build(start, start + 7, np.zeros(1000, np.int64), 1)
    assert index.covered([0], np.array([2**61 - 5, 2**61 + 3, 2**61 + 9])).tolist() == [[999 * 3, 999 * 4]]


def test_groups_without_slices_and_without_bins() -> None:
    nothing = np.zeros(0, np.int64)
    index = SpanIndex.build(nothing, nothing, nothing, 2)
    assert index.covered([0, 1], np.array([0, 10])).tolist() == [[0], [0]]
    assert index.covered([1], np.array([5])).shape == (1, 0)
