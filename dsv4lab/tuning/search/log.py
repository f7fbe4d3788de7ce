"""The records of a search session as its continuation reads them. The record is the truth; all else is made from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Self

from dsv4lab.tuning.arm_target import Outputs
from dsv4lab.tuning.block import OK, Block
from dsv4lab.tuning.knobs import KnobSpace, Setting
from dsv4lab.tuning.search.forecast import Forecast
from dsv4lab.tuning.stats import median
from dsv4lab.tuning.store import home_records

WORKER, PRIOR, GATE, CLAIM, BLOCK, DECISION, OUTCOME, RESULT = (
    "worker",
    "prior",
    "gate",
    "claim",
    "block",
    "decision",
    "outcome",
    "result",
)
"""Kinds of records."""
CANDIDATE = "candidate"
FAILED_VERDICT = "failed"


@dataclass(frozen=True, slots=True)
class Claim:
    """A setting that the session has set out to measure. ``source`` says who proposed it."""

    trial: int
    phase: str
    setting: Setting
    source: str
    forecast: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "setting": self.setting.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_json`; other keys are ignored."""
        own = {name: data[name] for name in cls.__slots__}
        return cls(**{**own, "setting": Setting.from_json(data["setting"])})


@dataclass(frozen=True, slots=True)
class Decision:
    """What came of a claim. ``delta`` is TPOT against the baseline as a fraction (below zero: faster), with its
    interval; ``stopped`` says why no further pair was measured. Figures are None where there are none.
    """

    trial: int
    phase: str
    setting: Setting
    outcome: str = OK
    why: str | None = None
    verdict: str = FAILED_VERDICT
    delta: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    tpot_ms: float | None = None
    baseline_tpot_ms: float | None = None
    tokens_per_s: float | None = None
    baseline_tokens_per_s: float | None = None
    forecast: float | None = None
    stopped: str = ""

    @property
    def ok(self) -> bool:
        """Whether the setting was measured."""
        return self.outcome == OK and self.delta is not None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "setting": self.setting.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_json`; other keys are ignored."""
        own = {name: data[name] for name in cls.__slots__}
        return cls(**{**own, "setting": Setting.from_json(data["setting"])})


@dataclass(frozen=True, slots=True)
class Pair:
    """A setting and the baseline side by side, from the same prompts: medians over the blocks of each."""

    tpot_ms: float
    baseline_tpot_ms: float
    tokens_per_s: float
    baseline_tokens_per_s: float

    @classmethod
    def of(cls, blocks: Sequence[Block], setting: Setting) -> Self:
        """From the blocks of a whole pair."""
        own = [b for b in blocks if b.setting == setting]
        beside = [b for b in blocks if b.setting != setting]
        return cls(
            median([b.tpot for b in own]),
            median([b.tpot for b in beside]),
            median([b.tokens_per_s for b in own]),
            median([b.tokens_per_s for b in beside]),
        )

    @property
    def log_tpot(self) -> float:
        """Logarithm of the setting's TPOT over the baseline's."""
        return math.log(self.tpot_ms / self.baseline_tpot_ms)

    @property
    def log_throughput(self) -> float:
        """Logarithm of the setting's throughput over the baseline's."""
        return math.log(self.tokens_per_s / self.baseline_tokens_per_s)


def is_whole(blocks: Sequence[Block], setting: Setting) -> bool:
    """Whether these blocks of one pair have as many of ``setting`` as of the baseline, and all have figures."""
    own = sum(b.setting == setting for b in blocks)
    return all(b.ok for b in blocks) and 0 < own == len(blocks) - own


@dataclass(slots=True)
class SearchLog:
    """What is on record so far. ``elapsed_s``: how long the session's earlier lives lasted, together."""

    worker: str | None = None
    forecasts: tuple[Forecast, ...] | None = None
    forecast_by: str = ""
    references: dict[Setting, Outputs] = field(default_factory=dict)
    claims: dict[int, Claim] = field(default_factory=dict)
    blocks: dict[int, list[Block]] = field(default_factory=dict)
    decisions: dict[int, Decision] = field(default_factory=dict)
    candidates: dict[Setting, Setting | None] = field(default_factory=dict)
    processes: int = 0
    elapsed_s: float = 0.0

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]], space: KnobSpace) -> Self:
        """Read records, oldest first; kinds that it does not know are skipped."""
        log = cls()
        begun = last = None
        known = list(records)
        for record in home_records(known):
            if record["kind"] == GATE and record.get("outputs") is not None:
                load = space.load_of(Setting.from_json(record["setting"]))
                log.references[load] = outputs_from_json(record["outputs"])
        for record in known:
            at = datetime.fromisoformat(record["at"])
            if record["kind"] == "session":
                log.elapsed_s += (last - begun).total_seconds() if begun is not None and last is not None else 0.0
                begun = at
            last = at
            log._take(record)
        if begun is not None and last is not None:
            log.elapsed_s += (last - begun).total_seconds()
        return log

    def _take(self, record: Mapping[str, Any]) -> None:
        kind = record["kind"]
        if kind == WORKER:
            self.worker = record["id"]
        elif kind == PRIOR:
            self.forecasts = tuple(Forecast.from_json(data) for data in record["forecasts"])
            self.forecast_by = record["by"]
        elif kind == CLAIM:
            claim = Claim.from_json(record)
            self.claims[claim.trial] = claim
        elif kind == BLOCK:
            block = Block.from_json(record)
            self.blocks.setdefault(block.trial, []).append(block)
            self.processes = max(self.processes, block.process + 1)
        elif kind == DECISION:
            decision = Decision.from_json(record)
            self.decisions[decision.trial] = decision
        elif kind == CANDIDATE:
            chosen = record["setting"]
            self.candidates[Setting.from_json(record["load"])] = None if chosen is None else Setting.from_json(chosen)

    @property
    def next_trial(self) -> int:
        """A number that no trial has yet."""
        return max(self.claims, default=-1) + 1

    def open_claims(self, phase: str) -> list[Claim]:
        """What was in flight when an earlier life ended."""
        return [c for c in self.claims.values() if c.phase == phase and c.trial not in self.decisions]

    def pairs(self, trial: int, phase: str, setting: Setting) -> list[Pair]:
        """The whole pairs of a trial in order; what a crash left of a pair is none."""
        found: dict[int, list[Block]] = {}
        for block in self.blocks.get(trial, []):
            if block.phase == phase:
                found.setdefault(block.pair, []).append(block)
        return [Pair.of(blocks, setting) for _, blocks in sorted(found.items()) if is_whole(blocks, setting)]

    def next_pair(self, trial: int, phase: str) -> int:
        """A pair number that the trial has not used, not even for half a pair."""
        return max((b.pair for b in self.blocks.get(trial, []) if b.phase == phase), default=-1) + 1

    def add(self, block: Block) -> None:
        """Keep a block that has just been recorded."""
        self.blocks.setdefault(block.trial, []).append(block)


def outputs_to_json(outputs: Outputs) -> dict[str, Any]:
    """Plain data."""
    return {name: [list(row) for row in getattr(outputs, name)] for name in Outputs.__slots__}


def outputs_from_json(data: Mapping[str, Any]) -> Outputs:
    """Inverse of :func:`outputs_to_json`."""
    return Outputs(**{name: tuple(tuple(row) for row in data[name]) for name in Outputs.__slots__})
