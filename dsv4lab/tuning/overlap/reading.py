"""What follows from a record: controls, gains, hidden time, distance from the byte floor. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsv4lab.overlap.plan import OFF
from dsv4lab.tuning.overlap.arms import SERIAL
from dsv4lab.tuning.overlap.record import Level, OverlapRecord, PlanTimes
from dsv4lab.tuning.stats import Difference, difference, median, percentile


@dataclass(frozen=True, slots=True)
class PlanView:
    """A plan at a level: median, 10th and 90th percentile of a step in microseconds, and its differences to the level's
    control and to ``off``. ``saved_us``: what it takes off the serial program of the same ops; ``hidden``: that as a
    part of its side ops alone. Both are None where it moves nothing.
    """

    times: PlanTimes
    us: float
    us_p10: float
    us_p90: float
    delta: Difference
    delta_off: Difference
    saved_us: float | None
    hidden: float | None

    @property
    def plan(self) -> str:
        """Which."""
        return self.times.plan

    @property
    def serial(self) -> bool:
        """Whether it is a control."""
        return self.plan in SERIAL


@dataclass(frozen=True, slots=True)
class LevelView:
    """A level, read. ``control`` is the faster serial program, ``best`` the fastest plan, or ``control`` if alone."""

    concurrency: int
    plans: tuple[PlanView, ...]
    control: PlanView
    best: PlanView
    auto: PlanView | None
    floor_us: float | None
    tokens_per_s: tuple[float, float]
    """New tokens per second and GPU under control and best."""

    def of(self, plan: str) -> PlanView | None:
        """The view of ``plan``, if it was measured."""
        return next((view for view in self.plans if view.plan == plan), None)


def read(record: OverlapRecord) -> tuple[LevelView, ...]:
    """Every level of ``record``."""
    return tuple(read_level(level, record.settings.gpus, record.bytes_per_us) for level in record.levels)


def read_level(level: Level, gpus: int, bytes_per_us: float | None) -> LevelView:
    """One level of a bench whose requests ``gpus`` GPUs serve."""
    serial = {times.plan: times for times in level.plans if times.plan in SERIAL}
    control = min(serial.values(), key=lambda times: median(times.rounds_us))
    views = tuple(_view(times, control, serial) for times in level.plans)
    by_plan = {view.plan: view for view in views}
    before = by_plan[control.plan]
    best = min([view for view in views if not view.serial] or [before], key=lambda view: view.us)
    rate = [level.concurrency * 1e6 / view.us / gpus for view in (before, best)]
    total = level.bytes.weights + level.bytes.kv
    return LevelView(
        concurrency=level.concurrency,
        plans=views,
        control=before,
        best=best,
        auto=None if level.auto is None else by_plan.get(level.auto),
        floor_us=None if bytes_per_us is None else total / bytes_per_us,
        tokens_per_s=(rate[0], rate[1]),
    )


def _view(times: PlanTimes, control: PlanTimes, serial: Mapping[str, PlanTimes]) -> PlanView:
    us, saved = median(times.rounds_us), None
    if times.side_us is not None:
        saved = median(serial[times.serial].rounds_us) - us
    return PlanView(
        times=times,
        us=us,
        us_p10=percentile(times.rounds_us, 10),
        us_p90=percentile(times.rounds_us, 90),
        delta=compared(times.rounds_us, control.rounds_us),
        delta_off=compared(times.rounds_us, serial[OFF.name].rounds_us),
        saved_us=saved,
        hidden=saved / times.side_us if saved is not None and times.side_us else None,
    )


def compared(mine: Sequence[float], other: Sequence[float]) -> Difference:
    """The relative difference over rounds in which both took their turn."""
    return difference([math.log(a / b) for a, b in zip(mine, other, strict=True)])
