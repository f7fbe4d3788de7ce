"""Wall-clock figures of the simulator. ``make bench`` only."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from dsv4lab.overlap.plan import HIP, resolve_plan
from dsv4lab.predict.roofline import decode_step
from dsv4lab.predict.seed_profile import DEVICE, RUNTIME, seed_scenario
from dsv4lab.predict.sweep import sweep
from dsv4lab.queues.costs import machine
from dsv4lab.queues.simulate import simulate
from dsv4lab.queues.workload import repeat

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]


def fastest(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begun = time.process_time()  # one thread, no waits: wall time on a core of its own, whoever shares the machine
        work()
        times.append(time.process_time() - begun)
    return min(times)


def test_one_pro_step(record_figure: Callable[..., None]) -> None:
    on = machine(DEVICE, RUNTIME, 4)
    work = decode_step(seed_scenario(), HIP, on)
    took = fastest(lambda: simulate(work, on, torch=True), 15)
    record_figure("simulate one Pro step", took * 1e3, "ms", packets=len(work))
    record_figure("list one Pro step", fastest(lambda: decode_step(seed_scenario(), HIP, on), 5) * 1e3, "ms")
    assert took <= 0.025


def test_the_cost_grows_linearly_with_packets(record_figure: Callable[..., None]) -> None:
    on = machine(DEVICE, RUNTIME, 4)
    one = decode_step(seed_scenario(), HIP, on)
    each = []
    for target in (2_000, 10_000, 100_000, 1_000_000):
        work = repeat(one, max(1, target // len(one)))
        took = fastest(lambda work=work: simulate(work, on, torch=True), 3 if target < 500_000 else 1)  # type: ignore[misc]
        each.append(took / len(work) * 1e6)
        record_figure(f"simulate {len(work)} packets", took, "s", us_per_packet=each[-1])
    assert max(each) <= 2.5 * min(each)


def test_a_sweep_of_200_points(record_figure: Callable[..., None]) -> None:
    plans = [resolve_plan(p) for p in ("off", "hip", "cuda", "moe", "hip+moe")]

    def work() -> None:
        runtimes = ["rocm-7.14", "rocm-10+ordering-edges"]
        points = sweep(replace(seed_scenario()), DEVICE, runtimes, plans, [2, 4, 6, 8], [1, 4, 8, 16, 32])
        assert len(points) == 200

    took = fastest(work, 1)
    record_figure("sweep of 200 Pro steps", took, "s")
    assert took <= 5.0
