"""Kernels that run at the same time share memory rate and arithmetic like a fluid, and CUs with a loss.

A kernel alone runs at rate 1. Beside others each resource is shared max-min fairly by what the kernels ask of it, and
a kernel's rate is the least of its fair parts. When the kernels together touch more CUs than there are, some CU holds
workgroups of two: the slowest workgroup ends a kernel, so all of them run ``1 - loss`` times as fast at best.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsv4lab.queues.workload import Cost


def fair_parts(demands: Sequence[float], capacity: float = 1.0) -> list[float]:
    """Max-min fair parts of ``capacity``: nobody gets more than asked for, and who gets less gets as much as any."""
    parts = [0.0] * len(demands)
    left, order = capacity, sorted(range(len(demands)), key=lambda i: demands[i])
    for n, i in enumerate(order):
        parts[i] = min(demands[i], left / (len(order) - n))
        left -= parts[i]
    return parts


def corun_rates(costs: Sequence[Cost], loss: float) -> tuple[float, ...]:
    """The rate of each kernel while exactly these run, 0 to 1."""
    best = [max(0.05, 1.0 - loss) if len(costs) > 1 and sum(c.occupancy for c in costs) > 1.0 + 1e-9 else 1.0] * len(
        costs
    )
    for demands in ([c.bandwidth for c in costs], [c.compute for c in costs]):
        if sum(demands) > 1.0:
            for i, part in enumerate(fair_parts(demands)):
                if demands[i] > 0:
                    best[i] = min(best[i], part / demands[i])
    return tuple(best)
