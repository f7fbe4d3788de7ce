"""Numbers with a source: every value of a device or runtime says where it comes from and how well it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dsv4lab.errors import UsageError

SWITCH = "0 or 1"
"""The unit of a value that is a switch."""

STATUSES = ("known", "calibrated", "assumed", "given")


@dataclass(frozen=True, slots=True)
class Value:
    """A number, its unit, its source and its status.

    ``known``: read from code or a data sheet. ``calibrated``: derived from a published or own measurement, named in
    ``source``. ``assumed``: nobody measured it here; an answer that leans on it must say so. ``given``: by the user.
    """

    value: float
    unit: str
    status: str
    source: str

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise UsageError(f"status {self.status!r} is not one of {', '.join(STATUSES)}")


Values = Mapping[str, Value]


def known(value: float, unit: str, source: str) -> Value:
    """A value read from code or a data sheet."""
    return Value(value, unit, "known", source)


def calibrated(value: float, unit: str, source: str) -> Value:
    """A value derived from the measurement that ``source`` names."""
    return Value(value, unit, "calibrated", source)


def assumed(value: float, unit: str, source: str) -> Value:
    """A value that nobody has measured; ``source`` says what it rests on."""
    return Value(value, unit, "assumed", source)


def override(values: Values, changes: Mapping[str, float]) -> dict[str, Value]:
    """``values`` with some numbers replaced, as given by the user.

    Raises:
        UsageError: an unknown name, or a number below 0.

    """
    out = dict(values)
    for name, number in changes.items():
        if name not in out:
            raise UsageError(f"there is no value {name!r}; it takes one of {', '.join(sorted(out))}")
        if not number >= 0:
            raise UsageError(f"{name} must be 0 or more, got {number}")
        out[name] = replace(out[name], value=float(number), status="given", source="set by the user")
    return out


def with_costs(values: Values, costs: Values) -> dict[str, Value]:
    """``values`` with those of ``costs`` (a calibration) in their place.

    Raises:
        UsageError: an unknown name.

    """
    if unknown := set(costs) - set(values):
        raise UsageError(f"costs: there is no value {min(unknown)!r}; it takes {', '.join(sorted(values))}")
    return {**values, **costs}


def rows(values: Values, statuses: tuple[str, ...] = STATUSES) -> list[dict[str, Any]]:
    """The values of these statuses as plain rows."""
    return [
        {"name": name, "value": v.value, "unit": v.unit, "status": v.status, "source": v.source}
        for name, v in values.items()
        if v.status in statuses
    ]
