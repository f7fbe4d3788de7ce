"""Scenarios under plans: one simulated step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dsv4lab.overlap.plan import OFF, OverlapPlan
from dsv4lab.predict.roofline import Scenario, decode_step
from dsv4lab.queues.collectives import arrival_floors, floors_for
from dsv4lab.queues.costs import Machine
from dsv4lab.queues.layout import Layout
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


def run_step(
    work: Workload, scenario: Scenario, on: Machine, chosen: Options, layout: Layout | None = None
) -> Simulated:
    """:func:`run_scenario` with the step already listed, and perhaps already laid out."""
    if chosen.eager:
        work = replace(work, graphs=False)
    if chosen.steps > 1:
        work = repeat(work, chosen.steps)
    if not chosen.skew_us:
        return simulate(work, on, torch=True, layout=layout)
    baseline = run_scenario(scenario, OFF, on, replace(chosen, skew_us=0.0))
    floors = floors_for(work.kinds, arrival_floors(baseline, chosen.skew_us))
    return simulate(work, on, torch=True, floors=floors, layout=layout)
