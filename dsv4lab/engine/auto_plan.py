"""Plan ``auto``: which of the presets a batch bucket is best run under, by measurement. Pure: the times come in."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsv4lab.overlap.plan import OFF, OverlapPlan, resolve_plan

CANDIDATES = (
    "off", "hip", "cuda", "side", "side+query", "moe", "cuda+moe", "side+moe", "side+query+moe", "side+query+moe+high",
    "side+query+route", "keys+moe+high",
)  # fmt: skip
ROUNDS, REPLAYS = 9, 3
"""Times that each candidate is measured, all of them in turn, and replays in a row of each measurement."""

MARGIN = 0.005
"""A plan that is not faster than ``off`` by more than this part is not taken."""

WINS = 0.75
"""Nor is one that is slower than ``off`` in more than a quarter of the rounds."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan taken, and the median microseconds of every candidate by name."""

    plan: OverlapPlan
    us: Mapping[str, float]


def candidates(side_streams: int | None) -> tuple[OverlapPlan, ...]:
    """The plans to try, ``off`` first, folded onto ``side_streams`` unless None."""
    plans = [resolve_plan(name) for name in CANDIDATES]
    return tuple(plans if side_streams is None else [plan.fold(side_streams) for plan in plans])


def choose(plans: Sequence[OverlapPlan], us: Sequence[Sequence[float]]) -> Choice:
    """The plan with the lowest median of its ratios to ``off`` (the first), round by round, or ``off`` itself.

    ``us[p][r]`` are the microseconds of plan ``p`` in round ``r``.
    """
    best, best_ratio = OFF, 1.0 - MARGIN
    for plan, times in zip(plans[1:], us[1:], strict=True):
        ratios = [mine / off for mine, off in zip(times, us[0], strict=True)]
        ratio = statistics.median(ratios)
        if ratio < best_ratio and sum(r < 1.0 for r in ratios) >= WINS * len(ratios):
            best, best_ratio = plan, ratio
    return Choice(best, {plan.name: statistics.median(times) for plan, times in zip(plans, us, strict=True)})
