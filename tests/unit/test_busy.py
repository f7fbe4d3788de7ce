"""Busy table and queue occupancy against slow, obvious versions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.errors import UsageError
from dsv4lab.timeline import occupancy as occupancy_module
from dsv4lab.timeline import threads
from dsv4lab.timeline.busy import QUEUES_ONLY, UNKNOWN_STREAM, summarise
from dsv4lab.timeline.occupancy import occupancy, occupancy_bins, queue_depth
from dsv4lab.timeline.timeline import Kind, Timeline
from dsv4lab.viz.queue_occupancy import queue_occupancy_sheet

ROWS = st.lists(
    st.tuples(
        st.integers(0, 80),
        st.integers(0, 20),
        st.integers(-1, 2),
        st.integers(-1, 1),
        st.sampled_from([Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.HOST, Kind.ANNOTATION]),
    ),
    max_size=14,
)
Row = tuple[int, int, int, int, Kind]


def timeline(rows: list[Row]) -> Timeline:
    start, dur, stream, queue, kind = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    return Timeline.build(
        start_ns=start,
        dur_ns=dur,
        stream=stream,
        queue=queue,
        kind=[int(k) for k in kind],
        name=[0] * len(rows),
        names=["k"],
        streams=["a", "b", "c"],
        queues=["q0", "q1"],
    )


def points(rows: list[Row]) -> set[int]:
    return {t for start, dur, *_ in rows for t in range(start, start + dur)}


@given(ROWS)
def test_summary_equals_the_definitions(rows: list[Row]) -> None:
    busy = [r for r in rows if r[4] <= Kind.MEMSET]
    got = summarise(timeline(rows))
    assert got.union_busy_ns == len(points(busy))
    by_queue = bool(busy) and all(r[2] == -1 for r in busy)
    lanes: dict[int, list[Row]] = {}
    for row in busy:
        lanes.setdefault(row[3] if by_queue else row[2], []).append(row)
    assert got.sum_busy_ns == sum(len(points(lane)) for lane in lanes.values())
    assert got.sum_dur_ns == sum(r[1] for r in busy)
    assert got.wall_ns == (max(r[0] + r[1] for r in busy) - min(r[0] for r in busy) if busy else 0)
    if busy:
        main = max(len(points(lane)) for lane in lanes.values())
        candidates = [k for k, lane in lanes.items() if len(points(lane)) == main]
        hidden = {
            m: sum(len(points(lane) & points(lanes[m])) for k, lane in lanes.items() if k != m) for m in candidates
        }
        assert got.hidden_ns in hidden.values()
    assert (QUEUES_ONLY in got.warnings) == by_queue
    assert (UNKNOWN_STREAM in got.warnings) == (not by_queue and any(r[2] == -1 for r in busy))
    assert sum(s.events for s in got.streams) == (0 if by_queue else len(busy))


@given(ROWS, st.integers(0, 15))
def test_occupancy_counts_packets_at_every_moment(rows: list[Row], early: int) -> None:
    line = timeline(rows)
    queued = np.where(line.busy_mask, line.start_ns - early, -1)
    line = Timeline.build(
        **{
            **{c: getattr(line, c) for c in ("start_ns", "dur_ns", "stream", "queue", "kind", "name")},
            "queued_ns": queued,
            "names": line.names,
            "streams": line.streams,
            "queues": line.queues,
        }
    )
    got = occupancy(line)
    by_queue = bool((line.queue != -1).any())
    for at, label in enumerate(got.queues):
        lane = line.queues.index(label) if by_queue else line.streams.index(label.removeprefix("stream "))
        ids = line.queue if by_queue else line.stream
        mask = line.busy_mask & (ids == lane)
        start, end, entered = line.start_ns[mask], line.end_ns[mask], queued[mask]
        entered = np.where(entered == -1, start, entered)
        for cell, edge in enumerate(got.edges_ns[:-1].tolist()):
            assert got.running[at, cell] == ((start <= edge) & (edge < end)).sum()
            assert got.waiting[at, cell] == ((entered <= edge) & (edge < start)).sum()


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=25))
def test_the_depth_of_a_queue_is_counted_at_every_moment(packets: list[tuple[int, int, int]]) -> None:
    entered = np.array([q for q, _, _ in packets])
    start = entered + np.array([w for _, w, _ in packets])
    line = Timeline.build(
        start_ns=start,
        dur_ns=[d for _, _, d in packets],
        queued_ns=entered,
        stream=[0] * len(packets),
        queue=[0] * len(packets),
        name=[0] * len(packets),
        names=["k"],
        streams=["a"],
        queues=["q"],
    )
    (depth,) = queue_depth(line)
    assert depth.most_waiting == max(int(((entered <= t) & (start > t)).sum()) for t in range(80))
    span = max(summarise(line).wall_ns, 1)
    assert depth.mean_waiting * span == pytest.approx((start - entered).sum())
    assert depth.mean_running * span == pytest.approx(line.dur_ns.sum())


@given(ROWS)
def test_threads_give_the_same(rows: list[Row]) -> None:
    line = timeline(rows)
    alone = summarise(line), queue_depth(line), occupancy_bins(line, 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "WORTH_ROWS", 0)
        patch.setattr(threads, "usable_cores", lambda: 3)
        assert (summarise(line), queue_depth(line)) == alone[:2]
        assert (occupancy_bins(line, 16).waiting == alone[2].waiting).all()


def test_more_packets_than_steps_can_hold_are_sampled_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    line = timeline([(10 * n, 4, 0, n % 2, Kind.KERNEL) for n in range(30)])
    assert occupancy(line).exact
    monkeypatch.setattr(occupancy_module, "EXACT_PACKETS", 20)
    sampled = occupancy(line)
    assert not sampled.exact
    assert sampled.running[:, 0].tolist() == [1, 0]
    assert "sampled" in queue_occupancy_sheet(sampled).head.subtitle


def test_a_barrier_waits_and_never_runs() -> None:
    line = Timeline.build(
        start_ns=[0, 10, 30],
        dur_ns=[10, 20, 5],
        stream=[0, 0, 0],
        queue=[0, 0, 0],
        kind=[int(Kind.KERNEL), int(Kind.WAIT), int(Kind.KERNEL)],
        name=[0, 0, 0],
        names=["k"],
        streams=["main"],
        queues=["0"],
    )
    got = occupancy(line)
    assert got.edges_ns.tolist() == [0, 10, 30, 35]
    assert got.running.tolist() == [[1, 0, 1]]
    assert got.waiting.tolist() == [[0, 1, 0]]
    assert summarise(line).union_busy_ns == 15


def test_bins_sample_the_exact_step_functions() -> None:
    line = Timeline.build(
        start_ns=np.arange(0, 1000, 10),
        dur_ns=np.full(100, 7),
        stream=np.arange(100) % 2,
        queue=np.arange(100) % 2,
        name=np.zeros(100),
        names=["k"],
        streams=["a", "b"],
        queues=["0", "1"],
    )
    exact, cells = occupancy(line), occupancy_bins(line, 64)
    at = np.searchsorted(exact.edges_ns, cells.edges_ns[:-1], side="right") - 1
    assert (cells.running == exact.running[:, at]).all()


def test_main_is_the_named_stream_then_the_recorded_then_the_busiest() -> None:
    rows: list[Row] = [(0, 10, 0, -1, Kind.KERNEL), (5, 20, 1, -1, Kind.KERNEL)]
    assert [s.stream for s in summarise(timeline(rows)).streams] == ["b", "a"]
    named = summarise(timeline(rows), main="a")
    assert [(s.stream, s.role, s.hidden_ns) for s in named.streams] == [("a", "main", 0), ("b", "side", 5)]
    with pytest.raises(UsageError, match="main stream 'z' is not in the timeline; it has: a, b"):
        summarise(timeline(rows), main="z")


def test_every_rank_has_its_own_main_stream() -> None:
    line = Timeline.build(
        start_ns=[0, 0, 100, 100],
        dur_ns=[9, 5, 2, 8],
        stream=[0, 1, 2, 3],
        rank=[0, 0, 1, 1],
        name=[0] * 4,
        names=["k"],
        streams=["rank0/7", "rank0/8", "rank1/7", "rank1/8"],
    )
    assert {s.stream for s in summarise(line).streams if s.role == "main"} == {"rank0/7", "rank1/8"}
    assert {s.stream for s in summarise(line, main="7").streams if s.role == "main"} == {"rank0/7", "rank1/7"}
    assert summarise(line).hidden_ns == 5 + 2


def test_an_empty_timeline_has_an_empty_table() -> None:
    got = summarise(timeline([]))
    assert (got.wall_ns, got.union_busy_ns, got.concurrency, got.streams) == (0, 0, 0.0, ())
    assert occupancy(timeline([])).edges_ns.tolist() == []
