"""What a search session is asked for: where to look, how, and how much it may cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from dsv4lab.config import checks
from dsv4lab.errors import UsageError
from dsv4lab.tuning.knobs import KnobSpace

GRID, TPE, PARETO = "grid", "tpe", "pareto"
METHODS = (GRID, TPE, PARETO)
"""All settings, the promising first; those that a tree of Parzen estimators proposes by TPOT; the same by TPOT and
throughput together, over all loads."""

MAX_GRID = 100_000
QUARTER = 4
LEAST_TRIALS = 8


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured for an answer.

    ``alpha`` is the chance that a session calls a setting faster (or slower) that is not, and ``least`` the smallest
    difference of TPOT that counts, as a fraction. A setting is measured in at most ``explore_pairs`` pairs while the
    search goes on, the winner of a load in at most ``confirm_pairs`` fresh ones. A new process makes ``warm_loads``
    loads that do not count, more if its times have not settled by then. Where an arm needs a process of its own, a
    confirming pair is one of fresh processes, with ``burst`` loads in each.
    """

    alpha: float = 0.01
    least: float = 0.01
    explore_pairs: int = 6
    confirm_pairs: int = 30
    warm_loads: int = 1
    burst: int = 3

    def __post_init__(self) -> None:
        for name, high in (("alpha", 0.5), ("least", 1.0)):
            value = getattr(self, name)
            if not 0 < value < high:
                raise UsageError(f"--{name}: got {value:g}, it takes a number above 0 and below {high:g}")
        for name in ("explore_pairs", "confirm_pairs", "burst"):
            _whole(name, getattr(self, name), 1, 10_000)
        _whole("warm_loads", self.warm_loads, 0, 1000)


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """A search over ``space`` by ``method``, until ``trials`` settings are measured or ``seconds`` are over.

    ``exact``: a setting whose outputs are not the baseline's is refused; otherwise that is only recorded. ``trials``
    None means every setting of a grid, and a quarter of them (8 at least) for the other methods. Raises
    :class:`UsageError`.
    """

    space: KnobSpace
    method: str = TPE
    effort: Effort = field(default_factory=Effort)
    trials: int | None = None
    seconds: float | None = None
    seed: int = 0
    exact: bool = True

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(f"--search: got {self.method!r}, it takes {checks.one_of(METHODS)}")
        if self.trials is not None:
            _whole("trials", self.trials, 1, 10**9)
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds > 0):
            raise UsageError(f"--time: got {self.seconds:g}, it takes seconds above 0")
        _whole("seed", self.seed, 0, 2**31 - 1)
        if self.space.size > MAX_GRID:
            raise UsageError(f"the grid has {self.space.size} settings: give fewer values, {MAX_GRID} are the most")

    @property
    def choices(self) -> int:
        """Settings that can be tried: all points but the baseline under each load."""
        return self.space.size - len(self.space.strata())

    @property
    def budget(self) -> int:
        """Settings that are tried at most."""
        if self.trials is not None:
            return min(self.trials, self.choices)
        if self.method == GRID:
            return self.choices
        return min(self.choices, max(LEAST_TRIALS, math.ceil(self.choices / QUARTER)))

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the space."""
        return {
            "method": self.method,
            **asdict(self.effort),
            "trials": self.trials,
            "seconds": self.seconds,
            "seed": self.seed,
            "exact": self.exact,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], space: KnobSpace) -> Self:
        """Inverse of :meth:`to_json`."""
        own = {name: data[name] for name in ("method", "trials", "seconds", "seed", "exact")}
        return cls(space, effort=Effort(**{name: data[name] for name in Effort.__slots__}), **own)


def _whole(name: str, value: int, low: int, high: int) -> None:
    option = f"--{name.replace('_', '-')}"
    if not low <= value <= high:
        raise UsageError(f"{option}: got {value}, it takes an integer from {low} to {high}")
