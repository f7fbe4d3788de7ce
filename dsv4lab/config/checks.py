"""Checks of single values; each raises :class:`ConfigError` naming source, field, what it got and what it takes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from dsv4lab.errors import ConfigError

_SHOWN = 80


def mismatch(source: str, field: str, got: object, expected: str) -> ConfigError:
    """The error of this module, for checks that are not among those below."""
    return ConfigError(f"{source}: {field}: got {shown(got)}, expected {expected}")


def shown(value: object) -> str:
    """``value`` as one short line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def integer(source: str, field: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """``value`` as an int within ``[low, high]``; booleans and floats are not integers."""
    inside = isinstance(value, int) and not isinstance(value, bool)
    if inside and low is not None:
        inside = value >= low  # type: ignore[operator]
    if inside and high is not None:
        inside = value <= high  # type: ignore[operator]
    if not inside:
        raise mismatch(source, field, value, f"an integer{_bounds(low, high)}")
    return value  # type: ignore[return-value]


def number(source: str, field: str, value: object, above: float | None = None, low: float | None = None) -> float:
    """``value`` as a finite float, greater than ``above`` and at least ``low`` where given."""
    inside = isinstance(value, (int, float)) and not isinstance(value, bool) and _finite(value)
    if inside and (above is None or value > above) and (low is None or value >= low):  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    limit = f" above {above:g}" if above is not None else f" of at least {low:g}" if low is not None else ""
    raise mismatch(source, field, value, f"a finite number{limit}")


def boolean(source: str, field: str, value: object) -> bool:
    """``value`` if it is true or false."""
    if not isinstance(value, bool):
        raise mismatch(source, field, value, "true or false")
    return value


def text(source: str, field: str, value: object, expected: str, form: re.Pattern[str] | None = None) -> str:
    """``value`` if it is a string that is not empty and, where ``form`` is given, matches it from end to end."""
    if not isinstance(value, str) or not value or (form is not None and not form.fullmatch(value)):
        raise mismatch(source, field, value, expected)
    return value


def choice(source: str, field: str, value: object, allowed: Iterable[str]) -> str:
    """``value`` if it is one of the strings ``allowed``."""
    options = tuple(allowed)
    if not isinstance(value, str) or value not in options:
        raise mismatch(source, field, value, one_of(options))
    return value


def one_of(options: Iterable[object]) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    names = [str(option) for option in options]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _bounds(low: int | None, high: int | None) -> str:
    if low is not None and high is not None:
        return f" from {low} to {high}" if low != high else f" equal to {low}"
    if low is not None:
        return f" of at least {low}"
    return f" of at most {high}" if high is not None else ""
