"""Properties of the event loop, and what its parts do."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4lab.errors import UsageError
from dsv4lab.queues.collectives import arrival_floors, floors_for
from dsv4lab.queues.costs import Machine, machine
from dsv4lab.queues.events import Simulation
from dsv4lab.queues.fluid import Sharing, corun_rates, fair_parts
from dsv4lab.queues.packets import lower
from dsv4lab.queues.place import place
from dsv4lab.queues.program_json import workload_from_json
from dsv4lab.queues.simulate import Simulated, simulate
from dsv4lab.queues.workload import Cost, Workload, from_program
from dsv4lab.timeline.program import ProgramOp, StreamProgram
from dsv4lab.timeline.timeline import Kind

FREE = dict.fromkeys(
    ("gap_us", "barrier_us", "signal_host_us", "signal_device_us", "poll_tax_us", "graph_us", "submit_us",
     "graph_submit_us", "segment_submit_us", "oversubscription_us", "corun_loss", "latency_load",
     "dispatch_us"), 0.0,
)  # fmt: skip
RUNTIMES = ("rocm-7.2", "rocm-7.14", "rocm-10", "rocm-10+ordering-edges")


@st.composite
def workloads(draw: st.DrawFn, streams: int = 5) -> Workload:
    n = draw(st.integers(1, 24))
    names = [draw(st.sampled_from(["main", *(f"side{i}" for i in range(streams - 1))])) for _ in range(n)]
    waits = []
    for i in range(n):
        others = [j for j in range(i) if names[j] != names[i]]
        waits.append(tuple(sorted(draw(st.sets(st.sampled_from(others), max_size=3)))) if others else ())
    costs = tuple(
        Cost(draw(st.floats(0, 20)), *(draw(st.floats(0, 1)) for _ in range(3)))
        if draw(st.booleans())
        else Cost(float(draw(st.integers(0, 9))))
        for _ in range(n)
    )
    if draw(st.booleans()):  # all of their workgroups are known
        shares = [(draw(st.integers(1, 2000)), draw(st.floats(0.01, 1)), draw(st.floats(0, 1))) for _ in range(n)]
        costs = tuple(
            replace(cost, blocks=blocks, footprint=footprint, shared=shared)
            for cost, (blocks, footprint, shared) in zip(costs, shares, strict=True)
        )
    graphs, some_early = draw(st.booleans()), draw(st.booleans())
    return Workload(
        tuple(f"k{i}" for i in range(n)),
        (-1,) * n,
        tuple(names),
        tuple(waits),
        costs,
        ("kernel",) * n,
        (0,) * n,
        graphs,
        early=tuple(draw(st.booleans()) for _ in range(n)) if some_early else (),
        late_us=(draw(st.floats(0, 2)),) * n if some_early else (),
        ahead_us=(draw(st.floats(0, 2)),) * n if some_early else (),
    )


def machines() -> st.SearchStrategy[Machine]:
    gpu = st.builds(machine, st.just("mi355x"), st.sampled_from(RUNTIMES), st.integers(1, 8))
    nvidia = st.builds(machine, st.just("h200"), st.none(), st.integers(1, 8))
    return st.one_of(gpu, nvidia, st.just(machine("cpu", hw_queues=2)))


def predecessor_pairs(work: Workload) -> list[tuple[int, int]]:
    last: dict[str, int] = {}
    pairs = []
    for i, stream in enumerate(work.streams):
        pairs += [(w, i) for w in work.waits[i]]
        pairs += [(last[stream], i)] if stream in last else []
        last[stream] = i
    return pairs


@given(workloads(), machines(), st.booleans())
@settings(max_examples=50)
def test_order_and_busy_time(work: Workload, on: Machine, torch: bool) -> None:
    run = simulate(work, on, torch=torch)
    start, end = run.times.start, run.times.end
    assert np.isfinite(end).all()
    for before, after in predecessor_pairs(work):
        assert start[after] >= end[before]
    for ring in run.packets.rings:
        begun = [start[i] for i in ring]
        assert begun == sorted(begun)
        for a, b in pairwise(ring):
            assert start[b] >= end[a] or not run.packets.barrier_bit[b]
    for i, cost in enumerate(work.costs):
        assert end[i] - start[i] >= cost.us * 1e3 - 1e-3
    timeline = run.timeline()
    timeline.check()
    busy = timeline.stream_busy()
    assert all(s.busy_ns <= busy.wall_ns for s in busy.streams)
    assert timeline.meta["simulated"] is True
    assert busy.wall_ns == run.wall_ns


class OneByOne(Simulation):
    """Every packet is an event, also where it has the device to itself."""

    @property
    def settled(self) -> bool:  # type: ignore[override]
        return False

    @settled.setter
    def settled(self, value: bool) -> None:
        pass


@given(workloads(), machines(), st.booleans())
@settings(max_examples=60)
def test_packets_that_have_the_device_to_themselves_need_no_events(work: Workload, on: Machine, torch: bool) -> None:
    layout = place(work, on, torch=torch)
    packets = lower(work, layout, on)
    quick, slow = (kind(work, packets, on, layout.mapped, {}).run() for kind in (Simulation, OneByOne))
    assert quick.start == pytest.approx(slow.start, abs=1e-3)
    assert quick.end == pytest.approx(slow.end, abs=1e-3)
    assert (quick.taxed, quick.blocked_ns) == (slow.taxed, pytest.approx(slow.blocked_ns, abs=1e-2))


def test_an_early_launch_that_nothing_keeps_costs_nothing_more_for_its_barrier() -> None:
    n, early = 11, 9
    streams = ("main", "side0") * 3 + ("main", "main", "side1", "side1", "main")
    waits = ((),) * 5 + ((4,), (), (), (0, 1, 5), (0, 6), ())
    work = Workload(
        names=tuple(f"k{i}" for i in range(n)), layers=(-1,) * n, streams=streams, waits=waits,
        costs=tuple(Cost({4: 3.0, 8: 1.0}.get(i, 0.0)) for i in range(n)), kinds=("kernel",) * n, steps=(0,) * n,
        graphs=False, early=tuple(i == early for i in range(n)), late_us=(0.0,) * n, ahead_us=(1.0,) * n,
    )  # fmt: skip
    on = machine("mi355x", "rocm-7.2", 1)
    layout = place(work, on)
    packets = lower(work, layout, on)
    assert packets.early[early]
    assert packets.barriers[early]
    times = [kind(work, packets, on, layout.mapped, {}).run() for kind in (Simulation, OneByOne)]
    assert times[0].start == times[1].start
    assert [t.end[early] - t.start[early] for t in times] == [0.0, 0.0], "what it does ahead was done ahead"


@given(workloads(), machines())
@settings(max_examples=40)
def test_the_same_question_has_the_same_answer(work: Workload, on: Machine) -> None:
    first, second = simulate(work, on), simulate(work, on)
    assert (first.times.start, first.times.end) == (second.times.start, second.times.end)


@given(workloads(streams=6), st.integers(1, 3), st.sampled_from(["rocm-7.2", "cuda-13"]))
@settings(max_examples=50)
def test_more_queues_with_free_packets_never_hurt(work: Workload, queues: int, runtime: str) -> None:
    """Twice as many split every queue in two; packets and sharing are free. Else more queues may well hurt."""
    device = "h200" if runtime == "cuda-13" else "mi355x"
    alone = tuple(Cost(c.us) for c in work.costs)
    free = replace(work, costs=alone, graphs=runtime == "cuda-13", late_us=(), ahead_us=())
    few, more = (simulate(free, machine(device, runtime, q, FREE)).wall_ns for q in (queues, 2 * queues))
    enough = simulate(free, machine(device, runtime, 64, FREE)).wall_ns
    assert more <= few + 1 or runtime == "rocm-7.2"  # by reference count twice as many need not split
    assert enough <= few + 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_fair_parts_use_the_capacity_and_give_nobody_more_than_asked(demands: list[float]) -> None:
    parts = fair_parts(demands)
    assert all(p <= d + 1e-12 for p, d in zip(parts, demands, strict=True))
    assert sum(parts) == pytest.approx(min(1.0, sum(demands)), abs=1e-9)


def test_small_kernels_run_side_by_side_without_loss_and_large_ones_do_not() -> None:
    small, large = Cost(10, 0.3), Cost(10, 1.0)
    assert corun_rates([small, small], Sharing(0.145)) == (1.0, 1.0)
    assert corun_rates([small, large], Sharing(0.145)) == (0.855, 0.855)
    assert corun_rates([Cost(9, 0.1, 0.9), Cost(9, 0.1, 0.9)], Sharing(0.1)) == pytest.approx((5 / 9, 5 / 9))


def chain_and_waiter(runtime: str, **changes: float) -> Simulated:
    on = machine("mi355x", runtime, 4, {"submit_us": 0.0, **changes})
    ops = [{"name": f"p{i}", "stream": "main", "duration_us": 0.57} for i in range(64)]
    ops.append({"name": "w", "stream": "side0", "duration_us": 1.0, "after": ["p63"]})
    return simulate(workload_from_json({"launch": "eager", "ops": ops}, on), on)


def test_the_poll_tax_is_a_matter_of_where_signals_live_and_of_its_scope() -> None:
    stock, edges = chain_and_waiter("rocm-10"), chain_and_waiter("rocm-10+ordering-edges")
    assert stock.times.taxed >= 63
    assert edges.times.taxed == 0
    assert stock.wall_ns - edges.wall_ns == pytest.approx(64 * 1020, rel=0.1)
    assert chain_and_waiter("rocm-10", poll_scope_pipe=1).times.taxed == 0  # the waiter is on another pipe
    assert any(k == int(Kind.WAIT) for k in stock.timeline().kind)


def test_elided_barrier_bits_let_streams_of_one_ring_overlap() -> None:
    on = machine("mi355x", "rocm-10+ordering-edges", 1, {"submit_us": 0.0})
    elided = replace(on, runtime=replace(on.runtime, barrier_elision=True))
    ops = [{"name": f"k{i}", "stream": f"s{i % 4}", "duration_us": 32.0} for i in range(32)]
    work = workload_from_json({"launch": "eager", "ops": ops}, on)
    assert simulate(work, on).wall_ns > 2.5 * simulate(work, elided).wall_ns


def test_a_gain_below_the_arrival_skew_does_not_show() -> None:
    on = machine("mi355x")

    def ops(side: str) -> Workload:
        rows = []
        for i in range(8):
            rows.append({"name": f"a{i}", "stream": "main", "duration_us": 20.0})
            rows.append({"name": f"s{i}", "stream": side, "duration_us": 12.0, "after": [f"a{i}"]})
            rows.append({"name": f"m{i}", "stream": "main", "duration_us": 30.0})
            rows.append(
                {"name": f"r{i}", "stream": "main", "duration_us": 9.0, "packet": "collective", "after": [f"s{i}"]}
            )
        return workload_from_json({"ops": rows}, on)

    off, plan = simulate(ops("main"), on), ops("side0")
    alone = simulate(plan, on)
    assert alone.wall_ns < 0.92 * off.wall_ns
    walls = []
    for skew in (0.0, 30.0):
        floors = floors_for(plan.kinds, arrival_floors(off, skew))
        walls.append(simulate(plan, on, floors=floors).wall_ns)
    assert walls[0] >= 0.98 * off.wall_ns
    assert walls[1] == pytest.approx(off.wall_ns + 8 * 30_000, rel=0.03)


def test_a_stream_program_with_costs_is_a_workload() -> None:
    ops = (
        ProgramOp(0, "a", 0, "main", (), (), (), ("x",)),
        ProgramOp(1, "b", 0, "side0", (0,), (0,), ("x",), ("y",)),
        ProgramOp(2, "c", 0, "main", (1,), (1,), ("y",), ()),
    )
    program = StreamProgram(ops, ("main", "side0"), "p", "decode", 1)
    run = simulate(from_program(program, [Cost(1.0)] * 3, steps=3), machine("mi355x"))
    assert len(run.workload) == 9
    assert sorted(set(run.timeline().step.tolist())) == [0, 1, 2]
    starts = np.array(run.times.start).reshape(3, 3)
    ends = np.array(run.times.end).reshape(3, 3)
    assert (starts[1:].min(axis=1) >= ends[:-1].max(axis=1)).all()
    with pytest.raises(UsageError, match="3 ops, got 2 costs"):
        from_program(program, [Cost(1.0)] * 2)


BAD = [
    ({}, "a program is"),
    ({"ops": [{"name": "a"}]}, "op 0: stream must be a text"),
    ({"ops": [{"name": "a", "stream": "s"}]}, "needs duration_us, or bytes or flops"),
    ({"ops": [{"name": "a", "stream": "s", "duration_us": -1}]}, "duration_us must be a number of 0 or more"),
    ({"ops": [{"name": "a", "stream": "s", "duration_us": 1, "after": ["b"]}]}, "after takes names"),
    ({"ops": [{"name": "a", "stream": "s", "duration_us": 1, "packet": "x"}]}, "packet must be one of"),
    ({"ops": [{"name": "a", "stream": "s", "duration_us": 1, "colour": 1}]}, "unknown fields"),
    ({"ops": [{"name": "a", "stream": "s", "duration_us": 1}], "launch": "x"}, "launch must be one of"),
    ({"ops": [{"name": "a", "stream": "s", "duration_us": 1}], "repeat": 0}, "repeat must be a whole number"),
    ({"ops": [{"name": "a", "stream": "s", "duration_us": 1, "occupancy": 2}]}, "occupancy must be 0 to 1"),
    ({"ops": [{"name": "a", "stream": "s", "bytes": 1, "precision": "x"}]}, "precision 'x'"),
    ({"ops": [3]}, "op 0 must be an object"),
]


@pytest.mark.parametrize(("data", "text"), BAD)
def test_bad_programs_name_the_op_and_the_field(data: object, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        workload_from_json(data, machine("mi355x"))


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"device_name": "mi999"}, "device 'mi999' is unknown"),
        ({"device_name": "mi355x", "runtime_name": "rocm-1"}, "runtime 'rocm-1' is unknown"),
        ({"device_name": "mi355x", "runtime_name": "cuda-13"}, "does not run cuda-13"),
        ({"device_name": "mi355x", "hw_queues": 0}, "1 to 128, got 0"),
        ({"device_name": "mi355x", "changes": {"x": 1.0}}, "no value 'x'"),
        ({"device_name": "mi355x", "changes": {"gap_us": -1.0}}, "gap_us must be 0 or more"),
    ],
)
def test_bad_machines_are_refused(kwargs: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        machine(**kwargs)  # type: ignore[arg-type]
