"""Workgroups on CUs, on examples by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4lab.queues.cells import LANES, MEAN
from dsv4lab.queues.costs import machine
from dsv4lab.queues.fluid import Sharing
from dsv4lab.queues.placing import Placing
from dsv4lab.queues.policies import HIGH
from dsv4lab.queues.simulate import Simulated, simulate
from dsv4lab.queues.slots import accepted, all_of_it, at_once, carveout
from dsv4lab.queues.workload import Cost, Workload

CALM = {
    "corun_slow": 0.0,
    "crowd_slow": 0.0,
    "kernel_floor_us": 0.0,
    "corun_loss": 0.0,
    "latency_load": 0.0,
    "dispatch_us": 0.0,
    "gap_us": 0.0,
    "graph_us": 0.0,
}
CALM |= {"signal_device_us": 0.0, "graph_submit_us": 0.0}


def kernel(us: float, blocks: int, footprint: float, bandwidth: float = 0.0, shared: float = 0.0) -> Cost:
    return Cost(us, bandwidth=bandwidth, blocks=blocks, footprint=footprint, shared=shared)


def kib(own: float, per_sm: int, prefers: float = 0.0) -> Cost:
    """Of workgroups with ``own`` KiB of shared memory of which registers let ``per_sm`` be on an SM."""
    return Cost(5.0, blocks=132, footprint=1 / per_sm, shared=(own + 1) / 228, prefers=prefers)


def two(main: Cost, side: Cost, wait_us: float, high: tuple[str, ...] = (), **values: float) -> Simulated:
    """``main`` and ``side`` on two streams, ``side`` behind a first kernel of ``wait_us`` that takes no room."""
    work = Workload(
        names=("lead", "main", "side"), layers=(-1,) * 3, streams=("side0", "main", "side0"), waits=((),) * 3,
        costs=(Cost(wait_us, blocks=1), main, side), kinds=("kernel",) * 3, steps=(0,) * 3,
        priorities=dict.fromkeys(high, HIGH),
    )  # fmt: skip
    return simulate(work, machine("h200", changes={**CALM, **values}))


def ends(run: Simulated) -> list[float]:
    """When main and side end, in microseconds."""
    return [end / 1e3 for end in run.times.end[1:]]


def test_a_share_of_shared_memory_that_counts_for_nothing_keeps_no_workgroup_out() -> None:
    cost = replace(kernel(1.0, blocks=257, footprint=0.5, shared=1e-172), compute=1.0)
    assert at_once(cost, 256) == 257
    placing = Placing([cost], Sharing(0.0, cus=256, slow=0.4))
    placing.add(0, 0, 1000.0, 0)
    ended = None
    while placing:
        at, now = placing.next_change()
        placing.advance(now)
        ended = now if placing.change(at) == (0, 0) else ended
    assert ended == pytest.approx(1000.0, abs=1e-3), "by itself it takes its own time"


def test_how_many_run_at_once() -> None:
    assert at_once(kernel(1, 1000, 0.3), 132) == 396
    assert at_once(kernel(1, 1000, 0.3, shared=0.5), 132) == 264
    assert at_once(kernel(1, 300, 0.3), 132) == 300
    assert at_once(Cost(1.0, blocks=7), 132) == 7
    asks = kib(16, 5, 0.25)  # an SM is set to 64 KiB for it: three of 17
    assert at_once(replace(asks, blocks=1000), 132) == 396
    assert at_once(replace(asks, blocks=1000, prefers=0.0), 132) == 660


@pytest.mark.parametrize(
    ("own", "per_sm", "measured"),
    [
        (1, 8, 32), (4, 8, 100), (8, 8, 132), (16, 8, 164), (24, 8, 228), (32, 8, 228), (48, 8, 196), (4, 4, 64),
        (8, 4, 100), (16, 4, 132), (36, 4, 164), (54, 4, 228), (4, 3, 32), (8, 3, 64), (54, 3, 196), (8, 2, 32),
        (16, 2, 64), (32, 2, 100), (192, 1, 196),
    ],
)  # fmt: skip
def test_an_sm_is_set_as_it_was_measured(own: float, per_sm: int, measured: int) -> None:
    """docs/measurements/h200-places/carve2.txt: kernels that do not ask."""
    assert carveout(kib(own, per_sm)) * 228 == pytest.approx(measured)


@pytest.mark.parametrize(
    ("own", "percent", "measured"),
    [(0.5, 25, 196), (1, 25, 132), (8, 25, 64), (24, 25, 64), (64, 25, 100), (0.5, 100, 228), (42, 100, 228),
     (0.5, 5, 64), (0.5, 10, 100), (0.5, 15, 132), (0.5, 20, 164), (0.5, 30, 228)],
)  # fmt: skip
def test_an_sm_is_set_as_it_was_measured_for_kernels_that_ask(own: float, percent: int, measured: int) -> None:
    assert carveout(kib(own, 4, percent / 100)) * 228 == pytest.approx(measured)


@pytest.mark.parametrize(
    ("cost", "comes_to"),
    [
        (kib(18, 16), {228}), (kib(54, 8), {228}), (kib(4, 8), {64, 100, 132, 164, 196, 228}),
        (kib(1, 16, 0.25), {64, 100, 132}), (kib(2, 16, 0.25), {64, 100}), (kib(8, 16, 0.25), {64}),
        (kib(0.5, 8, 0.25), {16, 64, 100, 132, 164, 196}), (kib(42, 16, 1.0), {228}),
    ],
)  # fmt: skip
def test_a_kernel_comes_to_the_sms_that_were_measured(cost: Cost, comes_to: set[int]) -> None:
    low, top = accepted(cost)
    assert {
        size for size in (16, 64, 100, 132, 164, 196, 228) if low <= size / 228 + 1e-9 and size / 228 <= top + 1e-9
    } == comes_to


def test_workgroups_that_begin_together_end_one_after_the_other() -> None:
    """132 on whole SMs, 33 in each of four lanes; 66 of another kernel take the first that are free, 33 at a time."""
    assert LANES == (0.625, 0.75, 0.875, 1.0)
    assert ends(two(kernel(8.0, 132, 1.0), kernel(2.0, 66, 1.0), 2.0)) == pytest.approx([8.0, 6.0 + 2.0])
    assert ends(two(kernel(8.0, 132, 1.0), kernel(2.0, 10, 1.0), 1.0)) == pytest.approx([8.0, 5.0 + 2.0])


def test_a_kernel_with_workgroups_to_hand_out_keeps_later_ones_waiting() -> None:
    """264 on whole SMs: the second half begins as lanes end, the last of them at 4, after which a tiny one may."""
    assert MEAN == 0.8125
    block = 4.0 / (1.0 + MEAN)
    large = kernel(4.0, 264, 1.0)
    assert ends(two(large, kernel(1.0, 10, 0.01), 1.0)) == pytest.approx([4.0, (LANES[0] + MEAN) * block + 1.0])
    beside = two(kernel(4.0, 264, 0.4), kernel(1.0, 10, 0.01), 1.0)  # all begin at once: there is room
    assert ends(beside) == pytest.approx([4.0, 2.0])


def test_a_stream_of_higher_priority_gets_the_room_that_workgroups_leave() -> None:
    block = 4.0 / (1.0 + MEAN)
    run = two(kernel(4.0, 264, 1.0), kernel(1.0, 33, 1.0), 1.0, high=("side0",))
    first = LANES[0] * block
    assert ends(run)[1] == pytest.approx(first + 1.0)  # those 33 SMs go on with the other kernel afterwards
    assert ends(run)[0] == pytest.approx(
        4.0 + (first + 1.0 + MEAN * block - 4.0 if first + 1.0 + MEAN * block > 4.0 else 0.0)
    )
    last = two(kernel(4.0, 132, 1.0), kernel(1.0, 33, 1.0), 1.0, high=("side0",))
    assert ends(last) == pytest.approx([4.0, 2.5 + 1.0])  # nobody is put out


def test_a_cu_is_set_for_the_kernel_that_comes_first() -> None:
    """One that needs more than others have left waits until an SM is empty; one that comes first leaves room."""
    light, heavy = kib(2, 2), kib(54, 8)
    assert (carveout(light) * 228, all_of_it(heavy) * 228) == pytest.approx((8, 220))
    busy, late = replace(light, us=8.0), replace(heavy, us=1.0, blocks=10)
    assert ends(two(busy, late, 1.0)) == pytest.approx([8.0, 5.0 + 1.0])
    assert ends(two(replace(busy, blocks=122), late, 1.0)) == pytest.approx([8.0, 2.0])  # ten that are empty
    assert ends(two(replace(heavy, us=8.0), replace(light, us=1.0, blocks=10), 1.0)) == pytest.approx([8.0, 2.0])


def test_a_kernel_that_asks_for_more_shared_memory_leaves_room_for_others() -> None:
    light, late = kib(2, 2), replace(kib(2, 16), us=1.0, blocks=10)
    assert ends(two(replace(light, us=8.0), late, 1.0))[1] == pytest.approx(5.0 + 1.0)
    assert ends(two(replace(light, us=8.0, prefers=0.25), late, 1.0))[1] == pytest.approx(2.0)


def test_workgroups_that_have_to_share_few_cus_crowd() -> None:
    """66 on the 33 SMs that are free, two on each where one is by itself: until the first of the two has ended."""
    small = replace(kernel(2.0, 66, 0.5, bandwidth=0.4), occupancy=0.5)
    blocker = kernel(8.0, 99, 1.0)
    assert ends(two(blocker, small, 1.0)) == pytest.approx([8.0, 3.0])
    crowd = two(blocker, small, 1.0, crowd_slow=0.5)
    slow = 1 + 0.5 * 0.8  # it asks for 0.8 of an SM's part of the memory rate
    assert ends(crowd)[1] == pytest.approx(1.0 + 2.0 * (LANES[2] * slow + 1 - LANES[2]))


def test_a_kernel_takes_longer_by_the_share_that_others_have_of_its_cus() -> None:
    run = two(kernel(5.0, 132, 0.6), kernel(1.0, 1, 0.2), 1.0, corun_slow=0.4)
    assert ends(run)[1] == pytest.approx(1.0 + 1.0 + 0.4 * 0.75)  # the other has 0.6 of 0.8
    apart = two(kernel(5.0, 66, 0.6), kernel(1.0, 1, 0.2), 1.0, corun_slow=0.4)
    assert ends(apart) == pytest.approx([5.0, 2.0])  # it finds an empty one


def test_with_fewer_workgroups_a_kernel_that_memory_keeps_loses_less() -> None:
    """Of 132 workgroups 66 find room, and each of the others where one of those has ended."""
    slow, quick = (ends(two(kernel(8.0, 66, 1.0), kernel(3.0, 132, 1.0, drawn), 1.0))[1] for drawn in (0.0, 0.8))
    assert slow == pytest.approx(1.0 + 3.0 + 3.0)
    assert 1.0 + 3.0 < quick < slow - 0.5


@pytest.mark.parametrize(("early", "third"), [(False, 3.0), (True, 4.0 + (LANES[0] + MEAN) * 4.0 / (1.0 + MEAN) + 1.0)])
def test_a_kernel_that_is_launched_early_keeps_its_place(early: bool, third: float) -> None:
    """``b`` has two waves and follows ``a``; ``c`` of another stream could begin at 2, beside ``a``."""
    work = Workload(
        names=("lead", "a", "b", "c"), layers=(-1,) * 4, streams=("side0", "main", "main", "side0"), waits=((),) * 4,
        costs=(Cost(2.0, blocks=1), kernel(4.0, 10, 0.1), kernel(4.0, 264, 1.0), kernel(1.0, 10, 0.5)),
        kinds=("kernel",) * 4, steps=(0,) * 4, early=(False, False, early, False),
    )  # fmt: skip
    run = simulate(work, machine("h200", changes={**CALM, "early_us": 1.0}))
    assert run.times.end[1] == run.times.start[2] == pytest.approx(4000)  # it waits for the end of what it follows
    assert run.times.end[3] / 1e3 == pytest.approx(third, rel=0.1)
    assert run.times.end[2] / 1e3 == pytest.approx(8.0, rel=0.15)


def test_starts_are_spaced() -> None:
    work = Workload(
        names=("a", "b", "c"), layers=(-1,) * 3, streams=("main", "side0", "side1"), waits=((),) * 3,
        costs=(kernel(5.0, 1, 0.1),) * 3, kinds=("kernel",) * 3, steps=(0,) * 3,
    )  # fmt: skip
    run = simulate(work, machine("h200", changes={**CALM, "dispatch_us": 0.5}))
    assert run.times.start == pytest.approx([0, 500, 1000])


def test_threads_keep_their_core_until_they_wait() -> None:
    """The first has a core to itself; the others share the second, and whoever has it goes on with its next op."""
    work = Workload(
        names=("m", "a1", "a2", "b", "c"), layers=(-1,) * 5, streams=("main", "side0", "side0", "side1", "main"),
        waits=((), (), (), (), (3,)), costs=(Cost(10.0, blocks=1),) * 5, kinds=("kernel",) * 5, steps=(0,) * 5,
    )  # fmt: skip
    free = {"gap_us": 0.0, "graph_us": 0.0, "signal_device_us": 0.0, "graph_submit_us": 0.0}
    run = simulate(work, machine("cpu", hw_queues=4, changes={**free, "cus": 2.0}))
    assert run.times.end == pytest.approx([10e3, 10e3, 20e3, 30e3, 40e3])
    more = simulate(work, machine("cpu", hw_queues=4, changes={**free, "cus": 3.0}))
    assert more.times.end == pytest.approx([10e3, 10e3, 20e3, 10e3, 20e3])


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 9), st.integers(1, 3000), st.floats(0.02, 1.0), st.floats(0, 1),
            st.sampled_from([0, 0.25, 1]),
        ),
        min_size=1, max_size=5,
    ),
    st.floats(0, 1),
)  # fmt: skip
@settings(max_examples=60)
def test_every_workgroup_runs_and_nothing_is_faster_than_by_itself(
    shapes: list[tuple[float, int, float, float, float]], latency: float
) -> None:
    costs = [Cost(us, 0.5, 0.3, 0.1, blocks, part, shared, asks) for us, blocks, part, shared, asks in shapes]
    running = Placing(costs, Sharing(0.1, latency, 132, 0.4, 0.4, 1.5))
    for i, cost in enumerate(costs):
        running.add(i, i, cost.us * 1e3, i)
    ended: dict[int, float] = {}
    while running:
        at, when = running.next_change()
        running.advance(when)
        op, what = running.change(at)
        if not what:
            ended[op] = running.now
    assert len(ended) == len(costs)
    for i, cost in enumerate(costs):
        assert ended[i] >= cost.us * 1e3 - 0.01
    if len(costs) == 1:
        assert ended[0] == pytest.approx(costs[0].us * 1e3)
