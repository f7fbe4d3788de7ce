"""Each mechanism on an example small enough to work out by hand: gap 1, barrier packet 1, poll tax 3, signals 5 (host
memory) or 2 (device memory) microseconds, and a host that costs nothing unless a test says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dsv4lab.queues.collectives import arrival_floors, floors_for
from dsv4lab.queues.costs import Machine, machine
from dsv4lab.queues.graph_cuda import lanes
from dsv4lab.queues.graph_hip import depth_first
from dsv4lab.queues.place import place
from dsv4lab.queues.program_json import workload_from_json
from dsv4lab.queues.simulate import Simulated, simulate
from dsv4lab.queues.workload import Workload

COSTS = {
    "gap_us": 1.0, "barrier_us": 1.0, "signal_host_us": 5.0, "signal_device_us": 2.0, "poll_tax_us": 3.0,
    "graph_us": 0.0, "submit_us": 0.0, "graph_submit_us": 0.0, "segment_submit_us": 0.0, "oversubscription_us": 0.0,
    "corun_loss": 0.0,
}  # fmt: skip
HOST, EDGES = "rocm-7.2", "rocm-10+ordering-edges"
Ops = list[tuple[str, str, float, list[str]]]


def by_hand(runtime: str, queues: int = 8, **changes: float) -> Machine:
    return machine("mi355x", runtime, queues, {**COSTS, **changes})


def work(ops: Ops, on: Machine, **top: Any) -> Workload:
    """A workload of ``(name, stream, microseconds, after)``, launched eagerly unless ``top`` says graph."""
    rows = [{"name": n, "stream": s, "duration_us": us, "after": a, "workgroups": 1} for n, s, us, a in ops]
    return workload_from_json({"launch": "eager", "ops": rows, **top}, on)


def spans(run: Simulated) -> dict[str, tuple[float, float]]:
    """Start and end of each op in microseconds."""
    ends = zip(run.workload.names, run.times.start, run.times.end, strict=True)
    return {name: (round(start / 1e3, 6), round(end / 1e3, 6)) for name, start, end in ends}


@pytest.mark.parametrize(("runtime", "second", "side"), [(HOST, (15, 25), (17, 27)), (EDGES, (12, 22), (14, 24))])
def test_an_edge_across_queues(runtime: str, second: tuple[float, float], side: tuple[float, float]) -> None:
    """``a`` runs 1 to 11. ``b`` waits for its signal and a gap; meanwhile ``c`` pays the tax on host signals."""
    on = by_hand(runtime)
    found = spans(simulate(work([("a", "s0", 10, []), ("b", "s1", 10, ["a"]), ("c", "s0", 10, [])], on), on))
    assert found == {"a": (1, 11), "b": side, "c": second}


@pytest.mark.parametrize(("signals", "start"), [(1, 33), (5, 33), (6, 34), (11, 35)])
def test_a_barrier_packet_holds_five_signals(signals: int, start: float) -> None:
    """All producers have long ended when ``c``'s own stream reaches it at 31: it pays its barrier packets and a gap."""
    on = by_hand(EDGES, queues=16)
    ops: Ops = [(f"p{i}", f"s{i}", 10, []) for i in range(signals)]
    ops += [("own", "last", 30, []), ("c", "last", 10, [f"p{i}" for i in range(signals)])]
    assert spans(simulate(work(ops, on), on))["c"][0] == start


def test_no_barrier_is_written_for_what_has_ended_when_the_host_writes() -> None:
    on = by_hand(HOST, submit_us=20.0)
    found = spans(simulate(work([("a", "s0", 10, []), ("b", "s1", 10, ["a"])], on), on))
    assert found == {"a": (21, 31), "b": (41, 51)}


def test_an_edge_within_a_queue_costs_a_packet_and_a_signal() -> None:
    """One queue for both: ``b``'s barrier is behind ``a``, whose signal still has to reach the command processor."""
    on = by_hand(HOST, queues=1)
    found = spans(simulate(work([("a", "s0", 10, []), ("b", "s1", 10, ["a"])], on), on))
    assert found == {"a": (1, 11), "b": (17, 27)}


def test_barrier_bits_and_their_elision() -> None:
    ops: Ops = [("a", "s0", 10, []), ("b", "s1", 10, []), ("c", "s0", 10, [])]
    on = by_hand(EDGES, queues=1)
    assert spans(simulate(work(ops, on), on)) == {"a": (1, 11), "b": (12, 22), "c": (23, 33)}
    elided = replace(on, runtime=replace(on.runtime, barrier_elision=True))
    assert spans(simulate(work(ops, on), elided)) == {"a": (1, 11), "b": (2, 12), "c": (13, 23)}


def test_the_scope_of_the_poll_tax() -> None:
    """``b`` waits on queue 2, ``a`` is on queue 1: another pipe. ``d`` is on queue 6, the waiter's pipe."""
    ops: Ops = [("a", "s0", 10, []), ("b", "s1", 10, ["a2"]), ("d", "s5", 2, []), ("d2", "s5", 2, [])]
    ops.insert(1, ("a2", "s0", 10, []))
    fill: Ops = [(f"f{i}", f"s{i}", 0, []) for i in range(2, 5)]
    for scope, a2, d2 in ((0.0, 15, 7), (1.0, 12, 7)):
        on = by_hand(HOST, poll_scope_pipe=scope)
        run = simulate(work([*ops[:3], *fill, *ops[3:]], on), on)
        assert run.layout.queue_of_lane == (1, 2, 3, 4, 5, 6)
        found = spans(run)
        assert (found["a2"][0], found["d2"][0] - found["d"][0] + 1) == (a2, d2)


