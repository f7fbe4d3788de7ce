"""Evidence about the centre of paired log ratios that may be looked at after every pair, without end.

If the arms are alike, which of them comes out slower in a pair is a fair coin, whatever the sizes of the difference and
whatever came before: heavy tails, drift and autocorrelation do not matter where the order inside a pair is random. So
money that is bet on that coin, at even odds and with a stake that may depend on sizes and the past, does not grow: it
is a martingale, and it reaches ``1 / alpha`` times itself with a probability of ``alpha`` at most, however often one
looks (Ville 1939). The stake here grows with the sequential rank of the size (Reynolds 1975, Annals of Statistics 3,
382), which makes the test distribution-free and gives it the power of the signed-rank test; four purses bet with
different greed, for small to large effects, and their sum is the evidence. Tests of symmetry by betting: Koning,
arXiv:2310.01153; Lardy and Pérez-Ortiz, arXiv:2401.15461.

About a centre other than zero the same holds if the values less that centre are symmetric.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dsv4lab.tuning.ranks import Array, centre

GREED = np.array([0.35, 0.9, 2.2, 6.0])
"""Of each purse: it stakes ``tanh(greed * rank)`` of its money, ``rank`` in (0, 1). Best for effects of about 0.25,
0.6, 1.5 and more standard deviations."""

_GRID = 65
_BEYOND = 1e-6


def signed_ranks(values: Array) -> Array:
    """The sign of each value times the rank of its size among those up to it, over their number plus one.

    Along the last axis. Ties take the middle rank.
    """
    sizes = np.abs(values)
    count = values.shape[-1]
    now, other = sizes[..., :, None], sizes[..., None, :]
    earlier = np.tri(count, k=-1, dtype=np.bool_)
    ranks = 1 + np.sum((other < now) & earlier, axis=-1) + np.sum((other == now) & earlier, axis=-1) / 2
    found: Array = np.sign(values) * ranks / np.arange(2, count + 2)
    return found


def log_evidence(values: Array) -> Array:
    """The logarithm of the evidence, after each value, that their centre is above zero; along the last axis."""
    stakes = GREED[:, None] * signed_ranks(values)[..., None, :]
    gains = math.log(2) - np.logaddexp(0.0, -2 * stakes)  # log(1 + sign * tanh(greed * rank))
    found: Array = np.logaddexp.reduce(np.cumsum(gains, axis=-1), axis=-2) - math.log(len(GREED))
    return found


def confidence_sequence(logs: Sequence[float], alpha: float) -> tuple[float | None, float | None]:
    """Bounds of the centre, from all looks so far, that hold at every look at once with ``1 - alpha``.

    None on a side where no value, however far out, is ruled out yet.
    """
    values = np.asarray(logs, np.float64)
    bar = math.log(2 / alpha)
    low, high = _lower(values, bar), _lower(-values, bar)
    return low, None if high is None else -high


def _lower(values: Array, bar: float) -> float | None:
    """The largest centre below which every one is ruled out, to a fraction of a thousandth of the values' range."""
    if not len(values):
        return None
    outside, inside = float(values.min()) - _BEYOND, centre(values)
    if float(log_evidence(values - outside).max()) < bar:
        return None
    for _ in range(2):
        grid = np.linspace(outside, inside, _GRID)
        ruled_out = log_evidence(values - grid[:, None]).max(axis=-1) >= bar
        if ruled_out.all():
            return inside
        first = int(np.argmin(ruled_out))
        outside, inside = float(grid[first - 1]), float(grid[first])
    return outside
