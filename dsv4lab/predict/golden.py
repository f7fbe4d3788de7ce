"""Golden-section search on the logarithm of a positive number."""

from __future__ import annotations

import math
from collections.abc import Callable

STEPS = 16


def minimise(loss: Callable[[float], float], start: float, span: float) -> float:
    """The value within a factor of ``span`` of ``start`` (above 0) at which ``loss`` is least, if it has one valley."""
    golden = (math.sqrt(5) - 1) / 2
    low, high = math.log(start / span), math.log(start * span)
    a, b = high - golden * (high - low), low + golden * (high - low)
    at_a, at_b = loss(math.exp(a)), loss(math.exp(b))
    for _ in range(STEPS):
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - golden * (high - low)
            at_a = loss(math.exp(a))
        else:
            low, a, at_a = a, b, at_b
            b = low + golden * (high - low)
            at_b = loss(math.exp(b))
    return math.exp((low + high) / 2)
