"""What a session of any kind says, finished or not: rows, what to use, profiles. Reports are made of this alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4lab.timeline.records import BusySummary
from dsv4lab.tuning import block
from dsv4lab.tuning.knobs import CONCURRENCY, Setting
from dsv4lab.tuning.stats import Difference, Noise, median, noise, percentile, pooled

SWEEP, SEARCH = "sweep", "search"
ENGINE, SERVER, SIMULATED = "engine", "server", "simulated"
BASELINE, CANDIDATE, CONTROL = "baseline", "candidate", "control"
MEASURING, FINISHED = "measuring", "finished"
FAILURES = {
    block.DIED_AT_START: "died at start",
    block.START_TIMED_OUT: "never healthy",
    block.CRASHED: "crashed",
    block.HUNG: "hung",
    block.FAILED: "failed",
    block.OUTPUTS_DIFFER: "other outputs",
}
"""What the outcomes of a block that are no figures are called in tables."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One block that came to its end. ``tpot_ms`` and ``ttft_ms`` hold one value per request.

    ``life`` names the process that it ran in. ``match`` is equal for blocks of two sessions that had the same prompts
    in the same place of the session; None where nothing says so.
    """

    life: str
    phase: str
    match: tuple[str | int, ...] | None
    tpot_ms: tuple[float, ...]
    ttft_ms: tuple[float, ...]
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """A setting under a load: its blocks, and what its pairs say against the baseline under the same load.

    ``verdict`` is ``baseline``, ``control``, one of a decision, or how it failed; ``why`` goes with a failure or an
    end. ``setting`` is without load knobs. ``pairs`` holds (setting, baseline) medians of TPOT in ms, in order.
    """

    load: Setting
    setting: Setting
    role: str
    samples: tuple[Sample, ...]
    change: Difference | None
    verdict: str
    why: str | None = None
    forecast: float | None = None
    pairs: tuple[tuple[float, float], ...] = ()

    @property
    def label(self) -> str:
        """The setting in words."""
        return self.setting.label

    @property
    def failed(self) -> bool:
        """Whether it could not be measured, for a reason that ``why`` gives."""
        return self.verdict in FAILURES.values()

    @property
    def measured(self) -> bool:
        """Whether there is a block with times."""
        return any(sample.tpot_ms for sample in self.samples)

    @property
    def tpot_ms(self) -> float:
        """Median TPOT over requests, ms; NaN without any."""
        return median(pooled([s.tpot_ms for s in self.samples]))

    @property
    def tpot_range_ms(self) -> tuple[float, float]:
        """The 10th and 90th percentile of TPOT over requests, ms."""
        values = pooled([s.tpot_ms for s in self.samples])
        return percentile(values, 10), percentile(values, 90)

    @property
    def ttft_ms(self) -> float:
        """Median TTFT over requests, ms."""
        return median(pooled([s.ttft_ms for s in self.samples]))

    @property
    def tokens_per_s(self) -> float:
        """Median over blocks."""
        return median([s.tokens_per_s for s in self.samples])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        low, high = self.tpot_range_ms
        return {
            "load": self.load.to_json(),
            "setting": self.setting.to_json(),
            "role": self.role,
            "tpot_ms": self.tpot_ms,
            "tpot_p10_ms": low,
            "tpot_p90_ms": high,
            "ttft_ms": self.ttft_ms,
            "tokens_per_s": self.tokens_per_s,
            "blocks": len(self.samples),
            "processes": len({sample.life for sample in self.samples}),
            "change": None if self.change is None else self.change.to_json(),
            "verdict": self.verdict,
            "why": self.why,
            "forecast": self.forecast,
        }


@dataclass(frozen=True, slots=True)
class Use:
    """What to use under a load, and the evidence: ``candidate`` is what was tested for it, None if nothing was.

    ``tpot_ms`` and ``tokens_per_s`` are (baseline, candidate) of the blocks that decide; NaN where there are none.
    """

    load: Setting
    use: Setting
    baseline: Setting
    candidate: Setting | None
    change: Difference | None
    verdict: str
    tpot_ms: tuple[float, float]
    tokens_per_s: tuple[float, float]

    @property
    def gained(self) -> bool:
        """Whether something else than the baseline is to be used."""
        return self.use != self.baseline

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "load": self.load.to_json(),
            "use": self.use.to_json(),
            "baseline": self.baseline.to_json(),
            "candidate": None if self.candidate is None else self.candidate.to_json(),
            "change": None if self.change is None else self.change.to_json(),
            "verdict": self.verdict,
            "baseline_tpot_ms": self.tpot_ms[0],
            "tpot_ms": self.tpot_ms[1],
            "baseline_tokens_per_s": self.tokens_per_s[0],
            "tokens_per_s": self.tokens_per_s[1],
        }


@dataclass(frozen=True, slots=True)
class Profiled:
    """The busy table of a setting, and the file with its trace, relative to the session's folder."""

    load: Setting
    setting: Setting
    role: str
    busy: BusySummary
    trace: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        where = {"load": self.load.to_json(), "setting": self.setting.to_json(), "role": self.role}
        return {**where, "trace": self.trace, "busy": self.busy.to_json()}


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session. ``target`` says what it measured on and ``facts`` what that is; ``manifest`` is the session's own.

    ``gates`` are the outputs that differed, in words. ``level`` is the probability at which intervals hold.
    """

    folder: Path
    kind: str
    target: str
    title: str
    facts: dict[str, Any]
    manifest: dict[str, Any]
    state: str
    rows: tuple[Row, ...]
    uses: tuple[Use, ...]
    profiles: tuple[Profiled, ...]
    gates: tuple[str, ...]
    machines: tuple[str, ...]
    level: float
    gpus: int = 1
    torn: int = 0

    @property
    def loads(self) -> tuple[Setting, ...]:
        """Loads with a row, in order."""
        return tuple(dict.fromkeys(row.load for row in self.rows))

    def row(self, load: Setting, setting: Setting) -> Row | None:
        """The row of a setting under a load, controls left out."""
        found = (r for r in self.rows if r.load == load and r.setting == setting and r.role != CONTROL)
        return next(found, None)

    @property
    def noise(self) -> Noise:
        """How far equal measurements of the baseline lie apart: the largest over loads."""
        found = [noise(list(_by_life(row.samples).values())) for row in self.rows if row.role == BASELINE]
        return Noise(_largest(n.repeat for n in found), _largest(n.process for n in found))


def load_order(load: Setting) -> tuple[Any, ...]:
    """For sorting loads: by all but the concurrency level, then by that."""
    rest = tuple(
        (name, value if isinstance(value, int | float) else -1) for name, value in load.without([CONCURRENCY]).items
    )
    level = load.get(CONCURRENCY)
    return rest, level if isinstance(level, int | float) else -1


def _by_life(samples: Sequence[Sample]) -> dict[str, list[tuple[float, ...]]]:
    out: dict[str, list[tuple[float, ...]]] = {}
    for sample in samples:
        if sample.tpot_ms:
            out.setdefault(sample.life, []).append(sample.tpot_ms)
    return out


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