def test_the_null_stream_takes_one_of_the_normal_queues() -> None:
    ops: Ops = [(f"k{i}", f"s{i}", 1, []) for i in range(4)]
    shared = machine("mi355x", "rocm-7.2", 4)
    assert place(work(ops, shared), shared).queue_of_lane == (1, 2, 3, 0)  # the fourth stream beside the null stream
    own = machine("mi355x", "rocm-7.14", 4, policy="dynamic2")
    assert place(work(ops, own), own).queue_of_lane == (1, 2, 3, 1)  # its ring is its own: the fourth shares another's


def test_the_fourth_stream_of_pytorch_is_the_first_again() -> None:
    ops: Ops = [("m", "main", 1, []), *((f"k{i}", f"side{i}", 1, []) for i in range(4))]
    on = machine("mi355x", "rocm-10", 4)
    queues = place(work(ops, on), on, torch=True).queue_of_lane
    assert queues[4] == queues[1]
    assert len(set(queues)) == 4


def test_priorities_do_not_share_queues() -> None:
    ops: Ops = [("a", "s0", 10, []), ("b", "s1", 10, [])]
    on = by_hand(EDGES, queues=1)
    assert spans(simulate(work(ops, on), on))["b"] == (12, 22)
    assert spans(simulate(work(ops, on, priorities={"s1": -1}), on))["b"] == (1, 11)


def test_lanes_of_a_cuda_graph() -> None:
    """A join goes on with its first-recorded parent's lane; two layers, side work recorded second, then first."""
    main_first: Ops = [
        ("f0", "main", 1, []), ("m0", "main", 1, []), ("s0", "side0", 1, ["f0"]),
        ("f1", "main", 1, ["s0"]), ("m1", "main", 1, []), ("s1", "side0", 1, ["f1"]), ("end", "main", 1, ["s1"]),
    ]  # fmt: skip
    on = machine("h200")
    assert lanes(work(main_first, on, launch="graph")).of == (0, 0, 1, 0, 0, 1, 0)
    side_first = [main_first[k] for k in (0, 2, 1, 3, 5, 4, 6)]
    found = lanes(work(side_first, on, launch="graph"))
    assert found.of == (0, 0, 1, 0, 2, 0, 2)  # the join went on with s0's lane, so s1 cannot, and opens another
    assert [work(side_first, on).names[i] for i in found.opened_by] == ["f0", "m0", "s1"]


def test_segments_of_a_hip_graph_in_time() -> None:
    """Fork and join: ``s`` is recorded first and keeps slot 0, ``m`` opens slot 1."""
    ops: Ops = [("f", "main", 10, []), ("s", "side0", 10, ["f"]), ("m", "main", 20, []), ("j", "main", 10, ["s"])]
    on = by_hand("rocm-7.14")
    run = simulate(work(ops, on, launch="graph"), on)
    assert run.layout.lanes == (0, 0, 1, 0)
    # m sees f's signal at 16 and starts a gap later; s, in f's queue, pays the tax while m's queue polls
    assert spans(run) == {"f": (1, 11), "s": (15, 25), "m": (17, 37), "j": (43, 53)}


def test_collectives_end_when_the_slowest_rank_has_come() -> None:
    """Alone they end at 17 and 34. Ranks that come 3 later make it 20, and 20 more."""
    on = by_hand(EDGES)
    rows = [
        {"name": n, "stream": "main", "duration_us": us, "packet": kind}
        for n, us, kind in (("a", 10, "kernel"), ("r", 5, "collective"), ("b", 10, "kernel"), ("q", 5, "collective"))
    ]
    program = workload_from_json({"launch": "eager", "ops": rows}, on)
    alone = simulate(program, on)
    assert spans(alone)["q"] == (29, 34)
    late = simulate(program, on, floors=floors_for(program.kinds, arrival_floors(alone, 3.0)))
    assert spans(late) == {"a": (1, 11), "r": (12, 20), "b": (21, 31), "q": (32, 40)}


def test_many_short_segments_are_placed_depth_first_before_10() -> None:
    """Ten layers of fork and join, one kernel a segment: down the first branch to the end, then all the others."""
    ops: Ops = []
    for i in range(10):
        ops += [
            (f"f{i}", "main", 1, [f"s{i - 1}"] if i else []),
            (f"s{i}", "side0", 1, [f"f{i}"]),
            (f"m{i}", "main", 1, []),
        ]
    ops.append(("end", "main", 1, ["s9"]))
    on = machine("mi355x", "rocm-7.14", 4)
    layout = place(work(ops, on, launch="graph"), on)
    slots = dict(zip(work(ops, on).names, layout.lanes, strict=True))
    assert {slots[name] for name in slots if name[0] in "fse"} == {0}  # s is recorded first: the launch stream's
    assert {slots[f"m{i}"] for i in range(10)} == {1}
    levels = machine("mi355x", "rocm-10", 4)
    assert place(work(ops, levels, launch="graph"), levels).lanes == layout.lanes  # the same here: two a level
    assert depth_first([[1, 2], [3], [3], []], [0], 4) == [0, 0, 1, 0]
    assert depth_first([[], [], [], [], []], [0, 1, 2, 3, 4], 4) == [0, 1, 2, 3, 0]  # independent nodes: four queues


def test_queues_that_see_their_signals_at_the_same_moment_do_not_tax_each_other() -> None:
    on = by_hand(HOST)
    ops: Ops = [("f", "s0", 10, []), *((f"k{i}", f"s{i + 1}", 10, ["f"]) for i in range(3))]
    found = spans(simulate(work(ops, on), on))
    assert {found[f"k{i}"] for i in range(3)} == {(17, 27)}
