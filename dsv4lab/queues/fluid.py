"""Kernels that run at the same time share memory rate and arithmetic like a fluid, and CUs with a loss.

A kernel alone runs at rate 1. Beside others each resource is shared max-min fairly by what the kernels ask of it, and
a kernel's rate is the least of its fair parts. When the kernels together touch more CUs than there are, some CU holds
workgroups of two: the slowest workgroup ends a kernel, so all of them run ``1 - loss`` times as fast at best. Memory
answers later the more of its rate others draw: ``latency`` times that share.

Where the workgroups of all of them are known, each runs only so far as there is room for it
(:mod:`dsv4lab.queues.slots`), and ``slow`` stands for ``loss``: it takes ``1 + slow * share`` times as long, ``share``
being what others have of the CUs that it is on. With fewer workgroups at once a kernel that is kept
by memory is not as much slower: those that run find it less busy. One that streams at a share ``b`` of the memory rate
alone goes ``f / (f * b + 1 - b)`` times as fast with a share ``f`` of its workgroups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4lab.queues.slots import at_once, last_wave, room, waves
from dsv4lab.queues.workload import Cost

SLOWEST = 0.05
LEAST_STREAMED = 0.2
"""Of a kernel's time at least this share reads memory, whatever its floor."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """What a device loses when kernels share it. ``loss``, ``latency`` and ``slow`` as above, ``cus``: CUs it has,
    ``floor_us``: what of a kernel's time no memory is read.
    """

    loss: float
    latency: float = 0.0
    cus: int = 1
    slow: float = 0.0
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
    crowded = touched > 1.0 + 1e-9
    if known and not cores:
        best = [_with_fewer(cost, fit, sharing.floor_us) for cost, fit in zip(costs, fits, strict=True)]
        if crowded and sharing.slow:
            shares = _shares_of_others(costs, fits, more or (False,) * len(costs), rest, sharing.cus)
            best = [rate / (1.0 + sharing.slow * share) for rate, share in zip(best, shares, strict=True)]
    else:
        best = [fit * (max(SLOWEST, 1.0 - sharing.loss) if crowded else 1.0) for fit in fits]
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


def _with_fewer(cost: Cost, fit: float, floor_us: float) -> float:
    """The rate of a kernel with a share ``fit`` of its workgroups at once, by itself."""
    if fit in (0.0, 1.0) or cost.us <= 0:
        return fit
    streamed = min(1.0, cost.bandwidth * cost.us / max(cost.us - floor_us, LEAST_STREAMED * cost.us))
    return fit / (fit * streamed + 1.0 - streamed)


def _shares_of_others(
    costs: Sequence[Cost], fits: Sequence[float], more: Sequence[bool], rest: Sequence[float], cus: int
) -> list[float]:
    """By kernel, what share of the resident workgroups' room others have on the CUs that it is on. A kernel of several
    waves evens out over all CUs; the end of another is that of its slowest workgroup.
    """
    running = [
        fit * (at_once(cost, cus) if waiting else last_wave(cost, cus) * part)
        for cost, fit, waiting, part in zip(costs, fits, more, rest or (1.0,) * len(costs), strict=True)
    ]
    covered = [min(1.0, count / cus) for count in running]
    size = [
        max(cost.footprint, cost.shared) * count / min(cus, count) if count > 0 else 0.0
        for cost, count in zip(costs, running, strict=True)
    ]
    found = []
    for i, cost in enumerate(costs):
        even = more[i] or waves(cost, cus) > 1
        others = sum(size[j] * (covered[j] if even else 1.0) for j in range(len(costs)) if j != i)
        found.append(others / (others + size[i]) if others else 0.0)
    return found
