"""Series of blocks in time: where the warm-up ends, which blocks are outliers, drift and autocorrelation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Series = Sequence[float] | Array

BATCH = 5
OUTLIER = 3.5
"""Modified z-score beyond which a block is marked (Iglewicz and Hoaglin 1993)."""

_MAD_TO_SD = 1.4826022185056018
_MEAN_AD_TO_SD = 1.2533141373155003


def warm_up_end(values: Series, batch: int = BATCH) -> int:
    """How many values at the start belong to the warm-up: leaving them out makes the mean of the rest surest.

    MSER-5 (White, Cobb and Spratt 2000): over means of ``batch`` values, the cut that minimises the squared standard
    error of the rest, in the first half only. Short series (fewer than ten batches) take smaller batches, down to
    single values. Values far outside the second half's spread are drawn in first, so that one wild block neither looks
    like a warm-up nor hides one.
    """
    array = np.asarray(values, np.float64)
    size = max(1, min(batch, len(array) // 10))
    count = len(array) // size
    if count < 4:
        return 0
    settled = array[len(array) // 2 :]
    middle, reach = float(np.median(settled)), OUTLIER * _spread(settled)
    drawn_in = np.clip(array, middle - reach, middle + reach) if reach > 0 else array
    means = drawn_in[: size * count].reshape(count, size).mean(axis=1)
    cuts = range(count // 2 + 1)
    errors = [float(np.var(means[cut:])) / (count - cut) for cut in cuts]
    return size * int(np.argmin(errors))


def outliers(values: Series) -> NDArray[np.bool_]:
    """Which values lie far from the others, by their distance to the median in robust standard deviations.

    They are marked for the reader and stay in: medians and ranks bear them, and leaving out what is unwelcome is how
    a measurement goes wrong.
    """
    array = np.asarray(values, np.float64)
    spread = _spread(array)
    if not spread > 0:
        return np.zeros(len(array), np.bool_)
    found: NDArray[np.bool_] = np.abs(array - np.median(array)) > OUTLIER * spread
    return found


def autocorrelation(series: Sequence[Series]) -> float | None:
    """Lag-1 autocorrelation inside the series, each about its own median, by signs: robust against outliers.

    The share of neighbours on the same side of the median is ``1/2 + asin(r) / pi`` for a normal series with
    autocorrelation ``r`` (Sheppard 1899). None with fewer than eight neighbours.
    """
    products: list[float] = []
    for values in series:
        if len(values) > 2:
            signs = np.sign(np.asarray(values, np.float64) - np.median(values))
            products += (signs[1:] * signs[:-1]).tolist()
    told = [product for product in products if product]
    return float(np.sin(np.pi / 2 * np.mean(told))) if len(told) >= 8 else None


def drift(values: Series) -> float:
    """Change per value: the median of the slopes between all pairs (Theil 1950, Sen 1968); 0 of fewer than two."""
    array = np.asarray(values, np.float64)
    if len(array) < 2:
        return 0.0
    first, second = np.triu_indices(len(array), k=1)
    return float(np.median((array[second] - array[first]) / (second - first)))


def _spread(array: Array) -> float:
    """A robust standard deviation; where most values are equal, from the mean distance to the median."""
    distances = np.abs(array - np.median(array)) if len(array) else array
    if not len(array):
        return 0.0
    mad = float(np.median(distances))
    return _MAD_TO_SD * mad if mad > 0 else _MEAN_AD_TO_SD * float(np.mean(distances))
