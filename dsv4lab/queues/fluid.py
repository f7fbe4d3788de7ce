"""Kernels that run at the same time share memory rate and arithmetic, by how much each asks for alone.

Where nothing is known of their workgroups but which CUs they touch, each goes as fast as alone until together they
touch more CUs than there are: some CU then holds workgroups of two, and as the slowest workgroup ends a kernel, all of
them run ``1 - loss`` times as fast at best. Memory answers later the more of its rate others draw: ``latency`` times
that share. Where workgroups are known, :mod:`dsv4lab.queues.placing` says more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4lab.queues.workload import Cost

SLOWEST = 0.05


@dataclass(frozen=True, slots=True)
class Sharing:
    """What a device loses when kernels share it. ``loss`` and ``latency`` as above, ``cus``: CUs it has, ``slow`` and
    ``crowd``: what workgroups lose to others, and to more of their own, on a CU; ``floor_us``: what of a kernel's time
    no memory is read.
    """

    loss: float
    latency: float = 0.0
    cus: int = 1
    slow: float = 0.0
    crowd: float = 0.0
    floor_us: float = 0.0


def fair_parts(demands: Sequence[float], capacity: float = 1.0) -> list[float]:
    """Max-min fair parts of ``capacity``: nobody gets more than asked for, and who gets less gets as much as any."""
    parts = [0.0] * len(demands)
    left, order = capacity, sorted(range(len(demands)), key=lambda i: demands[i])
    for n, i in enumerate(order):
        parts[i] = min(demands[i], left / (len(order) - n))
        left -= parts[i]
    return parts


def corun_rates(
    costs: Sequence[Cost], sharing: Sharing, cores: Sequence[int] = (), held: Sequence[bool] = ()
) -> tuple[float, ...]:
    """The rate of each kernel while exactly these run, in order of start, 0 to 1.

    ``cores[i]``: the core that it has to run on, one at a time; empty: anywhere. ``held[i]``: it was launched early and
    waits in its places; empty: none does.
    """
    fits = [float(core not in cores[:i]) for i, core in enumerate(cores)] if cores else [1.0] * len(costs)
    for i, waits in enumerate(held):
        fits[i] = 0.0 if waits else fits[i]
    if len(costs) < 2:
        return tuple(fits)
    crowded = not cores and sum(cost.occupancy * fit for cost, fit in zip(costs, fits, strict=True)) > 1.0 + 1e-9
    best = [fit * (max(SLOWEST, 1.0 - sharing.loss) if crowded else 1.0) for fit in fits]
    if sharing.latency:
        drawn = [cost.bandwidth * fit for cost, fit in zip(costs, fits, strict=True)]
        total = sum(drawn)
        best = [rate / (1.0 + sharing.latency * min(1.0, total - own)) for rate, own in zip(best, drawn, strict=True)]
    for resource in ([c.bandwidth for c in costs], [c.compute for c in costs]):
        demands = [demand * (rate if cores else rate > 0) for demand, rate in zip(resource, best, strict=True)]
        if sum(demands) > 1.0:
            for i, part in enumerate(fair_parts(demands)):
                if demands[i] > 0:
                    best[i] = min(best[i], part / demands[i] * (best[i] if cores else 1.0))
    return tuple(best)
