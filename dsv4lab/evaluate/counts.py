"""Right and wrong answers of two arms to the same questions: the exact test, intervals, and what n can show."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrik, ndtri

ALPHA, POWER = 0.05, 0.8
MAX_QUESTIONS = 10_000_000

_STEPS = 60
_WIDE = 6.0
"""Standard deviations of a binomial beyond which nothing counts."""


@dataclass(frozen=True, slots=True)
class PairedCounts:
    """Questions by who answered them right. ``only_a`` and ``only_b`` are the discordant ones."""

    both: int
    only_a: int
    only_b: int
    neither: int

    @property
    def questions(self) -> int:
        """All of them."""
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def discordant(self) -> int:
        """Those that one arm got right and the other wrong."""
        return self.only_a + self.only_b

    @property
    def discordance(self) -> float:
        """Their share; 0 of no questions."""
        return self.discordant / self.questions if self.questions else 0.0

    @property
    def difference(self) -> float:
        """Accuracy of B less that of A; 0 of no questions."""
        return (self.only_b - self.only_a) / self.questions if self.questions else 0.0

    def mcnemar_p(self) -> float:
        """Exact two-sided p of so uneven a split of the discordant questions (McNemar 1947, Liddell 1983)."""
        less = min(self.only_a, self.only_b)
        return min(1.0, 2 * float(bdtr(less, self.discordant, 0.5))) if self.discordant else 1.0

    def interval(self, level: float) -> tuple[float, float]:
        """Score interval of the difference (Tango 1998, Statistics in Medicine 17, 891): good with few discordant."""
        if not self.questions:
            return -1.0, 1.0
        z = float(ndtri(1 - (1 - level) / 2))
        low = _root(lambda delta: self._score(delta) - z, -1.0, self.difference)
        high = _root(lambda delta: self._score(delta) + z, self.difference, 1.0)
        return low, high

    def _score(self, delta: float) -> float:
        """Tango's statistic for a difference ``delta``, falling in it; ``p`` is the likeliest share of ``only_a``."""
        n, plus, minus = self.questions, self.only_b, self.only_a
        apart = plus - minus - n * delta
        if apart == 0:
            return 0.0
        linear = (2 * n - plus + minus) * delta - plus - minus
        root = math.sqrt(max(0.0, linear**2 + 8 * n * minus * delta * (1 - delta)))
        p = (root - linear) / (4 * n)
        variance = n * (2 * p + delta * (1 - delta))
        return apart / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, apart)


def wilson_interval(right: int, questions: int, level: float) -> tuple[float, float]:
    """Of an accuracy (Wilson 1927); all of [0, 1] for no questions."""
    if not questions:
        return 0.0, 1.0
    z = float(ndtri(1 - (1 - level) / 2))
    share, weight = right / questions, z * z / questions
    middle = share + weight / 2
    reach = z * math.sqrt(share * (1 - share) / questions + weight / (4 * questions))
    low = (middle - reach) / (1 + weight) if right else 0.0
    high = (middle + reach) / (1 + weight) if right < questions else 1.0
    return max(0.0, low), min(1.0, high)


def power_of(questions: int, discordance: float, difference: float, alpha: float = ALPHA) -> float:
    """The chance that the exact test shows ``difference`` at ``alpha``.

    ``discordance`` is the share of discordant questions; below the difference, where it cannot be, it is that.
    """
    psi, delta = max(discordance, abs(difference)), abs(difference)
    if not psi or not questions:
        return 0.0
    spread = _WIDE * math.sqrt(questions * psi * (1 - psi)) + 1
    first, last = max(0, int(questions * psi - spread)), min(questions, int(questions * psi + spread))
    m = np.arange(first, last + 1)
    weight = bdtr(m, questions, psi) - np.where(m > 0, bdtr(np.maximum(m - 1, 0), questions, psi), 0.0)
    bar = _critical(m, alpha)
    worse = (psi + delta) / (2 * psi)
    can = bar >= 0
    told = np.zeros(len(m))
    told[can] = bdtr(bar[can], m[can], 1 - worse) + bdtr(bar[can], m[can], worse)
    return float(np.sum(weight * told))


def questions_needed(discordance: float, difference: float, alpha: float = ALPHA, power: float = POWER) -> int | None:
    """The least number of questions that shows ``difference`` with a chance of ``power``; None beyond ten million."""
    guess = _normal_questions(max(discordance, abs(difference)), abs(difference), alpha, power)
    if guess > MAX_QUESTIONS:
        return None
    low, high = max(1, int(0.9 * guess)), int(1.1 * guess) + 8
    while low > 1 and power_of(low, discordance, difference, alpha) >= power:
        low //= 2
    while power_of(high, discordance, difference, alpha) < power:
        high *= 2
    sizes = range(low, high)
    return low + bisect_left(sizes, True, key=lambda n: power_of(n, discordance, difference, alpha) >= power)


def detectable(questions: int, discordance: float, alpha: float = ALPHA, power: float = POWER) -> float | None:
    """The least difference of accuracies that ``questions`` show with a chance of ``power``; None if none is."""
    if power_of(questions, 1.0, 1.0, alpha) < power:
        return None
    return _root(lambda delta: power - power_of(questions, discordance, delta, alpha), 0.0, 1.0)


def _normal_questions(psi: float, delta: float, alpha: float, power: float) -> float:
    """Close to the number needed (Connor 1987, Biometrics 43, 207)."""
    spread = ndtri(1 - alpha / 2) * math.sqrt(psi) + ndtri(power) * math.sqrt(psi - delta**2)
    return float(spread / delta) ** 2 if delta else math.inf


def _critical(m: NDArray[np.int64], alpha: float) -> NDArray[np.int64]:
    """For each number of discordant questions the largest smaller part that the test rejects; -1 where none is."""
    with np.errstate(invalid="ignore"):
        found = np.floor(np.nan_to_num(bdtrik(alpha / 2, np.maximum(m, 1), 0.5), nan=-1.0))
    # One more than rounding can have cost, then down to what holds.
    bar: NDArray[np.int64] = np.clip(found + 1, -1, m).astype(np.int64)
    for _ in range(3):
        bar -= (bar >= 0) & (bdtr(np.maximum(bar, 0), m, 0.5) > alpha / 2)
    return bar


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where ``falling`` goes from above zero to below it, by bisection."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if falling(middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
