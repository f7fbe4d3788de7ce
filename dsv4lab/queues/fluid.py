"""Kernels that run at the same time share memory rate and arithmetic like a fluid, and CUs with a loss.

A kernel alone runs at rate 1. Beside others each resource is shared max-min fairly by what the kernels ask of it, and
a kernel's rate is the least of its fair parts. When the kernels together touch more CUs than there are, some CU holds
workgroups of two: the slowest workgroup ends a kernel, so all of them run ``1 - loss`` times as fast at best. Where the
workgroups of all of them are known, each runs only so far as there is room for it (:mod:`dsv4lab.queues.slots`). Memory
answers later the more of its rate others draw: ``latency`` times that share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4lab.queues.slots import room
from dsv4lab.queues.workload import Cost

SLOWEST = 0.05


@dataclass(frozen=True, slots=True)
class Sharing:
    """What a device loses when kernels share it. ``loss`` and ``latency`` as above, ``cus``: CUs it has."""

    loss: float
    latency: float = 0.0
    cus: int = 1


def fair_parts(demands: Sequence[float], capacity: float = 1.0) -> list[float]:
    """Max-min fair parts of ``capacity``: nobody gets more than asked for, and who gets less gets as much as any."""
    parts = [0.0] * len(demands)
    left, order = capacity, sorted(range(len(demands)), key=lambda i: demands[i])
    for n, i in enumerate(order):
        parts[i] = min(demands[i], left / (len(order) - n))
        left -= parts[i]
    return parts


def corun_rates(
    costs: Sequence[Cost],
    sharing: Sharing,
    more: Sequence[bool] = (),
    cores: Sequence[int] = (),
    rest: Sequence[float] = (),
    held: Sequence[bool] = (),
) -> tuple[float, ...]:
    """The rate of each kernel while exactly these run, in order of start, 0 to 1.

    ``more[i]``: kernel ``i`` has workgroups to start beyond those that run now; empty: none has. ``cores[i]``: the core
    that it has to run on, one at a time; empty: anywhere. ``rest[i]``: what share of its last wave still runs; empty:
    all. ``held[i]``: it was launched early and waits in its places; empty: none does.
    """
    known = bool(cores) or all(cost.blocks for cost in costs)
    if cores:
        fits = tuple(float(core not in cores[:i]) for i, core in enumerate(cores))
    else:
        fits = room(costs, more or (False,) * len(costs), sharing.cus, rest) if known else (1.0,) * len(costs)
    if any(held):
        fits = tuple(0.0 if waits else fit for fit, waits in zip(fits, held, strict=True))
    if len(costs) < 2:
        return fits
    touched = sum(cost.occupancy * fit for cost, fit in zip(costs, fits, strict=True))
    crowded = max(SLOWEST, 1.0 - sharing.loss) if touched > 1.0 + 1e-9 else 1.0
    best = [fit * crowded for fit in fits]
    if sharing.latency:
        drawn = [cost.bandwidth * fit for cost, fit in zip(costs, fits, strict=True)]
        total = sum(drawn)
        best = [rate / (1.0 + sharing.latency * min(1.0, total - own)) for rate, own in zip(best, drawn, strict=True)]
    for resource in ([c.bandwidth for c in costs], [c.compute for c in costs]):
        demands = [demand * (rate if known else rate > 0) for demand, rate in zip(resource, best, strict=True)]
        if sum(demands) > 1.0:
            for i, part in enumerate(fair_parts(demands)):
                if demands[i] > 0:
                    best[i] = min(best[i], part / demands[i] * (best[i] if known else 1.0))
    return tuple(best)
