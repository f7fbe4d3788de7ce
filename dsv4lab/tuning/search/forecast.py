"""What a model says of every setting before any is measured, and the order that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from dsv4lab.tuning.knobs import KnobSpace, Setting


@dataclass(frozen=True, slots=True)
class Forecast:
    """``change``: predicted TPOT against the baseline under the same load, as a fraction; below zero is faster.

    ``tpot_ms`` where the model gives one.
    """

    setting: Setting
    change: float
    tpot_ms: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"setting": self.setting.to_json(), "change": self.change, "tpot_ms": self.tpot_ms}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_json`."""
        return cls(Setting.from_json(data["setting"]), data["change"], data["tpot_ms"])


class Prior(Protocol):
    """A model that forecasts. Its order is a guess to begin with; only what is measured decides."""

    @property
    def name(self) -> str:
        """What forecasts, for people."""
        ...

    def forecasts(self, space: KnobSpace) -> Sequence[Forecast]:
        """One per point of the space, or of those that the model can say something about."""
        ...


Alike = Callable[[Setting], Hashable]
"""A key that is equal for settings which a target cannot tell apart, so that one of them stands for all."""


class Order:
    """Settings from the most to the least promising.

    Among settings of equal forecast (all of them, without a model) those that change fewer knobs of the baseline come
    first, then the order of the grid. What has no forecast comes where no change is predicted.

    Of settings that come to the same by ``alike`` (equal keys), only the first is kept; none that is the baseline's.
    """

    def __init__(self, space: KnobSpace, forecasts: Sequence[Forecast], alike: Alike | None = None) -> None:
        self.space = space
        self.changes = {forecast.setting: forecast.change for forecast in forecasts}
        ranked = sorted(
            (s for s in space.grid() if s != space.baseline_for(s)),
            key=lambda s: (round(self.changes.get(s, 0.0), 6), changed_knobs(space, s)),
        )
        self.settings = tuple(_different(space, ranked, alike or _itself))
        self._all = frozenset(self.settings)
        self._by_load: dict[Setting, list[Setting]] = {}
        for setting in self.settings:
            self._by_load.setdefault(space.load_of(setting), []).append(setting)

    def of(self, load: Setting) -> Sequence[Setting]:
        """The settings of one stratum, in order."""
        return self._by_load.get(load, [])

    def __contains__(self, setting: Setting) -> bool:
        return setting in self._all

    def forecast(self, setting: Setting) -> float | None:
        """The predicted change of ``setting``; None without a forecast."""
        return self.changes.get(setting)


def _different(space: KnobSpace, ranked: Sequence[Setting], alike: Alike) -> Iterator[Setting]:
    seen = {alike(space.join(space.baseline, load)) for load in space.strata()}
    for setting in ranked:
        key = alike(setting)
        if key not in seen:
            seen.add(key)
            yield setting


def _itself(setting: Setting) -> Hashable:
    return setting


def changed_knobs(space: KnobSpace, setting: Setting) -> int:
    """How many knobs of ``setting`` differ from the baseline."""
    return distance(space.tuned_of(setting), space.baseline)


def distance(a: Setting, b: Setting) -> int:
    """Knobs in which two settings of the same knobs differ."""
    return sum(x != y for x, y in zip(a.items, b.items, strict=True))
