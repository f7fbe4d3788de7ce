"""What a search session ends in: per load a setting to use and how sure that is, the front, and the machine's noise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from dsv4lab.errors import EngineError
from dsv4lab.timeline.records import Manifest
from dsv4lab.tuning.block import EXPLORE, OK, WARM_UP, Block
from dsv4lab.tuning.knobs import KnobSpace, Setting
from dsv4lab.tuning.paired import Verdict
from dsv4lab.tuning.pilot import MachineNoise, machine_noise
from dsv4lab.tuning.search.forecast import changed_knobs
from dsv4lab.tuning.search.log import Decision
from dsv4lab.tuning.search.plan import SearchPlan

NOTHING_BETTER = "nothing better"
"""Verdict of a load under which no setting came out ahead of the baseline, so that none was confirmed."""

CONTENDERS, CLOSE = 3, 3.0
"""At most so many settings meet in a run-off: those within so many times the least difference of the best."""

_FIGURES = (
    "delta",
    "low",
    "high",
    "pairs",
    "tpot_ms",
    "baseline_tpot_ms",
    "tokens_per_s",
    "baseline_tokens_per_s",
    "why",
    "stopped",
)


@dataclass(frozen=True, slots=True)
class Level:
    """The answer for one load. ``use`` is ``candidate`` if fresh pairs have shown it faster, else the baseline.

    ``verdict`` and figures are of the candidate, from its confirmation alone (see :class:`Decision`).
    """

    load: Setting
    use: Setting
    baseline: Setting
    candidate: Setting | None
    verdict: str
    tried: int
    failed: int
    confirmation: Decision | None = None

    @classmethod
    def of(cls, space: KnobSpace, load: Setting, decisions: Sequence[Decision], confirmation: Decision | None) -> Self:
        """From what was found under ``load``, and the confirmation of its best."""
        baseline = space.join(space.baseline, load)
        own = [d for d in decisions if space.load_of(d.setting) == load]
        faster = confirmation is not None and confirmation.verdict == Verdict.FASTER
        return cls(
            load=load,
            use=confirmation.setting if confirmation is not None and faster else baseline,
            baseline=baseline,
            candidate=None if confirmation is None else confirmation.setting,
            verdict=NOTHING_BETTER if confirmation is None else confirmation.verdict,
            tried=len(own),
            failed=sum(d.outcome != OK for d in own),
            confirmation=confirmation,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data: the decision's figures beside the answer."""
        settings = {
            name: None if setting is None else setting.to_json()
            for name, setting in (
                ("load", self.load),
                ("use", self.use),
                ("baseline", self.baseline),
                ("candidate", self.candidate),
            )
        }
        figures = self.confirmation or Decision(-1, "", self.baseline)
        shown = {name: getattr(figures, name) for name in _FIGURES}
        return {**settings, "verdict": self.verdict, "tried": self.tried, "failed": self.failed, **shown}


@dataclass(frozen=True, slots=True)
class Point:
    """A measured setting by its own figures: medians over its blocks."""

    setting: Setting
    tpot_ms: float
    tokens_per_s: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "setting": self.setting.to_json()}


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a session found. ``front``: the settings, over all loads, that none beats in both TPOT and throughput.

    ``choices`` counts the settings that differ from the baseline and from each other, ``trials`` those of them that all
    workers tried, ``own_trials`` those of this one.
    """

    folder: Path
    manifest: Manifest
    plan: SearchPlan
    decisions: tuple[Decision, ...]
    levels: tuple[Level, ...]
    front: tuple[Point, ...]
    noise: MachineNoise | None
    choices: int
    trials: int
    own_trials: int

    @property
    def explored(self) -> list[Decision]:
        """Decisions of this worker, those of confirmation left out."""
        return [decision for decision in self.decisions if decision.phase == EXPLORE]

    def outcome(self) -> dict[str, Any]:
        """What the session's last records keep."""
        return {
            "levels": [level.to_json() for level in self.levels],
            "front": [point.to_json() for point in self.front],
            "noise": None if self.noise is None else self.noise.to_json(),
            "trials": self.trials,
            "own_trials": self.own_trials,
            "choices": self.choices,
        }

    def to_json(self) -> dict[str, Any]:
        """The documented object of ``tune --search --json``."""
        return {
            **self.outcome(),
            "decisions": [decision.to_json() for decision in self.decisions],
            "out": str(self.folder),
            "manifest": self.manifest.to_json(),
        }


def pick_candidate(space: KnobSpace, load: Setting, decisions: Iterable[Decision], least: float) -> Setting | None:
    """The best setting under ``load`` by what was found; None if none is ahead of the baseline.

    Among those within half of ``least`` of the best, the one that changes the fewest knobs.
    """
    near = _near_best(space, load, decisions, least / 2)
    return min(near, key=lambda d: (changed_knobs(space, d.setting), d.delta)).setting if near else None


def contenders(space: KnobSpace, load: Setting, decisions: Iterable[Decision], least: float) -> list[Setting]:
    """The settings that may be the best under ``load``, so few pairs being what they are; the best first."""
    near = _near_best(space, load, decisions, CLOSE * least)
    return [d.setting for d in sorted(near, key=lambda d: d.delta or 0.0)[:CONTENDERS]]


def _near_best(space: KnobSpace, load: Setting, decisions: Iterable[Decision], margin: float) -> list[Decision]:
    own = [d for d in decisions if d.ok and space.load_of(d.setting) == load and not _ruled_out(d)]
    ahead = [(d.delta, d) for d in own if d.delta is not None and d.delta < 0]
    best = min((delta for delta, _ in ahead), default=0.0)
    return [d for delta, d in ahead if delta <= best + margin]


def _ruled_out(decision: Decision) -> bool:
    return decision.verdict in (Verdict.SLOWER, Verdict.NO_DIFFERENCE, Verdict.NO_GAIN)


def measured_points(space: KnobSpace, decisions: Iterable[Decision]) -> Iterable[Point]:
    """Every setting with figures, and each load's baseline as it was beside the first of them."""
    seen: set[Setting] = set()
    for d in decisions:
        if d.tpot_ms is None or d.tokens_per_s is None or d.baseline_tpot_ms is None:
            continue
        yield Point(d.setting, d.tpot_ms, d.tokens_per_s)
        baseline = space.baseline_for(d.setting)
        if baseline not in seen and d.baseline_tokens_per_s is not None:
            seen.add(baseline)
            yield Point(baseline, d.baseline_tpot_ms, d.baseline_tokens_per_s)


def noise_of(space: KnobSpace, blocks: Mapping[int, Sequence[Block]]) -> MachineNoise | None:
    """The machine's noise in the baseline's blocks, under the load where it is largest; None for too few blocks."""
    series: dict[Setting, dict[int, list[float]]] = {}
    for own in blocks.values():
        for block in own:
            if block.ok and block.phase != WARM_UP and block.setting == space.baseline_for(block.setting):
                series.setdefault(block.setting, {}).setdefault(block.process, []).append(block.tpot)
    found = []
    for processes in series.values():
        with contextlib.suppress(EngineError):
            found.append(machine_noise(list(processes.values())))
    return max(found, key=lambda noise: noise.pair_sd, default=None)
