"""Which values an answer leans on, and how far each must move to turn it round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dsv4lab.queues.values import SWITCH, Value

Gain = Callable[[dict[str, float]], float]
"""Fraction of the time saved, as a function of changed values."""

FACTOR = 8.0
LEANS = 0.002
"""Change of the gain from which on an answer leans on a value, when the value is halved or doubled."""


@dataclass(frozen=True, slots=True)
class Lean:
    """``low`` and ``high``: gain with the value halved and doubled (a share: at 1 at most), of a switch at 0 and at 1.

    ``flips_at``: the nearest value within a factor of 8 at which the gain changes sign, of a switch its other position;
    None if there is none.
    """

    name: str
    value: float
    unit: str
    status: str
    source: str
    low: float
    high: float
    flips_at: float | None

    def to_json(self) -> dict[str, Any]:
        """A row of the documented ``sensitivity``."""
        return {name: getattr(self, name) for name in self.__slots__}


def sensitivity(gain: Gain, values: Mapping[str, Value], statuses: tuple[str, ...] = ("assumed",)) -> list[Lean]:
    """The values of these ``statuses`` that ``gain`` leans on, the one that must move least to flip it first."""
    base = gain({})
    found = []
    for name, value in values.items():
        if value.status not in statuses:
            continue
        low, high = _ends(gain, name, value, base)
        if max(abs(low - base), abs(high - base)) < LEANS:
            continue
        if value.unit == SWITCH:
            other = low if value.value else high
            flips = 1.0 - value.value if (other > 0) != (base > 0) else None
        else:
            flips = _flip(gain, name, value.value, base, _most(value))
        found.append(Lean(name, value.value, value.unit, value.status, value.source, low, high, flips))
    return sorted(found, key=lambda lean: (_distance(lean), lean.name))


def movers(gain: Gain, values: Mapping[str, Value], threshold: float = LEANS / 2) -> dict[str, Value]:
    """Those of ``values`` that move ``gain`` by ``threshold``: a cheap gain chooses what a dear one is asked about."""
    base = gain({})
    return {
        name: value
        for name, value in values.items()
        if max(abs(end - base) for end in _ends(gain, name, value, base)) >= threshold
    }


def _ends(gain: Gain, name: str, value: Value, base: float) -> tuple[float, float]:
    """The gain with ``value`` halved and doubled, or the switch at 0 and at 1; ``base`` where nothing can move."""
    if value.unit == SWITCH:
        other = gain({name: 1.0 - value.value})
        return (other, base) if value.value else (base, other)
    if value.value == 0:
        return base, base
    return gain({name: value.value / 2}), gain({name: value.value * min(2.0, _most(value))})


def _distance(lean: Lean) -> float:
    if lean.flips_at is None:
        return math.inf
    return 0.0 if lean.unit == SWITCH else abs(math.log(lean.flips_at / lean.value))


def _most(value: Value) -> float:
    """By how much ``value`` may grow: a share (a number of at most 1 without a unit) not beyond 1."""
    return min(FACTOR, 1.0 / value.value) if not value.unit and value.value <= 1 else FACTOR


def _flip(gain: Gain, name: str, value: float, base: float, up: float) -> float | None:
    """Bisect on the logarithm of the value, on both sides; the nearer flip."""
    flips = []
    for factor in (1 / FACTOR, up):
        if (gain({name: value * factor}) > 0) == (base > 0):
            continue
        same, other = 0.0, math.log(factor)
        for _ in range(5):
            middle = (same + other) / 2
            if (gain({name: value * math.exp(middle)}) > 0) == (base > 0):
                same = middle
            else:
                other = middle
        flips.append(value * math.exp(other))
    return min(flips, key=lambda at: abs(math.log(at / value)), default=None)
