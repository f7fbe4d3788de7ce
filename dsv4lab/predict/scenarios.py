"""Scenarios under plans: one simulated step, and what the plan's gain leans on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dsv4lab.overlap.plan import OFF, OverlapPlan
from dsv4lab.predict.roofline import Scenario, decode_step
from dsv4lab.queues.collectives import arrival_floors, floors_for
from dsv4lab.queues.costs import Machine, doubtful, with_values
from dsv4lab.queues.layout import Layout
from dsv4lab.queues.sensitivity import Gain, Lean, movers, sensitivity
from dsv4lab.queues.simulate import Simulated, simulate
from dsv4lab.queues.workload import Workload, repeat

SCREEN_LAYERS = 8
"""Layers of the model that finds out which values matter at all."""


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


def scenario_leans(scenario: Scenario, plan: OverlapPlan, on: Machine, options: Options | None = None) -> list[Lean]:
    """The assumed values and switches that the gain of ``plan`` over ``off`` leans on, nearest to turning it first.

    The first layers alone say which they may be; those are then asked about the whole step.
    """
    ratios = scenario.model.compress_ratios[:SCREEN_LAYERS]
    short = replace(scenario, model=replace(scenario.model, compress_ratios=ratios))
    chosen = options or Options()
    likely = movers(_gain(short, plan, on, chosen), doubtful(on))
    return sensitivity(_gain(scenario, plan, on, chosen), likely)


def _gain(scenario: Scenario, plan: OverlapPlan, on: Machine, options: Options) -> Gain:
    def gain(changes: dict[str, float]) -> float:
        at = with_values(on, changes)
        off = run_scenario(scenario, OFF, at, options)
        return 1.0 - run_scenario(scenario, plan, at, options).wall_ns / off.wall_ns

    return gain
