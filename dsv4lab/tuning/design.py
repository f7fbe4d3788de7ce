"""Paired designs of a fixed size: how many pairs a difference takes at a given noise, what a number of them shows."""

from __future__ import annotations

import math
from bisect import bisect_left

from scipy.special import nctdtr, stdtrit

from dsv4lab.errors import UsageError
from dsv4lab.tuning.ranks import EFFICIENCY

ALPHA, POWER = 0.01, 0.9
MAX_PAIRS = 1_000_000

_CERTAIN = 30.0
_STEPS = 60


def power_of(sd: float, delta: float, pairs: int, alpha: float = ALPHA) -> float:
    """The chance that the two-sided signed-rank test of ``pairs`` log ratios shows a difference of ``delta``.

    ``sd`` is the standard deviation of a log ratio (:func:`dsv4lab.tuning.ranks.scale`), ``delta`` a fraction. By the
    noncentral t distribution with the pairs that a t test would need less (Lehmann 1975, section 2.3).
    """
    if pairs < fewest_pairs(alpha):
        return 0.0
    if sd == 0:
        return 1.0 if delta else alpha
    worth = pairs * EFFICIENCY
    shift = math.log1p(abs(delta)) / sd * math.sqrt(worth)
    if shift > _CERTAIN:
        return 1.0
    bar = float(stdtrit(worth - 1, 1 - alpha / 2))
    return float(1 - nctdtr(worth - 1, shift, bar) + nctdtr(worth - 1, shift, -bar))


def pairs_needed(sd: float, delta: float, alpha: float = ALPHA, power: float = POWER) -> int:
    """The least number of pairs that shows a difference of ``delta`` with a chance of ``power``.

    Raises :class:`UsageError` for a level or power outside (0, 1), a difference of zero, a noise that is no number,
    and where more than a million pairs would be needed.
    """
    _check(sd, alpha, power)
    if not delta:
        raise UsageError("delta is 0: it takes a difference to detect, as a fraction")
    low, high = fewest_pairs(alpha), fewest_pairs(alpha)
    while power_of(sd, delta, high, alpha) < power:
        low, high = high, 2 * high
        if high > MAX_PAIRS:
            raise UsageError(
                f"a difference of {100 * delta:g} % takes more than {MAX_PAIRS} pairs at a noise of {sd:g}"
            )
    return low + bisect_left(range(low, high), True, key=lambda pairs: power_of(sd, delta, pairs, alpha) >= power)


def detectable(sd: float, pairs: int, alpha: float = ALPHA, power: float = POWER) -> float | None:
    """The least relative difference that ``pairs`` pairs show with a chance of ``power``; None if they never can."""
    _check(sd, alpha, power)
    if pairs < fewest_pairs(alpha):
        return None
    low, high = 0.0, 1e-6
    while power_of(sd, high, pairs, alpha) < power:
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if power_of(sd, middle, pairs, alpha) < power:
            low = middle
        else:
            high = middle
    return high


def fewest_pairs(alpha: float) -> int:
    """Pairs below which the signed-rank test cannot reject: all of them on one side are not rare enough."""
    return math.ceil(1 - math.log2(alpha))


def _check(sd: float, alpha: float, power: float) -> None:
    if not 0 <= sd < math.inf:
        raise UsageError(f"sd is {sd!r}: it takes the standard deviation of a log ratio, 0 or more")
    for name, value in (("alpha", alpha), ("power", power)):
        if not 0 < value < 1:
            raise UsageError(f"{name} is {value!r}: it takes a number between 0 and 1")
