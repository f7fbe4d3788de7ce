from __future__ import annotations

import numpy as np
import pytest

from dsv4lab.errors import UsageError
from dsv4lab.timeline.program import ProgramOp, StreamProgram
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.viz.flows import given_pairs, launches, program_pairs, wait_pairs


def line(**columns: object) -> Timeline:
    return Timeline.build(names=("a", "b"), streams=("main", "side0"), **columns)  # type: ignore[arg-type]


def op(index: int, waits: tuple[int, ...]) -> ProgramOp:
    return ProgramOp(index, "op", 0, "main", waits, waits, (), ())


def test_a_program_gives_its_waits_in_every_step() -> None:
    recorded = line(
        start_ns=[0, 10, 20, 100, 110, 115, 130], dur_ns=[5] * 7, stream=[0, 1, 0, 0, 1, 1, 0], name=[0] * 7,
        step=[1, 1, 1, 2, 2, 2, 2], correlation=[0, 1, 2, 0, 1, -1, 2], kind=[0, 0, 0, 0, 0, 3, 0],
    )  # fmt: skip
    program = StreamProgram((op(0, ()), op(1, (0,)), op(2, (1,))), ("main", "side0"), "hip", "decode", 1)
    assert program_pairs(recorded, program).tolist() == [[0, 1], [1, 2], [3, 4], [4, 6]]
    assert program_pairs(recorded.select(np.array([0, 2])), program).tolist() == []
    assert program_pairs(Timeline.empty(), program).tolist() == []


def test_a_wait_was_released_by_the_last_row_of_another_stream() -> None:
    recorded = line(
        start_ns=[0, 0, 30, 32, 5],
        dur_ns=[20, 30, 2, 9, 25],
        stream=[0, 1, 0, 1, 0],
        name=[0] * 5,
        kind=[0, 0, 0, 0, 3],
    )
    assert wait_pairs(recorded).tolist() == [[1, 2]]
    assert len(wait_pairs(Timeline.empty())) == 0


def test_a_call_launches_all_rows_of_its_id() -> None:
    recorded = line(
        start_ns=[0, 10, 20, 30],
        dur_ns=[1] * 4,
        stream=[-1, 0, 1, 0],
        name=[0] * 4,
        kind=[4, 0, 0, 0],
        correlation=[7, 7, 7, 8],
    )
    assert launches(recorded, 0) == [1, 2]
    assert launches(recorded, 2) == [0]
    assert launches(recorded, 3) == []


def test_pairs_outside_the_timeline_are_refused() -> None:
    assert given_pairs(line(start_ns=[0, 1], dur_ns=[1, 1], stream=[0, 1], name=[0, 0]), [(0, 1)]).tolist() == [[0, 1]]
    with pytest.raises(UsageError, match="row numbers"):
        given_pairs(Timeline.empty(), [(0, 1)])


def test_waits_of_a_capture_run_from_an_op_s_last_kernel_to_the_next_one_s_first() -> None:
    ops = [
        ("a", "main", ()),
        ("b", "side0", (0,)),
        ("twice", "main", ()),
        ("twice", "side0", (2,)),
        ("c", "main", (1,)),
    ]
    made = tuple(ProgramOp(i, name, -1, on, waits, (), (), ()) for i, (name, on, waits) in enumerate(ops))
    program = StreamProgram(made, ("main", "side0"), "p", "decode", 1)
    names = ("a", "b", "twice", "c", "kernel")
    timeline = Timeline.build(
        start_ns=[0, 1, 2, 3, 4, 5, 6],
        dur_ns=[1] * 7,
        stream=[0, 0, 1, 0, 1, 0, 0],
        name=[4] * 7,
        op=[0, 0, 1, 2, 2, 3, -1],
        step=[5] * 7,
        correlation=[1] * 7,  # of one graph launch
        names=names,
        streams=("main", "side0"),
        meta={"capture": {}},
    )
    assert program_pairs(timeline, program).tolist() == [[1, 2], [2, 5]]
