"""One timed load of one setting, as a target gives it and as a search session records it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from dsv4lab.tuning.knobs import Setting
from dsv4lab.tuning.stats import median

OK = "ok"
DIED_AT_START, START_TIMED_OUT, CRASHED, HUNG, FAILED = (
    "died_at_start",
    "start_timed_out",
    "crashed",
    "hung",
    "failed",
)
"""How a load ends that has no figures; the words of :class:`dsv4lab.load.trial.Outcome`."""
OUTPUTS_DIFFER = "outputs_differ"
"""It ran and is of no use: its tokens are not those of the baseline."""
OUTCOMES = (OK, DIED_AT_START, START_TIMED_OUT, CRASHED, HUNG, FAILED, OUTPUTS_DIFFER)

WARM_UP, EXPLORE, RUN_OFF, CONFIRM = "warm-up", "explore", "run-off", "confirm"
NO_PAIR = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A load's figures: ``tpot_ms`` and ``ttft_ms`` hold one value per request, where the request has one.

    ``process`` numbers the process lives of its target; ``tokens`` names the greedy outputs (equal names, equal
    outputs; empty where the target does not tell them); ``why`` says what went wrong where ``outcome`` is not ``ok``.
    """

    process: int = 0
    tpot_ms: tuple[float, ...] = ()
    ttft_ms: tuple[float, ...] = ()
    tokens_per_s: float = math.nan
    wall_s: float = math.nan
    tokens: str = ""
    outcome: str = OK
    why: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether it has figures to compare."""
        return self.outcome == OK

    @property
    def tpot(self) -> float:
        """Median TPOT of its requests, ms; NaN without any."""
        return median(self.tpot_ms)

    @property
    def ttft(self) -> float:
        """Median TTFT of its requests, ms; NaN without any."""
        return median(self.ttft_ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block(Measured):
    """What was measured, and where it stands in its session.

    ``trial`` numbers the comparison of a setting with the baseline that the block belongs to, in its own session;
    ``phase`` is ``warm-up``, ``explore``, ``run-off`` or ``confirm``; ``pair`` counts the pairs of that trial and phase
    (-1 for warm-up), and ``position`` the blocks inside the pair. A pair has as many blocks of the trial's setting as
    of the baseline under the same load, all from the same ``seed``.
    """

    setting: Setting
    trial: int
    phase: str
    pair: int
    position: int
    seed: int = 0

    @classmethod
    def of(cls, measured: Measured, **where: Any) -> Self:
        """``measured`` at its place."""
        own = {f.name: getattr(measured, f.name) for f in fields(Measured)}
        return cls(**own, **where)

    def to_json(self) -> dict[str, Any]:
        """Plain data; figures that there are none of are None."""
        data = {**asdict(self), "setting": self.setting.to_json(), "extra": dict(self.extra)}
        for name in ("tokens_per_s", "wall_s"):
            data[name] = None if math.isnan(data[name]) else data[name]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_json`; other keys are ignored."""
        own = {f.name: data[f.name] for f in fields(cls)}
        for name in ("tokens_per_s", "wall_s"):
            own[name] = math.nan if own[name] is None else own[name]
        own["setting"] = Setting.from_json(data["setting"])
        return cls(**{**own, "tpot_ms": tuple(own["tpot_ms"]), "ttft_ms": tuple(own["ttft_ms"])})
