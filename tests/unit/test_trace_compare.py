"""A against B: a waterfall that adds up to the wall difference, whatever is compared with whatever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.errors import UsageError
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.trace.api import load_trace
from dsv4lab.trace.compare import Comparison, compare

ROOT = Path(__file__).resolve().parents[2]
TRACES = sorted(p for p in (ROOT / "traces").iterdir() if p.suffix in (".gz", ".csv", ".db"))
Row = tuple[str, int, int, int, int]


def build(rows: list[Row]) -> Timeline:
    """Rows of ``(name, start, dur, stream, step)``."""
    name, start, dur, stream, step = zip(*rows, strict=True)
    names = list(dict.fromkeys(name))
    return Timeline.build(
        start_ns=start,
        dur_ns=dur,
        stream=stream,
        step=step,
        name=[names.index(n) for n in name],
        names=names,
        streams=("main", "side0"),
        main_stream="main",
    )


def adds_up(found: Comparison) -> None:
    assert sum(bar.a_ns for bar in found.waterfall) == found.a.wall_ns
    assert sum(bar.b_ns for bar in found.waterfall) == found.b.wall_ns
    assert sum(bar.delta_ns for bar in found.waterfall) == found.b.wall_ns - found.a.wall_ns


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["gemm", "indexer_topk", "compressor.gemm", "ncclAllReduce"]),
        st.integers(0, 80),
        st.integers(0, 20),
        st.integers(0, 1),
        st.integers(-1, 2),
    ),
    min_size=1,
    max_size=12,
)


@given(ROWS, ROWS)
def test_the_waterfall_adds_up(a: list[Row], b: list[Row]) -> None:
    adds_up(compare(build(a), build(b)))


@pytest.mark.parametrize("a", TRACES, ids=lambda p: p.name[:12])
@pytest.mark.parametrize("b", TRACES, ids=lambda p: p.name[:12])
def test_the_waterfall_adds_up_between_any_two_traces(a: Path, b: Path) -> None:
    found = compare(load_trace(a), load_trace(b))
    adds_up(found)
    json.dumps(found.to_json())


def test_overlap_moves_work_and_its_gain_is_where_it_should_be() -> None:
    off = build([("gemm", 0, 100, 0, 0), ("compressor.gemm", 100, 40, 0, 0), ("gemm", 140, 60, 0, 0)])
    hip = build([("gemm", 0, 110, 0, 0), ("compressor.gemm", 10, 45, 1, 0), ("gemm", 110, 60, 0, 0)])
    found = compare(off, hip, labels=("off", "hip"))
    assert (found.a.wall_ns, found.b.wall_ns) == (200, 170)
    assert (found.b.main_busy_ns, found.b.side_busy_ns, found.b.hidden_ns) == (170, 45, 45)
    bars = {bar.what: bar.delta_ns for bar in found.waterfall if bar.delta_ns}
    assert bars == {"work: compressor": 5, "work: GEMM": 10, "overlap between streams": -45}
    assert [w.name for w in found.moved] == ["compressor.gemm"]
    assert [(w.name, w.contention_ns) for w in found.slower] == [("gemm", 10)]
    assert found.unmatched == ()
    assert sum(found.table().column("delta_ns")) == -30
    assert found.table("sides").column("label") == ["off", "hip"]
    assert found.table("moved").column("name") == ["compressor.gemm"]
    with pytest.raises(UsageError, match="waterfall, steps, work"):
        found.table("colors")


def test_steps_are_paired_by_order_within_their_mode_and_the_rest_is_left_out() -> None:
    a = build([("gemm", 0, 10, 0, 0), ("gemm", 100, 10, 0, 1), ("gemm", 200, 10, 0, 2)])
    b = build([("gemm", 0, 12, 0, 7), ("gemm", 50, 14, 0, 8)])
    found = compare(a, b)
    assert [(p.a_label, p.b_label, p.delta_ns) for p in found.steps] == [
        ("step 0", "step 7", 2),
        ("step 1", "step 8", 4),
    ]
    assert found.aligned == "2 paired steps"
    assert found.notes == ("A: 1 steps without a partner are left out",)
    assert (found.a.wall_ns, found.b.wall_ns) == (20, 26)


def test_work_is_matched_by_name_never_by_position() -> None:
    a = build([("x", 0, 10, 0, 0), ("y", 10, 10, 0, 0), ("void k<float, 2>(int)", 20, 5, 0, 0)])
    b = build([("y", 0, 10, 0, 0), ("z", 10, 10, 0, 0), ("void k<half, 8>(int)", 20, 6, 0, 0)])
    found = compare(a, b)
    assert {w.name: w.delta_ns for w in found.work} == {"y": 0, "void k<float, 2>(int)": 1}
    assert {(u.side, u.name) for u in found.unmatched} == {("A", "x"), ("B", "z")}


def test_a_trace_against_itself_is_all_zero() -> None:
    trace = load_trace(ROOT / "traces/rocm_mi300x_sglang_decode_hipgraph.pt.trace.json.gz")
    found = trace.compare(trace)
    assert not any(bar.delta_ns for bar in found.waterfall)
    assert found.moved == found.slower == found.unmatched == ()
