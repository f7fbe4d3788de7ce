"""The noise of the machine, measured on the baseline alone, and what it means for a comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dsv4lab.errors import EngineError, UsageError
from dsv4lab.tuning.arm_target import ArmTarget
from dsv4lab.tuning.design import ALPHA, MAX_PAIRS, POWER, detectable, pairs_needed
from dsv4lab.tuning.knobs import Setting
from dsv4lab.tuning.ranks import Array, scale
from dsv4lab.tuning.series import autocorrelation, drift, outliers, warm_up_end

PILOT_PAIRS = 12
FEWEST_PAIRS = 6
"""Fewer pairs of equal blocks tell no noise."""

_MEDIAN_VARIANCE = math.pi / 2
TOLD = (0.01, 0.03)
"""Differences whose pairs are printed."""


@dataclass(frozen=True, slots=True)
class MachineNoise:
    """How far equal blocks lie apart, as standard deviations of logarithms: nearly fractions. All robust.

    ``pair_sd`` is that of the log ratio of two neighbours, which is what a paired comparison feels; ``repeat_sd`` that
    of blocks inside a process, drift included; ``process_sd`` that of process lives beside it (None for one process).
    ``autocorrelation`` is between neighbours (None for few), ``drift`` the change per block. ``warm_up`` blocks at the
    start of each process are left out of all that; ``outliers`` are marked and left in.
    """

    blocks: int
    processes: int
    warm_up: tuple[int, ...]
    outliers: int
    pair_sd: float
    repeat_sd: float
    process_sd: float | None
    autocorrelation: float | None
    drift: float

    def sd(self, *, fresh_processes: bool = False) -> float:
        """Of the log ratio of a pair; with ``fresh_processes``, of blocks with a process of their own each."""
        return math.hypot(self.pair_sd, math.sqrt(2) * (self.process_sd or 0.0) if fresh_processes else 0.0)

    def pairs_needed(
        self, delta: float, alpha: float = ALPHA, power: float = POWER, *, fresh_processes: bool = False
    ) -> int:
        """Pairs that show a difference of ``delta`` (a fraction) with a chance of ``power``, in a fixed design."""
        return pairs_needed(self.sd(fresh_processes=fresh_processes), delta, alpha, power)

    def detectable(
        self, pairs: int, alpha: float = ALPHA, power: float = POWER, *, fresh_processes: bool = False
    ) -> float | None:
        """The least difference that ``pairs`` pairs show with a chance of ``power``; None if they never can."""
        return detectable(self.sd(fresh_processes=fresh_processes), pairs, alpha, power)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "warm_up": list(self.warm_up)}

    def _needed_text(self, delta: float, alpha: float, power: float, *, fresh_processes: bool = False) -> str:
        try:
            return str(self.pairs_needed(delta, alpha, power, fresh_processes=fresh_processes))
        except UsageError:
            return f"more than {MAX_PAIRS}"

    def lines(self, alpha: float = ALPHA, power: float = POWER) -> list[str]:
        """What a reader needs to know, one sentence each."""
        needs = [f"{100 * d:g} % needs {self._needed_text(d, alpha, power)} pairs" for d in TOLD]
        spread = f"the ratio of two neighbours spreads by ±{100 * self.pair_sd:.2f} %"
        said = [
            f"Noise of this machine, from {self.blocks} blocks of the baseline: {spread}.",
            f"{' and '.join(needs)} here at power {100 * power:g} % (α = {100 * alpha:g} %).",
        ]
        if self.process_sd is not None:
            own = self._needed_text(TOLD[0], alpha, power, fresh_processes=True)
            said.append(
                f"Processes differ by ±{100 * self.process_sd:.2f} % beside that: where a setting needs its own, "
                f"{100 * TOLD[0]:g} % needs {own} pairs of fresh processes."
            )
        if any(self.warm_up):
            said.append(f"The first {max(self.warm_up)} blocks of a process are warm-up and left out.")
        if self.outliers:
            said.append(f"{self.outliers} blocks are outliers: marked, and kept.")
        if self.autocorrelation is not None and abs(self.autocorrelation) > 2 / math.sqrt(self.blocks):
            said.append(f"Neighbours are correlated ({self.autocorrelation:+.2f}): compare in pairs, in random order.")
        return said


def machine_noise(processes: Sequence[Sequence[float]]) -> MachineNoise:
    """The noise in block medians (any unit) of equal blocks, in time order, one sequence per process.

    Raises :class:`EngineError` if fewer than :data:`FEWEST_PAIRS` pairs of neighbours are left after the warm-up.
    """
    ends = [warm_up_end(values) for values in processes]
    warm_up = tuple(end + end % 2 for end in ends)  # whole pairs
    logs = [np.log(np.asarray(own, np.float64))[cut:] for own, cut in zip(processes, warm_up, strict=True)]
    logs = [own for own in logs if len(own)]
    pairs = [_neighbours(own) for own in logs]
    if sum(map(len, pairs)) < FEWEST_PAIRS:
        raise EngineError(
            f"{sum(map(len, pairs))} pairs of equal blocks tell no noise, it takes {FEWEST_PAIRS} or more"
        )
    inside = [own - np.median(own) for own in logs]
    repeat_sd = scale(np.concatenate(inside))
    return MachineNoise(
        blocks=sum(map(len, logs)),
        processes=len(logs),
        warm_up=warm_up,
        outliers=int(sum(np.count_nonzero(outliers(own)) for own in inside)),
        pair_sd=scale(np.concatenate(pairs)),
        repeat_sd=repeat_sd,
        process_sd=_process_sd(logs, repeat_sd) if len(logs) > 1 else None,
        autocorrelation=autocorrelation(inside),
        drift=float(np.median([drift(own) for own in logs])),
    )


def measure_noise(
    target: ArmTarget,
    setting: Setting,
    *,
    pairs: int = PILOT_PAIRS,
    processes: int = 1,
    seed: int = 0,
    on_block: Callable[[], object] = lambda: None,
) -> MachineNoise:
    """Measure ``setting`` against itself: ``2 * pairs`` blocks in each of ``processes`` fresh ones, two a prompt.

    Raises what the target raises, and :class:`EngineError` if a block has no figures.
    """
    lives: list[list[float]] = []
    for process in range(processes):
        target.prepare(setting, fresh=True)
        lives.append([])
        for block in range(2 * pairs):
            measured = target.measure(setting, seed=seed + process * pairs + block // 2)
            if not measured.ok or math.isnan(measured.tpot):
                raise EngineError(f"{setting.label}: {measured.why or 'the load gave no TPOT'}")
            lives[-1].append(measured.tpot)
            on_block()
    return machine_noise(lives)


def _neighbours(logs: Array) -> Array:
    """Differences of the first and second, third and fourth, ... value, in turning order as a session has it."""
    even = logs[: len(logs) // 2 * 2].reshape(-1, 2)
    turned: Array = (even[:, 1] - even[:, 0]) * np.where(np.arange(len(even)) % 2, -1.0, 1.0)
    return turned


def _process_sd(logs: Sequence[Array], repeat_sd: float) -> float:
    """Standard deviation of processes beside what their medians owe to repeats."""
    medians = [float(np.median(own)) for own in logs]
    owed = _MEDIAN_VARIANCE * repeat_sd**2 * float(np.mean([1 / len(own) for own in logs]))
    return math.sqrt(max(0.0, float(np.var(medians, ddof=1)) - owed))
