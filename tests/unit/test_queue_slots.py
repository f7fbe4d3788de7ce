"""Workgroups on CUs, on examples by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.queues.costs import machine
from dsv4lab.queues.fluid import Sharing, corun_rates
from dsv4lab.queues.policies import HIGH
from dsv4lab.queues.simulate import Simulated, simulate
from dsv4lab.queues.slots import at_once, carveout, last_wave, room, waves
from dsv4lab.queues.workload import Cost, Workload

CALM = {
    "corun_slow": 0.0,
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


def test_waves_of_a_kernel_by_itself() -> None:
    assert at_once(kernel(1, 1000, 0.3), 132) == 396
    assert at_once(kernel(1, 1000, 0.3, shared=0.5), 132) == 264
    assert (waves(kernel(1, 1000, 0.3), 132), last_wave(kernel(1, 1000, 0.3), 132)) == (3, 208)
    assert (waves(kernel(1, 396, 0.3), 132), last_wave(kernel(1, 396, 0.3), 132)) == (1, 396)
    assert waves(Cost(1.0), 132) == 1


def test_a_workgroup_that_needs_a_whole_cu_waits_for_empty_ones() -> None:
    spread, whole = kernel(5, 100, 0.1), kernel(5, 132, 1.0)
    assert room([spread, whole], [False, False], 132) == (1.0, 32 / 132)
    assert room([whole, spread], [False, False], 132) == (1.0, 0.0)


def test_a_kernel_with_workgroups_to_hand_out_keeps_later_ones_waiting() -> None:
    large, tiny = kernel(5, 1000, 0.3), kernel(5, 1, 0.01)
    assert room([large, tiny], [True, False], 132) == (1.0, 0.0)
    assert room([large, tiny], [False, False], 132) == (1.0, 1.0)
    assert room([tiny, large], [False, True], 132) == (1.0, 1.0)


def test_rates_are_room_times_what_memory_leaves() -> None:
    sharing = Sharing(0.0, 0.0, 132)
    assert corun_rates([kernel(5, 66, 1.0), kernel(5, 132, 1.0)], sharing) == (1.0, 0.5)
    first, second = kernel(5, 66, 1.0, 0.6), kernel(5, 132, 1.0, 0.8)
    assert corun_rates([first, second], sharing) == pytest.approx(
        (0.5 / 0.6, 0.5 / 0.8)
    )  # half of the memory rate each
    both = corun_rates([kernel(5, 66, 0.5, 0.8), kernel(5, 66, 0.5, 0.8)], sharing)
    assert both == pytest.approx((0.625, 0.625))
    late = corun_rates([kernel(5, 1, 0.1), kernel(5, 66, 0.5, 0.8)], Sharing(0.0, 0.5, 132))
    assert late == pytest.approx((1 / 1.4, 1.0))


def test_with_fewer_workgroups_a_kernel_that_memory_keeps_loses_less() -> None:
    blocker = kernel(5, 66, 1.0)
    for drawn, floor_us, rate in ((0.0, 0.0, 0.5), (0.8, 0.0, 0.5 / 0.6), (0.6, 1.0, 0.5 / 0.6), (1.0, 0.0, 1.0)):
        found = corun_rates([blocker, kernel(4, 132, 1.0, drawn)], Sharing(0.0, 0.0, 132, floor_us=floor_us))
        assert found == pytest.approx((1.0, rate))


def test_a_kernel_takes_longer_by_the_share_that_others_have_of_its_cus() -> None:
    sharing = Sharing(0.0, 0.0, 100, slow=0.4)
    kernels = (kernel(5, 100, 0.6), kernel(5, 50, 0.3), kernel(5, 1, 0.2), kernel(5, 350, 0.3))
    whole, half, one, waved = (replace(cost, occupancy=min(1.0, cost.blocks / 100)) for cost in kernels)
    assert corun_rates([whole, one], sharing) == pytest.approx((1 / 1.1, 1 / 1.3))  # 0.2 and 0.6 of 0.8
    assert corun_rates([half, one], sharing) == (1.0, 1.0)  # it finds an empty CU
    # its last 50: a kernel of several waves evens out
    assert corun_rates([waved, whole], sharing)[0] == pytest.approx(1 / (1 + 0.4 * 0.6 / 0.9))


def two(main: Cost, side: Cost, wait_us: float, high: tuple[str, ...] = ()) -> Simulated:
    """``main`` and ``side`` on two streams, ``side`` behind a first kernel of ``wait_us`` that takes no room."""
    work = Workload(
        names=("lead", "main", "side"), layers=(-1,) * 3, streams=("side0", "main", "side0"), waits=((),) * 3,
        costs=(Cost(wait_us, blocks=1), main, side), kinds=("kernel",) * 3, steps=(0,) * 3,
        priorities=dict.fromkeys(high, HIGH),
    )  # fmt: skip
    return simulate(work, machine("h200", changes=CALM))


def test_a_stream_of_higher_priority_gets_the_room_that_a_wave_leaves() -> None:
    large, small = kernel(9.0, 1000, 0.3), kernel(1.0, 132, 0.3)  # three waves of 396, 396 and 208 workgroups
    run = two(large, small, 2.0, high=("side0",))
    assert run.times.end[2] == pytest.approx(3000)
    assert run.times.end[1] == pytest.approx(9000 + 0.625 * 1000 / 3)  # a third of the room, given back in four pieces
    last = two(kernel(9.0, 396, 0.3), small, 2.0, high=("side0",))  # nobody's last wave is put out
    assert last.times.end[1] == pytest.approx(9000)
    assert last.times.start[2] == pytest.approx(2000)
    assert last.times.end[2] > 3000


def test_a_small_kernel_starts_in_the_last_wave_of_a_large_one() -> None:
    large = kernel(9.0, 1000, 0.3)  # three waves of 3 us, 208 workgroups in the last
    run = two(large, kernel(1.0, 10, 0.3), 2.0)
    assert run.times.end[1] == pytest.approx(9000)
    assert run.times.end[2] == pytest.approx(7000)  # from 6, when the last wave leaves room
    beside = two(kernel(9.0, 300, 0.3), kernel(1.0, 10, 0.3), 2.0)
    assert beside.times.end[2] == pytest.approx(3000)


def test_workgroups_of_the_last_wave_end_one_after_the_other() -> None:
    run = two(kernel(8.0, 132, 1.0), kernel(2.0, 66, 1.0), 2.0)
    assert run.times.end[1] == pytest.approx(8000)
    # 33 CUs are free from 2 on: for half of it, then for 33 of 50 workgroups, then for all that are left
    assert run.times.end[2] == pytest.approx(2000 + 1000 + 500 * 50 / 33 + 1000)
    assert run.times.start[2] == pytest.approx(2000)
    early = two(kernel(8.0, 132, 1.0), kernel(1.0, 10, 1.0), 1.0)
    assert early.times.end[2] == pytest.approx(3000)  # from 2, when the first piece has ended


def test_a_cu_is_set_for_the_kernel_that_comes_first() -> None:
    light, heavy = kernel(5, 132, 0.5, shared=0.01), kernel(5, 10, 0.1, shared=0.25)
    assert carveout(light) == pytest.approx(8 / 228)  # two of 2.3 KiB fit
    assert carveout(heavy) == pytest.approx(1.0)  # four of 57 KiB
    assert carveout(kernel(5, 10, 0.1)) == 0.0
    assert room([light, heavy], [False, False], 132) == (1.0, 0.0)
    assert room([kernel(5, 127, 0.5, shared=0.01), heavy], [False, False], 132) == (1.0, 1.0)  # five that are empty
    assert room([heavy, light], [False, False], 132) == (1.0, 1.0)


def test_a_kernel_that_prefers_more_shared_memory_leaves_room_for_others() -> None:
    """A workgroup of 55 KiB beside one of 2 KiB on each of 132 CUs."""
    light, heavy = kernel(8.0, 132, 0.5, shared=2 / 228), kernel(1.0, 10, 0.1, shared=55 / 228)
    asks = {percent: replace(light, prefers=percent / 100) for percent in (1, 25, 50)}
    # two of 2 KiB fit 8 KiB; a quarter is 57 KiB, and the next step 64, half is 114 KiB, and the next 132
    assert [carveout(asks[percent]) * 228 for percent in (1, 25, 50)] == pytest.approx([8, 64, 132])
    many = replace(heavy, blocks=400)
    assert room([light, many], [False, False], 132) == (1.0, 0.0)
    assert room([asks[25], many], [False, False], 132) == (1.0, 132 / 400)  # one of 55 KiB in the 62 that are left
    assert room([asks[50], many], [False, False], 132) == (1.0, 264 / 400)  # two in 130
    assert two(light, heavy, 1.0).times.end[2] == pytest.approx(3000)  # from 2, when a quarter of the CUs are empty
    assert two(asks[25], heavy, 1.0).times.end[2] == pytest.approx(2000)


@pytest.mark.parametrize(("early", "third"), [(False, 3000), (True, 7750)])
def test_a_kernel_that_is_launched_early_keeps_its_place(early: bool, third: float) -> None:
    """``b`` needs two waves of 2 us and follows ``a``; ``c`` of another stream could begin at 2, beside ``a``."""
    work = Workload(
        names=("lead", "a", "b", "c"), layers=(-1,) * 4, streams=("side0", "main", "main", "side0"), waits=((),) * 4,
        costs=(Cost(2.0, blocks=1), kernel(4.0, 10, 0.1), kernel(4.0, 264, 1.0), kernel(1.0, 132, 0.5)),
        kinds=("kernel",) * 4, steps=(0,) * 4, early=(False, False, early, False),
    )  # fmt: skip
    run = simulate(work, machine("h200", changes={**CALM, "early_us": 1.0}))
    assert run.times.end[1] == run.times.start[2] == pytest.approx(4000)  # it waits for the end of what it follows
    assert run.times.end[3] == pytest.approx(third)
    assert run.times.end[2] == pytest.approx(8000)


@pytest.mark.parametrize(("side", "third", "end"), [(1.0, 7250, 7000), (3.5, 6100, 7006), (6.0, 6100, 10300)])
def test_a_kernel_that_waits_for_another_stream_is_launched_early_if_that_is_through_in_time(
    side: float, third: float, end: float
) -> None:
    """``b`` follows ``a``, which ends at 4, and waits for ``c``, which ends at ``side``; ``d`` would begin at 3.6.

    At 1, ``b`` takes its places and keeps them from ``d`` until a quarter of its workgroups has ended. At 3.5 it is
    too late for that, and still in time to start right behind ``a``. At 6 it starts 0.3 later, and takes 1 longer.
    """
    work = Workload(
        names=("a", "c", "b", "lead", "d"), layers=(-1,) * 5, streams=("main", "side0", "main", "side1", "side1"),
        waits=((), (), (1,), (), ()), kinds=("kernel",) * 5, steps=(0,) * 5, early=(False, False, True, False, False),
        costs=(
            kernel(4.0, 3, 0.1), Cost(side, blocks=1), kernel(3.0, 132, 1.0), Cost(3.6, blocks=1), kernel(2.5, 3, 0.5),
        ),
        late_us=(0.3,) * 5, ahead_us=(1.0,) * 5,
    )  # fmt: skip
    run = simulate(work, machine("h200", changes={**CALM, "early_us": 1.0}))
    assert run.times.end[4] == pytest.approx(third)
    assert run.times.end[2] == pytest.approx(end, abs=1)


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
    st.lists(st.tuples(st.integers(1, 2000), st.floats(0.01, 1.0), st.floats(0, 1)), min_size=2, max_size=5),
    st.floats(0, 1),
)
def test_rates_are_shares_and_somebody_runs(shapes: list[tuple[int, float, float]], latency: float) -> None:
    costs = [kernel(1.0, blocks, footprint, bandwidth) for blocks, footprint, bandwidth in shapes]
    more = [waves(cost, 132) > 1 for cost in costs]
    rates = corun_rates(costs, Sharing(0.1, latency, 132), more)
    assert all(0 <= rate <= 1 for rate in rates)
    assert rates[0] > 0
    assert sum(rate * cost.bandwidth for rate, cost in zip(rates, costs, strict=True)) <= 1 + 1e-9
