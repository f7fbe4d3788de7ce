"""The seed's profile and sweep, predicted from its baseline.

Published: DeepSeek-V4-Pro, TP8, concurrency level 4, DSpark, MI355X, ROCm 10 with ordering edges, four queues.
The baseline gives two numbers, main busy and wall; two are fitted to them: the number of steps (scale), and the host
time between steps (idle time that the packets do not explain). Nothing is fitted to a row with overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dsv4lab.config.presets import preset
from dsv4lab.overlap.plan import OFF, resolve_plan
from dsv4lab.predict.roofline import Scenario
from dsv4lab.predict.scenarios import Options, run_scenario
from dsv4lab.predict.serving import ACCEPTED, Serving
from dsv4lab.predict.sweep import SweepPoint, sweep
from dsv4lab.queues.costs import machine

DEVICE, RUNTIME, QUEUES, PLAN = "mi355x", "rocm-10+ordering-edges", 4, "hip"
BASE_MAIN_MS, BASE_SIDE_MS, BASE_WALL_MS = 1269.5, 1.1, 1665.5
PATCH_MAIN_MS, PATCH_SIDE_MS, PATCH_WALL_MS, PATCH_CONCURRENCY = 1141.0, 161.4, 1561.1, 1.095
SWEEP_TPOT = {1: -0.085, 4: -0.045, 8: -0.057, 16: -0.012, 32: 0.0}
"""Measured change of TPOT by concurrency level (32: about zero)."""


@dataclass(frozen=True, slots=True)
class ProfilePrediction:
    """What the profile would show with the plan, scaled to the baseline. Times in milliseconds."""

    runtime: str
    steps: float
    between_us: float
    main_ms: float
    side_ms: float
    wall_ms: float
    concurrency: float

    @property
    def main_change(self) -> float:
        """Main busy against the baseline's."""
        return self.main_ms / BASE_MAIN_MS - 1.0

    @property
    def wall_change(self) -> float:
        """Wall against the baseline's."""
        return self.wall_ms / BASE_WALL_MS - 1.0

    @property
    def side_over_main(self) -> float:
        """Side busy over main busy."""
        return self.side_ms / self.main_ms


def seed_scenario() -> Scenario:
    """What was served."""
    return Scenario(preset("pro"), tp=8, isl=8192, concurrency=4, speculative="dspark")


def predict_profile(runtime: str = RUNTIME) -> ProfilePrediction:
    """Predict the profile's row with overlap, fitting steps and host time to the baseline's row."""
    on = machine(DEVICE, RUNTIME, QUEUES)
    base = run_scenario(seed_scenario(), OFF, on)
    busy_us = base.timeline().stream_busy(main="main").main_busy_ns / 1e3
    steps = BASE_MAIN_MS * 1e3 / busy_us
    between = max(0.0, BASE_WALL_MS * 1e3 / steps - base.wall_ns / 1e3)
    run = run_scenario(seed_scenario(), resolve_plan(PLAN), machine(DEVICE, runtime, QUEUES), Options())
    found = run.timeline().stream_busy(main="main")
    return ProfilePrediction(
        runtime,
        steps,
        between,
        found.main_busy_ns / 1e6 * steps,
        found.side_busy_ns / 1e6 * steps,
        (run.wall_ns / 1e3 + between) * steps / 1e3,
        found.concurrency,
    )


def predict_sweep() -> list[SweepPoint]:
    """Predict the sweep's changes of TPOT; the host time between steps is the profile's."""
    scenario = seed_scenario()
    serving = Serving(accepted=ACCEPTED["dspark"], between_us=predict_profile().between_us)
    plans = [resolve_plan(PLAN)]
    return sweep(replace(scenario), DEVICE, [RUNTIME], plans, [QUEUES], list(SWEEP_TPOT), serving=serving)
