"""Interval arithmetic against a nanosecond-by-nanosecond model."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.timeline.intervals import (
    EMPTY,
    Intervals,
    covered,
    depth_time,
    gaps,
    intersect,
    merge,
    merge_all,
    overlap_length,
    union_length,
)

SPANS = st.lists(st.tuples(st.integers(-30, 60), st.integers(0, 25)), max_size=12)


def points(spans: list[tuple[int, int]]) -> set[int]:
    return {t for start, dur in spans for t in range(start, start + dur)}


def columns(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([s for s, _ in spans], np.int64)
    return start, start + np.array([d for _, d in spans], np.int64)


def of(intervals: Intervals) -> set[int]:
    return {t for s, e in zip(intervals.start.tolist(), intervals.end.tolist(), strict=True) for t in range(s, e)}


@given(SPANS)
def test_merge_is_the_union_in_sorted_disjoint_pieces(spans: list[tuple[int, int]]) -> None:
    merged = merge(*columns(spans))
    assert of(merged) == points(spans)
    assert merged.length == len(points(spans))
    assert (merged.end > merged.start).all()
    assert (merged.start[1:] > merged.end[:-1]).all()
    assert union_length(*columns(spans)) == merged.length
    in_time = sorted(spans)
    assert merge(*columns(in_time)).start.tolist() == merged.start.tolist()
    assert merge(*columns(in_time)).end.tolist() == merged.end.tolist()
    assert union_length(*columns(in_time)) == merged.length


@given(SPANS, SPANS)
def test_covered_intersection_and_union_of_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    first, second = merge(*columns(a)), merge(*columns(b))
    assert of(merge_all([first, second])) == points(a) | points(b)
    assert of(intersect(first, second)) == points(a) & points(b)
    assert overlap_length(first, second) == len(points(a) & points(b))
    start, end = columns(b)
    expected = [len(points([span]) & points(a)) for span in b]
    assert covered(first, start, end).tolist() == expected


@given(SPANS, st.integers(-40, 0), st.integers(1, 90))
def test_gaps_are_what_is_left_of_a_window(spans: list[tuple[int, int]], start: int, length: int) -> None:
    left = gaps(merge(*columns(spans)), start, start + length)
    assert of(left) == set(range(start, start + length)) - points(spans)


@given(SPANS)
def test_depth_time_counts_every_nanosecond_once(spans: list[tuple[int, int]]) -> None:
    expected: dict[int, int] = {}
    for t in points(spans):
        depth = sum(start <= t < start + dur for start, dur in spans)
        expected[depth] = expected.get(depth, 0) + 1
    assert depth_time(*columns(spans)) == expected


def test_epoch_nanoseconds_stay_exact() -> None:
    base = 1_795_979_313_826_630_896
    start = np.array([base, base + 1, base + 10], np.int64)
    assert merge(start, start + 3).length == 7


def test_nothing_in_nothing_out() -> None:
    none = np.empty(0, np.int64)
    assert merge(none, none) is EMPTY
    assert merge_all([]) is EMPTY
    assert covered(EMPTY, none, none).tolist() == []
    assert of(intersect(EMPTY, EMPTY)) == set()
