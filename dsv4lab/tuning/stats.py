"""Medians, paired differences and their bootstrap intervals, for few repeats on a noisy machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from scipy.special import ndtr, stdtrit

Samples = Sequence[Sequence[float]]
"""Per block (one trial) the values of its requests, in milliseconds."""

RESAMPLES = 4000
LEVEL = 0.95
MIN_BLOCKS = 5
"""Fewer paired trials than this give no interval: with four, chance alone puts all on one side one time in eight."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Relative difference of an arm against the baseline: the median of the paired ratios, less 1; negative is faster.

    ``low`` and ``high`` bound the interval at :data:`LEVEL`; both are None with fewer than :data:`MIN_BLOCKS` pairs.
    """

    delta: float
    low: float | None
    high: float | None
    pairs: int

    def verdict(self, least: float) -> str:
        """``faster``, ``slower``, ``no difference`` or ``undecided`` (too few pairs for an interval).

        A difference counts only if its interval leaves out zero and it is at least ``least`` (a fraction) in size.
        """
        if self.low is None or self.high is None:
            return "undecided"
        if self.high < 0 and self.delta <= -least:
            return "faster"
        if self.low > 0 and self.delta >= least:
            return "slower"
        return "no difference"

    def to_json(self) -> dict[str, float | int | None]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Noise:
    """How far equal measurements of the baseline lie apart, as fractions of their median.

    ``repeat`` is the median spread (half of the 10th to 90th percentile range) of repeats inside one process;
    ``process`` the largest distance between the medians of two processes. None where there was nothing to compare.
    """

    repeat: float | None
    process: float | None

    def to_json(self) -> dict[str, float | None]:
        """Plain data."""
        return asdict(self)


def median(values: Sequence[float]) -> float:
    """The median; NaN of nothing."""
    return float(np.median(values)) if len(values) else math.nan


def percentile(values: Sequence[float], q: float) -> float:
    """The ``q``-th percentile, ``q`` in [0, 100]; NaN of nothing."""
    return float(np.percentile(values, q)) if len(values) else math.nan


def pooled(blocks: Samples) -> list[float]:
    """All values of all blocks."""
    return [value for block in blocks for value in block]


def log_ratios(arm: Samples, baseline: Samples) -> list[float]:
    """Per pair of blocks measured side by side: the logarithm of the ratio of their medians."""
    return [math.log(median(a) / median(b)) for a, b in zip(arm, baseline, strict=True)]


def difference(logs: Sequence[float], seed: int = 0) -> Difference:
    """What paired blocks say, from their :func:`log_ratios`.

    Each ratio compares neighbours in time, so what drifts between blocks cancels. The percentile interval of their
    median is expanded for the small number of blocks (Hesterberg 2015, section 3.3); without that it is too narrow.
    """
    values = np.asarray(logs, np.float64)
    n = len(values)
    delta = math.exp(median(logs)) - 1
    if n < MIN_BLOCKS:
        return Difference(delta, None, None, n)
    picks = np.random.default_rng(seed).integers(0, n, size=(RESAMPLES, n))
    medians = np.median(values[picks], axis=1)
    tail = expanded_tail(n)
    low, high = np.exp(np.quantile(medians, [tail, 1 - tail])) - 1
    return Difference(delta, float(low), float(high), n)


def expanded_tail(n: int, level: float = LEVEL) -> float:
    """Tail probability of a percentile interval over ``n`` blocks that covers as a t interval would."""
    t = stdtrit(n - 1, 1 - (1 - level) / 2)
    return float(ndtr(-t * math.sqrt(n / (n - 1))))


def noise(processes: Sequence[Samples]) -> Noise:
    """Spread of the baseline; each entry of ``processes`` holds the blocks of one process, all under one load."""
    medians = [[median(block) for block in blocks if len(block)] for blocks in processes]
    medians = [blocks for blocks in medians if blocks]
    inside = [(percentile(m, 90) - percentile(m, 10)) / 2 / median(m) for m in medians if len(m) > 1]
    centres = [median(m) for m in medians]
    process = (max(centres) - min(centres)) / median(centres) if len(centres) > 1 else None
    return Noise(median(inside) if inside else None, process)
