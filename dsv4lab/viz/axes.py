"""Time units for axes and hovers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit for one axis: ``ns`` nanoseconds are one ``name``."""

    ns: int
    name: str

    def scale(self, values_ns: ArrayLike) -> NDArray[np.float64]:
        """``values_ns`` in this unit, ``float64``."""
        return np.asarray(values_ns, dtype=np.float64) / self.ns

    def text(self, value_ns: float) -> str:
        """``12.3 ms``."""
        return f"{_short(value_ns / self.ns)} {self.name}"


def time_unit(span_ns: float) -> TimeUnit:
    """The largest unit that ``span_ns`` fills at least twice; nanoseconds for less."""
    for ns, name in _UNITS:
        if span_ns >= 2 * ns:
            return TimeUnit(ns, name)
    return TimeUnit(1, "ns")


def time_text(value_ns: float) -> str:
    """A duration in the unit that suits it."""
    return time_unit(abs(value_ns)).text(value_ns)


def plural(count: int, noun: str) -> str:
    """``1 queue``, ``2 queues``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _short(value: float) -> str:
    digits = 2 if abs(value) < 10 else 1
    return f"{value:,.{digits}f}"
