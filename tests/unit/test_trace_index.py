"""The trace explorer's numbers against counting them one by one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4lab.errors import UsageError
from dsv4lab.timeline.busy import summarise
from dsv4lab.timeline.timeline import Kind, Timeline
from dsv4lab.trace.analyse.categories import CATEGORIES, category_index
from dsv4lab.trace.analyse.idle import idle_gaps
from dsv4lab.viz.downsample import bin_edges
from dsv4lab.viz.trace_facts import (
    found_rows,
    next_row,
    paired_steps,
    path_rows,
    row_facts,
    step_marks,
    window_busy,
    window_gaps,
    window_idle,
    window_names,
)
from dsv4lab.viz.trace_index import RANGING, WAITING, TraceIndex
from dsv4lab.viz.tracks import DEEPEST

NAMES = ("rms_norm", "gemm", "indexer_topk", "memcpy", "sparse_decode")
ROW = st.tuples(
    st.integers(0, 200),  # start
    st.integers(0, 30),  # duration
    st.integers(-1, 2),  # stream
    st.integers(0, 4),  # name
    st.sampled_from([0, 0, 0, 1, 3, 4, 5]),  # kind
    st.integers(0, 1),  # rank
)
ROWS = st.lists(ROW, max_size=30)
BASE = 5 * 10**15


def timeline(rows: list[tuple[int, ...]], **more: Any) -> Timeline:
    start, dur, stream, name, kind, rank = (np.array([r[i] for r in rows], np.int64) for i in range(6))
    device = kind < 4
    given_streams = np.where(device, np.where(stream < 0, -1, stream + 3 * rank), -1)
    return Timeline.build(
        start_ns=start + BASE, dur_ns=dur, stream=given_streams, name=name, names=NAMES, kind=kind, rank=rank,
        streams=[f"rank{r}/{s}" for r in (0, 1) for s in range(3)], **more,
    )  # fmt: skip


def union(spans: list[tuple[int, int]], low: int, high: int) -> int:
    return sum(any(a <= t < b for a, b in spans) for t in range(low, high))


@settings(max_examples=40)
@given(ROWS, st.integers(0, 220), st.integers(1, 60), st.integers(1, 9))
def test_cells_and_slices_are_what_counting_says(
    rows: list[tuple[int, ...]], start: int, length: int, columns: int
) -> None:
    line = timeline(rows)
    index = TraceIndex(line)
    edges = bin_edges(BASE + start, BASE + start + length, columns)
    found = index.mark(line.name == 1)
    many = index.window(edges, index.order, found=found, most_slices=0)
    single = index.window(edges, index.order, found=found)
    bins = [(int(a) - BASE, int(b) - BASE) for a, b in pairwise(edges)]
    for at, track in enumerate(many.cells.tracks):
        own = index.placed.rows[index.placed.first[track] : index.placed.first[track + 1]]
        counted = [(rows[r][0], rows[r][0] + rows[r][1]) for r in own if rows[r][4] != 3]
        for column, (low, high) in enumerate(bins):
            share = union(counted, low, high) / (high - low)
            assert many.cells.share[at, column] == int(np.ceil(255 * share))
            assert many.cells.count[at, column] == sum(low <= a < high for a, _ in counted)
            time: dict[int, int] = {}
            first, last = bins[column // 2 * 2][0], bins[min(column // 2 * 2 + 1, len(bins) - 1)][1]
            for r in own:
                inside = max(0, min(rows[r][0] + rows[r][1], last) - max(rows[r][0], first))
                tone = int(index.colored("category")[0][index.positions[r]])
                time[tone] = time.get(tone, 0) + (0 if rows[r][4] == 3 and counted else inside)
            assert time[int(many.cells.tone[at, column])] == max(time.values())
            hit = any(
                rows[r][3] == 1
                and (low <= rows[r][0] < high or max(rows[r][0], low) < min(rows[r][0] + rows[r][1], high))
                for r in own
            )
            assert many.cells.marked[at, column] == hit
    shown = {r for r in range(len(rows)) if rows[r][0] < start + length and rows[r][0] + rows[r][1] > start}
    assert set(single.slices.row.tolist()) == shown
    assert {int(r) for r, f in zip(single.slices.row, single.slices.flags, strict=True) if f & 1} == {
        r for r in shown if rows[r][3] == 1
    }


@settings(max_examples=40)
@given(ROWS, st.integers(0, 200), st.integers(1, 250))
def test_the_table_of_a_window_is_the_busy_table_of_what_lies_in_it(
    rows: list[tuple[int, ...]], start: int, length: int
) -> None:
    rows = [(*r[:2], max(r[2], 0), *r[3:]) for r in rows]  # the summary has one lane for all ranks' unnamed rows
    line = timeline(rows)
    table = window_busy(TraceIndex(line), BASE + start, BASE + start + length)
    cut = [
        (max(r[0], start), max(0, min(r[0] + r[1], start + length) - max(r[0], start)), *r[2:])
        for r in rows
        if r[0] < start + length and r[0] + r[1] > start
    ]
    expected = summarise(timeline(cut))
    assert (table.union_busy_ns, table.sum_busy_ns) == (expected.union_busy_ns, expected.sum_busy_ns)
    assert table.concurrency == expected.concurrency
    assert sum(t.sum_dur_ns for t in table.tracks) == expected.sum_dur_ns
    assert sum(n.ns for n in window_names(TraceIndex(line), BASE + start, BASE + start + length)) == expected.sum_dur_ns


@settings(max_examples=40)
@given(ROWS)
def test_the_whole_window_agrees_with_the_summary(rows: list[tuple[int, ...]]) -> None:
    line = timeline(rows)
    index = TraceIndex(line)
    table = window_busy(index, *index.span_ns)
    expected = {s.stream: (s.busy_ns, s.role, s.events) for s in summarise(line).streams if s.busy_ns}
    busy = {t.label: (t.busy_ns, t.role, t.events) for t in table.tracks if t.busy_ns and t.label != "unknown"}
    assert {k: v[0] for k, v in busy.items()} == {k: v[0] for k, v in expected.items() if k != "unknown"}


@settings(max_examples=40)
@given(ROWS)
def test_no_two_slices_of_a_line_overlap_unless_it_is_the_last(rows: list[tuple[int, ...]]) -> None:
    placed = TraceIndex(timeline(rows)).placed
    for track in range(len(placed.tracks)):
        part = slice(int(placed.first[track]), int(placed.first[track + 1]))
        for line in range(DEEPEST - 1):
            own = placed.sub[part] == line
            assert (placed.start[part][own][1:] >= placed.end[part][own][:-1]).all()


def test_the_running_curve_adds_tracks_and_the_busy_one_unites_them() -> None:
    line = timeline([(0, 10, 0, 0, 0, 0), (5, 10, 1, 0, 0, 0), (30, 10, 1, 0, 3, 0)])
    window = TraceIndex(line).window(np.arange(BASE, BASE + 41, 10), [0, 1])
    np.testing.assert_allclose(window.running, [1.5, 0.5, 0, 0])
    np.testing.assert_allclose(window.busy, [1.0, 0.5, 0, 0])


def test_groupings_and_tones() -> None:
    line = timeline(
        [(0, 5, 0, 0, 0, 0), (2, 5, 1, 1, 0, 0), (3, 2, 0, 2, 3, 0), (0, 9, 0, 3, 5, 0), (1, 1, 0, 4, 4, 1)]
    )
    assert [(t.label, t.kind, t.role) for t in (TraceIndex(line).tracks[i] for i in TraceIndex(line).order)] == [
        ("ranges", "ranges", ""),
        ("rank0/0", "device", "main"),
        ("rank0/1", "device", "side"),
        ("host calls", "calls", ""),
    ]
    ranked = TraceIndex(line, "rank")
    assert [t.label for t in ranked.tracks if t.kind == "device"] == ["rank 0"]
    assert TraceIndex(line, main="rank0/1").tracks[TraceIndex(line).device[1]].role == "main"
    tones = TraceIndex(line).colored("category")[0][TraceIndex(line).positions]
    assert tones.tolist()[:3] == [category_index("rms_norm"), category_index("gemm"), WAITING]
    assert tones[3] == RANGING
    for unknown in ({"by": "colour"}, {}):
        with pytest.raises(UsageError, match="takes one of"):
            TraceIndex(line, **unknown).colored("rank")


def test_search_takes_expressions_and_walks_through_what_it_found() -> None:
    line = timeline([(0, 5, 0, 0, 0, 0), (20, 5, 1, 1, 0, 0), (40, 5, 0, 0, 0, 0)])
    index = TraceIndex(line)
    rows = found_rows(line, "^RMS")
    assert rows.tolist() == [True, False, True]
    assert next_row(index, rows, BASE) == 2
    assert next_row(index, rows, BASE + 40, back=True) == 0
    assert next_row(index, rows, BASE + 40) is None
    with pytest.raises(UsageError, match="regular expression"):
        found_rows(line, "(")


def test_steps_pair_by_mode_and_gaps_keep_their_causes() -> None:
    rows = [(0, 10, 0, 0, 0, 0), (15, 10, 0, 1, 0, 0), (60, 10, 0, 0, 0, 0), (75, 5, 0, 1, 0, 0)]
    line = timeline(
        rows, step=[1, 1, 2, 2], queued_ns=np.array([0, 1, 50, 61]) + BASE, meta={"step_modes": {"2": "decode"}}
    )
    marks = step_marks(line)
    assert [(m.label, m.mode, m.start_ns - BASE, m.end_ns - BASE) for m in marks] == [
        ("step 1", "unknown", 0, 25),
        ("step 2", "decode", 60, 80),
    ]
    assert paired_steps(marks, marks[1:]) == [(1, 0)]
    index = TraceIndex(line)
    assert sorted(window_gaps(index, *index.span_ns), key=lambda g: g.start_ns) == idle_gaps(line)
    low, high = BASE + 30, BASE + 65
    inner = [g for g in idle_gaps(line) if g.start_ns < high and g.start_ns + g.dur_ns > low]
    assert sorted(window_gaps(index, low, high), key=lambda g: g.start_ns) == inner
    assert len(window_gaps(index, low, high, 1)) == 1
    time: dict[str, int] = {}
    for gap in inner:
        within = min(gap.start_ns + gap.dur_ns, high) - max(gap.start_ns, low)
        time[gap.cause] = time.get(gap.cause, 0) + within
    assert window_idle(index, low, high) == time
    shares = index.idle_shares(np.array([low, low + 10, high]))
    assert shares.sum(axis=0).tolist()[0] >= 255


def test_the_critical_path_and_the_facts_of_a_row() -> None:
    line = timeline(
        [(0, 10, 0, 0, 0, 0), (10, 10, 1, 1, 0, 0), (0, 30, 0, 2, 5, 0), (12, 2, 2, 3, 1, 0)], layer=[3, -1, -1, -1]
    )
    index = TraceIndex(line)
    found = path_rows(index, *index.span_ns)
    assert found is not None
    assert found[0].tolist() == [True, True, False, False]
    assert sum(found[1].values()) == 20
    facts = dict(row_facts(index, 0))
    assert (facts["name"], facts["layer"], facts["inside"], facts["stream"]) == (
        "rms_norm",
        "3",
        "indexer_topk",
        "rank0/0",
    )
    assert facts["category"] == CATEGORIES[category_index("rms_norm")]
    assert dict(row_facts(index, 3))["kind"] == Kind.MEMCPY.name.lower()
    with pytest.raises(UsageError, match=r"0\.\.3"):
        row_facts(index, 4)


def test_an_empty_timeline_has_a_picture_too() -> None:
    index = TraceIndex(Timeline.empty())
    assert index.span_ns == index.busy_span_ns == (0, 1)
    window = index.window(np.array([0, 1]), [])
    assert window.cells.share.shape == (0, 1)
    assert window_busy(index, 0, 1).tracks == ()
    assert step_marks(index.timeline) == []
