"""Decimal text to integers, exactly: a time never passes through a float."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

import msgspec
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Buffer = bytes | msgspec.Raw
LIMIT = 2**62
_WHOLE_DIGITS = 16  # with three more, below 10**19: what passes 2**63 shows as a negative value
_POWERS = np.array([1000, 100, 10, 1], np.int64)
_NEWLINE, _DOT, _ZERO, _NINE = 10, 46, 48, 57


def micros(text: bytes) -> int | None:
    """Microseconds in decimal (``b"12.5"``, quoted or not, with an exponent or not) as nanoseconds.

    Rounded to even below one nanosecond; ``None`` for what is no number or does not fit 62 bits.
    """
    try:
        value = Decimal(text.strip(b' "').decode("ascii"))
        if not value.is_finite() or value.adjusted() > 18:
            return None
        scaled = int((value * 1000).to_integral_value(ROUND_HALF_EVEN)) if value.adjusted() > -8 else 0
    except (InvalidOperation, UnicodeDecodeError):
        return None
    return scaled if abs(scaled) < LIMIT else None


def micros_column(texts: Sequence[Buffer]) -> Ints | None:
    """All of ``texts`` (plain decimals, at most three fraction digits) as ``int64`` nanoseconds.

    ``None`` if any of them is of another form; the caller then goes one by one with :func:`micros`.
    """
    if not texts:
        return np.empty(0, np.int64)
    joined = b"\n".join(texts)
    data = np.frombuffer(joined, np.uint8)
    is_digit = (data >= _ZERO) & (data <= _NINE)
    is_dot = data == _DOT
    breaks = np.flatnonzero(data == _NEWLINE)
    if int(is_digit.sum()) + int(is_dot.sum()) + len(breaks) != len(data) or len(breaks) != len(texts) - 1:
        return None
    ends = np.append(breaks, len(data))
    starts = np.concatenate(([0], breaks + 1))
    dots = np.flatnonzero(is_dot)
    fraction = np.zeros(len(texts), np.int64)
    owner = np.searchsorted(ends, dots)
    if len(owner) > 1 and bool((owner[1:] == owner[:-1]).any()):
        return None
    fraction[owner] = ends[owner] - dots - 1
    if len(owner) and fraction[owner].min() < 1:
        return None
    digits = ends - starts
    digits[owner] -= 1
    digits[owner] -= 1
    if fraction.max() > 3 or (digits - fraction).max() > _WHOLE_DIGITS or digits.min() < 1:
        return None
    values = _by_width(data, starts, ends - starts, fraction)
    return values if int(values.min()) >= 0 else None


def _by_width(data: NDArray[np.uint8], starts: Ints, widths: Ints, fraction: Ints) -> Ints:
    """Read all numbers of one width and one place of the dot together, digit column by digit column."""
    shape = widths * 4 + fraction
    out = np.empty(len(starts), np.int64)
    for key in np.flatnonzero(np.bincount(shape)):
        rows = np.flatnonzero(shape == key)
        width, after = divmod(int(key), 4)
        first = starts[rows]
        value = np.zeros(len(rows), np.int64)
        for column in range(width):
            if after and column == width - after - 1:
                continue
            value = value * 10 + (data[first + column] - np.uint8(_ZERO))
        out[rows] = value * _POWERS[after]
    return out
