"""Sweeps over plans, queue counts, runtimes and concurrency levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dsv4lab.overlap.plan import OFF, OverlapPlan
from dsv4lab.predict.roofline import Scenario, decode_step
from dsv4lab.predict.scenarios import Options, run_step
from dsv4lab.predict.serving import ACCEPTED, Serving, stall_us, tpot_us
from dsv4lab.queues.costs import Machine, machine
from dsv4lab.queues.layout import Layout
from dsv4lab.queues.place import place
from dsv4lab.queues.simulate import Simulated
from dsv4lab.queues.workload import Workload


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


@dataclass(slots=True)
class _Memo:
    """What points of a sweep share: steps by level and plan, layouts by structure, runs by the queues they are on."""

    options: Options
    steps: dict[Any, Workload] = field(default_factory=dict)
    layouts: dict[Any, Layout] = field(default_factory=dict)
    runs: dict[Any, Simulated] = field(default_factory=dict)

    def run(self, scenario: Scenario, plan: OverlapPlan, on: Machine) -> Simulated:
        """The run of a point; one that another queue count has had on the very same queues is not repeated."""
        key = (scenario.concurrency, plan)
        if key not in self.steps:  # costs depend on the device alone, which is the same throughout
            step = decode_step(scenario, plan, on)
            self.steps[key] = replace(step, graphs=not self.options.eager)
        work = self.steps[key]
        layout = self._layout(work, on)
        place_key = (*key, on.runtime.name, layout.queue_of_lane, layout.mapped)
        if place_key not in self.runs:
            known = layout if self.options.steps == 1 else None
            self.runs[place_key] = run_step(work, scenario, on, self.options, known)
        return self.runs[place_key]

    def _layout(self, work: Workload, on: Machine) -> Layout:
        """It depends on streams, waits and the machine's rules: no op is wider than the device."""
        key = (on.runtime.name, on.hw_queues, work.streams, work.waits)
        if key not in self.layouts:
            self.layouts[key] = place(work, on, torch=True)
        return self.layouts[key]


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
    rules: Mapping[str, Any] | None = None,
) -> list[SweepPoint]:
    """Every combination, one simulated step each, and ``off`` beside it. ``rules``: as of ``machine``."""
    points, memo = [], _Memo(options or Options())
    chosen = serving or Serving(accepted=ACCEPTED[scenario.speculative])
    for level in levels:
        at = replace(scenario, concurrency=level)
        stall = stall_us(at, machine(device, runtimes[0], None, changes, **(rules or {})), chosen)
        for name in runtimes:
            for queues in hw_queues:
                on = machine(device, name, queues, changes, **(rules or {}))
                base = tpot_us(memo.run(at, OFF, on).wall_ns / 1e3, chosen, stall)
                points += [_point(level, plan, on, memo.run(at, plan, on), base, chosen, stall) for plan in plans]
    return points


def _point(
    level: int, plan: OverlapPlan, on: Machine, run: Simulated, base_us: float, serving: Serving, stall: float
) -> SweepPoint:
    step = run.wall_ns / 1e3
    tpot = tpot_us(step, serving, stall)
    return SweepPoint(
        device=on.device.name,
        runtime=on.runtime.name,
        plan=plan.name,
        hw_queues=on.hw_queues,
        concurrency_level=level,
        step_us=step,
        tpot_ms=tpot / 1e3,
        delta_vs_off=tpot / base_us - 1.0,
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
