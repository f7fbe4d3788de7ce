"""Scenarios under plans: one simulated step, and sweeps over plans, queue counts, runtimes and concurrency levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsv4lab.overlap.plan import OFF, OverlapPlan
from dsv4lab.predict.roofline import Scenario, decode_step
from dsv4lab.predict.serving import ACCEPTED, Serving, tpot_us
from dsv4lab.queues.collectives import arrival_floors, floors_for
from dsv4lab.queues.costs import Machine, machine
from dsv4lab.queues.simulate import Simulated, simulate
from dsv4lab.queues.workload import Workload, repeat


@dataclass(frozen=True, slots=True)
class Options:
    """``steps``: steps in a row; ``eager``: launched one by one; ``skew_us``: how late the slowest rank comes to a
    collective in the baseline.
    """

    steps: int = 1
    eager: bool = False
    skew_us: float = 0.0


def run_scenario(scenario: Scenario, plan: OverlapPlan, on: Machine, options: Options | None = None) -> Simulated:
    """One simulated decode step (or several) of ``scenario`` under ``plan`` in a PyTorch process."""
    return run_step(decode_step(scenario, plan, on), scenario, on, options or Options())


def run_step(work: Workload, scenario: Scenario, on: Machine, chosen: Options) -> Simulated:
    """:func:`run_scenario` with the step already listed."""
    if chosen.eager:
        work = replace(work, graphs=False)
    if chosen.steps > 1:
        work = repeat(work, chosen.steps)
    if not chosen.skew_us:
        return simulate(work, on, torch=True)
    baseline = run_scenario(scenario, OFF, on, replace(chosen, skew_us=0.0))
    floors = floors_for(work.kinds, arrival_floors(baseline, chosen.skew_us))
    return simulate(work, on, torch=True, floors=floors)


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One point of a simulated sweep. ``delta_vs_off`` compares TPOT with plan ``off`` at the same settings."""

    device: str
    runtime: str
    plan: str
    hw_queues: int
    concurrency_level: int
    step_us: float
    tpot_ms: float
    delta_vs_off: float
    concurrency: float

    def to_json(self) -> dict[str, Any]:
        """A documented row of ``simulate sweep --json``."""
        return {name: getattr(self, name) for name in self.__slots__}


def sweep(
    scenario: Scenario,
    device: str,
    runtimes: Sequence[str],
    plans: Sequence[OverlapPlan],
    hw_queues: Sequence[int],
    levels: Sequence[int],
    *,
    serving: Serving | None = None,
    changes: Mapping[str, float] | None = None,
    options: Options | None = None,
) -> list[SweepPoint]:
    """Every combination, one simulated step each, and ``off`` beside it."""
    points, how = [], options or Options()
    listed: dict[tuple[int, OverlapPlan], Workload] = {}

    def step(at: Scenario, plan: OverlapPlan, on: Machine) -> Workload:
        key = (at.concurrency, plan)
        if key not in listed:  # costs depend on the device alone, which is the same throughout
            listed[key] = decode_step(at, plan, on)
        return listed[key]

    for level in levels:
        at = replace(scenario, concurrency=level)
        chosen = serving or Serving(accepted=ACCEPTED[scenario.speculative])
        for name in runtimes:
            for queues in hw_queues:
                on = machine(device, name, queues, changes)
                base = run_step(step(at, OFF, on), at, on, how)
                for plan in plans:
                    run = base if plan == OFF else run_step(step(at, plan, on), at, on, how)
                    points.append(_point(at, plan, on, run, base.wall_ns / 1e3, chosen))
    return points


def _point(
    scenario: Scenario, plan: OverlapPlan, on: Machine, run: Simulated, base_us: float, serving: Serving
) -> SweepPoint:
    step = run.wall_ns / 1e3
    tpot, before = tpot_us(step, scenario, on, serving), tpot_us(base_us, scenario, on, serving)
    return SweepPoint(
        device=on.device.name,
        runtime=on.runtime.name,
        plan=plan.name,
        hw_queues=on.hw_queues,
        concurrency_level=scenario.concurrency,
        step_us=step,
        tpot_ms=tpot / 1e3,
        delta_vs_off=tpot / before - 1.0,
        concurrency=concurrency_of(run),
    )


def concurrency_of(run: Simulated) -> float:
    """Summed busy time over its union, as ``BusySummary.concurrency``, without making a timeline.

    Kernels of one stream do not overlap, so their durations add up to its busy time.
    """
    times = sorted(zip(run.times.start, run.times.end, strict=True))
    union, total, reach = 0.0, 0.0, float("-inf")
    for start, end in times:
        total += end - start
        if end > reach:
            union += end - max(start, reach)
            reach = end
    return total / union if union else 0.0
