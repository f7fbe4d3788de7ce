from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.engine.step_busy import busy_of, busy_of_each
from dsv4lab.overlap.run_record import RunRecord, timeline_of
from dsv4lab.timeline.program import ProgramOp, StreamProgram

STREAMS = ("main", "side0", "side1")


def program(streams: list[str]) -> StreamProgram:
    ops = tuple(ProgramOp(i, f"op{i}", 0, s, (), (), (), ()) for i, s in enumerate(streams))
    return StreamProgram(ops, STREAMS, "p", "decode", 1)


def record(of: StreamProgram, starts: list[int], lengths: list[int], at: int) -> RunRecord:
    start = at + np.array(starts, np.int64)
    return RunRecord(of, dict.fromkeys(STREAMS, 0), start, start, start, start + np.array(lengths, np.int64))


ROWS = st.lists(st.tuples(st.sampled_from(STREAMS), st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=12)


@given(ROWS, st.integers(1, 4), st.integers(0, 60))
def test_many_at_once_are_as_each_alone(rows: list[tuple[str, int, int]], forwards: int, apart: int) -> None:
    of = program([s for s, _, _ in rows])
    records = [record(of, [a for _, a, _ in rows], [b for _, _, b in rows], n * apart) for n in range(forwards)]
    assert busy_of_each(records) == [busy_of(one) for one in records]


@given(st.lists(st.sampled_from(STREAMS), min_size=1, max_size=12), st.integers(1, 5))
def test_streams_in_turn_are_as_their_timeline(streams: list[str], forwards: int) -> None:
    streams = ["main", *streams]
    of = program(streams)
    ends: dict[str, int] = {}
    starts = []
    for i, stream in enumerate(streams):
        starts.append(max(ends.get(stream, 0), 3 * i))
        ends[stream] = starts[-1] + 4
    records = [record(of, starts, [4] * len(streams), 1000 * n) for n in range(forwards)]
    for one, (busy, hidden) in zip(records, busy_of_each(records), strict=True):
        summary = timeline_of([one]).stream_busy(main="main")
        assert {s.stream: s.busy_ns for s in summary.streams} == {s: b for s, b in busy.items() if b}
        assert hidden == summary.hidden_ns


def test_programs_may_change_between_forwards() -> None:
    one, two = program(["main", "side0"]), program(["main"])
    records = [record(one, [0, 1], [3, 4], 0), record(two, [0], [5], 10), record(one, [0, 1], [3, 4], 20)]
    assert busy_of_each(records) == [busy_of(r) for r in records]
    assert busy_of_each([]) == []
