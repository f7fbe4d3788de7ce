"""Hazards and waits: exact on small cases, sufficient and minimal on random ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.overlap.scoreboard import cross_stream_waits, hazards

RESOURCES = "abcd"
accesses = st.lists(
    st.tuples(st.sets(st.sampled_from(RESOURCES), max_size=3), st.sets(st.sampled_from(RESOURCES), max_size=2)),
    min_size=1,
    max_size=14,
)


def test_three_kinds_of_hazard() -> None:
    assert hazards([((), ("a",)), (("a",), ("b",)), ((), ("a",)), ((), ("b",))]) == [(), (0,), (0, 1), (1,)]


def test_in_place_update_depends_on_writer_and_readers() -> None:
    assert hazards([((), ("a",)), (("a",), ("b",)), (("a",), ("a",)), (("a",), ())]) == [(), (0,), (0, 1), (2,)]


def test_independent_resources_have_no_edge() -> None:
    assert hazards([((), ("kv.0.ring",)), ((), ("kv.0.rows",))]) == [(), ()]


def test_a_wait_that_another_wait_implies_is_left_out() -> None:
    streams = ["main", "side0", "main", "side0"]
    deps = [(), (0,), (1,), (0, 2)]
    assert cross_stream_waits(streams, deps, range(4)) == [(), (0,), (1,), (2,)]


def test_issue_before_a_dependency_is_refused() -> None:
    with pytest.raises(ValueError, match="op 1 is issued before op 0"):
        cross_stream_waits(["main", "side0"], [(), (0,)], [1, 0])


def _brute_force_edges(ops: list[tuple[set[str], set[str]]]) -> set[tuple[int, int]]:
    return {
        (i, j)
        for j, (reads, writes) in enumerate(ops)
        for i, (earlier_reads, earlier_writes) in enumerate(ops[:j])
        if earlier_writes & (reads | writes) or earlier_reads & writes
    }


def _closure(n: int, edges: set[tuple[int, int]]) -> set[tuple[int, int]]:
    reach = [{i} for i in range(n)]
    for j in range(n):
        for i, k in sorted(edges):
            if k == j:
                reach[j] |= reach[i]
    return {(i, j) for j in range(n) for i in reach[j] if i != j}


@given(accesses)
def test_hazards_order_every_conflicting_pair(ops: list[tuple[set[str], set[str]]]) -> None:
    found = hazards([(sorted(r), sorted(w)) for r, w in ops])
    direct = {(d, j) for j, deps in enumerate(found) for d in deps}
    assert direct <= _brute_force_edges(ops)
    assert _closure(len(ops), direct) == _closure(len(ops), _brute_force_edges(ops))


@given(accesses, st.data())
def test_waits_with_stream_order_imply_all_dependencies(
    ops: list[tuple[set[str], set[str]]], data: st.DataObject
) -> None:
    streams = [data.draw(st.sampled_from(["main", "side0", "side1"])) for _ in ops]
    deps = hazards([(sorted(r), sorted(w)) for r, w in ops])
    waits = cross_stream_waits(streams, deps, range(len(ops)))
    kept = {(w, j) for j, ws in enumerate(waits) for w in ws}
    same_stream = {(i, j) for j in range(len(ops)) for i in range(j) if streams[i] == streams[j]}
    assert all(streams[w] != streams[j] for w, j in kept)
    reachable = _closure(len(ops), kept | same_stream)
    assert {(d, j) for j, ds in enumerate(deps) for d in ds} <= reachable
    for edge in kept:
        assert edge not in _closure(len(ops), (kept - {edge}) | same_stream)
