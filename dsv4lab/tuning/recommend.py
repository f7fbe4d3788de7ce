"""What to use, and how sure that is: pick a candidate from the sweep, decide by its own paired trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsv4lab.tuning import stats
from dsv4lab.tuning.rows import paired_logs
from dsv4lab.tuning.space import BASELINE, Cell, SweepSpace
from dsv4lab.tuning.stats import Difference, Noise
from dsv4lab.tuning.trial import CONFIRM, Trial, by_block
from dsv4lab.units import percent_text

LEAST_GAIN = 0.01
"""A difference below this fraction of TPOT is called none, however sure it is."""

SCOPE = "for this CPU and this load only; it predicts nothing about a GPU"


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan on a number of hardware queues."""

    plan: str
    hw_queues: int

    @property
    def text(self) -> str:
        """``hip on 2 hardware queues``."""
        return f"{self.plan} on {self.hw_queues} hardware queue{'s' * (self.hw_queues != 1)}"


@dataclass(frozen=True, slots=True)
class LevelFinding:
    """The candidate against ``off`` at one concurrency level, in the confirming trials; TPOT are their medians."""

    concurrency_level: int
    tpot_ms: float
    off_tpot_ms: float
    difference: Difference
    verdict: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to use, the candidate that was tested for it, and the evidence.

    ``verdict`` is of the candidate against ``off`` over all concurrency levels: ``faster``, ``slower``,
    ``no difference``, ``undecided``, or ``nothing to compare`` when only ``off`` was measured.
    """

    use: Choice
    candidate: Choice | None
    verdict: str
    difference: Difference | None
    levels: tuple[LevelFinding, ...]
    noise: Noise

    @property
    def headline(self) -> str:
        """One sentence: what to use on this CPU."""
        return f"Use {self.use.text} on this CPU."

    @property
    def reason(self) -> str:
        """One or two sentences: why."""
        if self.candidate is None or self.difference is None:
            return f"Only {BASELINE} was measured, so there was nothing to compare it with."
        found = _difference_text(self.difference)
        name = self.candidate.text
        if self.verdict == "faster":
            pairs = f"in {self.difference.pairs} paired trials"
            return f"{name} changes TPOT by {found} against off {pairs}.{self._limits()}"
        if self.verdict == "slower":
            return f"The best overlap found, {name}, is slower than off: TPOT {found}."
        if self.verdict == "undecided":
            return (
                f"{self.difference.pairs} paired trials are too few to tell {name} ({found}) from off; "
                f"--confirm {stats.MIN_BLOCKS} or more gives an interval."
            )
        small = "is too little to matter" if abs(self.difference.delta) < LEAST_GAIN else "chance explains"
        return f"No difference: the best overlap found, {name}, changes TPOT by {found}, which {small}."

    def to_json(self) -> dict[str, Any]:
        """The documented ``best`` of ``tune --json``."""
        return {
            "plan": self.use.plan,
            "hw_queues": self.use.hw_queues,
            "verdict": self.verdict,
            "delta_vs_off": self._gain(),
            "candidate": self._candidate(),
            "by_concurrency": [self._level(level) for level in self.levels],
            "noise": self.noise.to_json(),
            "headline": self.headline,
            "reason": self.reason,
            "scope": SCOPE,
        }

    def _gain(self) -> float:
        return self.difference.delta if self.difference and self.verdict == "faster" else 0.0

    def _candidate(self) -> dict[str, Any] | None:
        if self.candidate is None or self.difference is None:
            return None
        return {"plan": self.candidate.plan, "hw_queues": self.candidate.hw_queues, **self.difference.to_json()}

    def _level(self, level: LevelFinding) -> dict[str, Any]:
        plan = BASELINE if level.verdict == "slower" else self.use.plan
        return {
            "concurrency_level": level.concurrency_level,
            "plan": plan,
            "hw_queues": self.use.hw_queues,
            "verdict": level.verdict,
            "tpot_ms": level.off_tpot_ms if plan == BASELINE else level.tpot_ms,
            **level.difference.to_json(),
        }

    def _limits(self) -> str:
        slower = [str(level.concurrency_level) for level in self.levels if level.verdict == "slower"]
        same = [str(level.concurrency_level) for level in self.levels if level.verdict == "no difference"]
        text = f" At concurrency {', '.join(slower)} it is slower: use off there." if slower else ""
        return text + (f" At concurrency {', '.join(same)} alone the difference is within chance." if same else "")


def pick_candidate(space: SweepSpace, trials: Sequence[Trial]) -> Choice | None:
    """The overlap worth confirming: lowest TPOT against ``off`` beside it, averaged over concurrency levels.

    Among choices within :data:`LEAST_GAIN` of the lowest, the one with the fewest queues, then the first plan listed.
    On one queue nothing can overlap, so it is passed over where others were measured: a gain there is noise.
    None if no plan but ``off`` was measured at every level.
    """
    scores: dict[Choice, float] = {}
    overlapping = [queues for queues in sorted(space.hw_queues) if queues > 1]
    for queues in overlapping or sorted(space.hw_queues):
        for plan in space.plan_names:
            cells = [Cell(plan, queues, level) for level in space.concurrency]
            logs = [list(paired_logs(trials, cell).values()) for cell in cells] if plan != BASELINE else [[]]
            if all(logs):
                scores[Choice(plan, queues)] = sum(stats.median(values) for values in logs) / len(logs)
    if not scores:
        return None
    lowest = min(scores.values())
    return next(choice for choice, score in scores.items() if score <= lowest + LEAST_GAIN)


def recommend(space: SweepSpace, trials: Sequence[Trial], candidate: Choice | None, noise: Noise) -> Recommendation:
    """Decide by the confirming trials of ``candidate``, which played no part in choosing it."""
    plain = Choice(BASELINE, min(space.hw_queues))
    if candidate is None:
        return Recommendation(plain, None, "nothing to compare", None, (), noise)
    logs = {
        level: paired_logs(trials, Cell(candidate.plan, candidate.hw_queues, level), CONFIRM)
        for level in space.concurrency
    }
    blocks = set.intersection(*(set(found) for found in logs.values()))
    if not blocks:
        return Recommendation(plain, None, "nothing to compare", None, (), noise)
    seed = space.load.seed
    overall = stats.difference([_mean([found[b] for found in logs.values()]) for b in sorted(blocks)], seed)
    levels = []
    for level, found in logs.items():
        own = stats.difference(list(found.values()), seed)
        cells = [Cell(plan, candidate.hw_queues, level) for plan in (candidate.plan, BASELINE)]
        tpot, off = (_tpot(confirming_trials(trials, candidate, cell)) for cell in cells)
        levels.append(LevelFinding(level, tpot, off, own, own.verdict(LEAST_GAIN)))
    verdict = overall.verdict(LEAST_GAIN)
    use = candidate if verdict == "faster" else plain
    return Recommendation(use, candidate, verdict, overall, tuple(levels), noise)


def confirming_trials(trials: Sequence[Trial], candidate: Choice, cell: Cell) -> list[Trial]:
    """The confirming trials of ``cell`` that stood in pairs of ``candidate`` with ``off``.

    A merged session may have others: of what another of its sessions nominated.
    """
    own = by_block(trials, replace(cell, plan=candidate.plan), CONFIRM)
    return [trial for block, trial in by_block(trials, cell, CONFIRM).items() if block in own]


def _tpot(trials: Sequence[Trial]) -> float:
    return stats.median(stats.pooled([trial.tpot_ms for trial in trials]))


def _difference_text(difference: Difference) -> str:
    if difference.low is None or difference.high is None:
        return percent_text(difference.delta)
    low, high = percent_text(difference.low), percent_text(difference.high)
    return f"{percent_text(difference.delta)} (95 % interval {low} to {high})"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
