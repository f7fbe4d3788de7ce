from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.viz.downsample import bin_edges, bin_slices, bin_steps, group_size, sub_lanes

SLICES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 500), st.integers(0, 90), st.integers(0, 3)), max_size=40)


def columns(slices: list[tuple[int, int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(slices, np.int64).reshape(-1, 4)
    return table[:, 0].astype(np.int32), table[:, 1], table[:, 2], table[:, 3].astype(np.int32)


@given(st.integers(-1000, 10**12), st.integers(0, 10**10), st.integers(1, 700))
def test_edges_increase_and_span_the_range(start: int, span: int, bins: int) -> None:
    edges = bin_edges(start, start + span, bins)
    assert edges[0] == start
    assert edges[-1] == start + max(span, 1)
    assert 2 <= len(edges) <= bins + 1
    assert (np.diff(edges) > 0).all()


@given(SLICES, st.integers(1, 50))
def test_binned_slices_keep_every_nanosecond(slices: list[tuple[int, int, int, int]], bins: int) -> None:
    lane, start, dur, name = columns(slices)
    edges = bin_edges(0, 600, bins)
    grid = bin_slices(lane, start, dur, name, 3, edges)
    kept = (grid.share * np.diff(edges)).sum(axis=1)
    for one in range(3):
        assert round(kept[one]) == int(dur[lane == one].sum())
    assert grid.count.sum() == len(slices)
    covered = np.isin(np.arange(3), lane[dur > 0])
    assert ((grid.top >= 0).any(axis=1) >= covered).all()


def test_the_leading_name_of_a_cell_has_most_time() -> None:
    lane = np.zeros(3, np.int32)
    grid = bin_slices(
        lane, np.array([0, 10, 40]), np.array([10, 30, 5]), np.array([7, 8, 7], np.int32), 1, bin_edges(0, 100, 2)
    )
    assert grid.top.tolist() == [[8, -1]]
    assert grid.share.tolist() == [[0.9, 0.0]]


def test_slices_outside_the_edges_count_for_nothing() -> None:
    lane = np.zeros(2, np.int32)
    grid = bin_slices(
        lane, np.array([-50, 200]), np.array([20, 20]), np.array([0, 0], np.int32), 1, bin_edges(0, 100, 4)
    )
    assert grid.share.sum() == 0
    assert grid.count.sum() == 0


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5)), min_size=1, max_size=30), st.integers(1, 20))
def test_binned_steps_keep_the_area_and_the_peak(steps: list[tuple[int, int]], bins: int) -> None:
    edges = np.concatenate([[0], np.cumsum([width for width, _ in steps])]).astype(np.int64)
    values = np.array([[value for _, value in steps]], np.int32)
    new = bin_edges(0, int(edges[-1]), bins)
    mean, peak = bin_steps(edges, values, new)
    assert np.isclose((mean * np.diff(new)).sum(), (values * np.diff(edges)).sum())
    assert peak.max() == values.max()
    assert (mean <= peak + 1e-9).all()


@given(st.integers(0, 10**8), st.integers(1, 5000))
def test_groups_fit(items: int, most: int) -> None:
    size = group_size(items, most)
    assert -(-items // size) <= most
    assert size == 1 or -(-items // (size // 2)) > most


@given(SLICES)
def test_sub_lanes_never_overlap(slices: list[tuple[int, int, int, int]]) -> None:
    lane, start, dur, _ = columns(slices)
    sub, depth = sub_lanes(lane, start, start + dur)
    assert (sub < depth).all()
    for i in range(len(lane)):
        for j in range(i):
            if lane[i] == lane[j] and sub[i] == sub[j]:
                assert start[i] >= start[j] + dur[j] or start[j] >= start[i] + dur[i]
