"""What a workgroup takes of a CU, how many run at once, and what a CU's memory is set to.

A workgroup takes a share of a CU's registers, threads or places, whichever is largest: its *footprint*; and a share of
its shared memory, with the 1 KiB in it that the system keeps. How much of a CU's memory is shared memory and how much
cache is set by the kernel that comes to it when it is empty, and stays so until it is empty again. The rules are those
of an H200, from docs/measurements/h200-places.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

from dsv4lab.queues.workload import Cost

EPSILON = 1e-9
KIB = 228.0
CARVEOUTS = tuple(kib / KIB for kib in (0, 8, 16, 32, 64, 100, 132, 164, 196, 228))
"""Shares of a CU's shared memory that it can be set to: CUDA's programming guide, devices of capability 9.0."""
SYSTEM = 1 / KIB
"""What the system keeps of each workgroup's shared memory."""
TWICE_UP_TO = 132 / KIB
"""A kernel that does not ask gets twice what all of it needs, up to so much; more only if it needs more."""


def per_cu(footprint: float, shared: float = 0.0) -> int:
    """Workgroups of a kernel that fit a CU; both shares are of one of them."""
    return max(1, int(1.0 / max(footprint, shared) + 1e-6))


@lru_cache(4096)
def at_once(cost: Cost, cus: int) -> int:
    """How many of a kernel's workgroups run at once on a device that is empty."""
    if cost.footprint <= 0 and cost.shared <= 0:
        return cost.blocks
    fit = per_cu(cost.footprint, cost.shared)
    if cost.shared > EPSILON:
        fit = max(1, min(fit, int(carveout(cost) / cost.shared + 1e-6)))
    return min(cost.blocks, cus * fit)


def all_of_it(cost: Cost) -> float:
    """The share of shared memory with which as many of a kernel's workgroups fit a CU as the rest of it takes."""
    return cost.shared * per_cu(cost.footprint, cost.shared) if cost.shared > 0 else 0.0


@lru_cache(4096)
def carveout(cost: Cost) -> float:
    """The share of shared memory that an empty CU is set to for a kernel.

    One that asks for a share ``p`` gets what as many workgroups take as fit ``p`` by their own bytes, and ``p`` at
    least. One that does not gets twice what all of it needs if three or more fit a CU, with a limit.
    """
    if cost.prefers:
        own = cost.shared - SYSTEM
        count = int(cost.prefers / own + 1e-6) if own > EPSILON else 0
        return _step(max(cost.prefers, count * cost.shared, cost.shared))
    whole = all_of_it(cost)
    doubled = whole > 0 and per_cu(cost.footprint, cost.shared) > 2
    return _step(max(whole, min(2 * whole, TWICE_UP_TO) if doubled else 0.0))


def accepted(cost: Cost) -> tuple[float, float]:
    """The least and the largest setting of a CU in use to which a kernel comes. One that does not ask comes wherever
    all of it would fit; one that asks also where it has the share that it asks for, and nowhere beyond what it would
    set itself.
    """
    whole = all_of_it(cost)
    return (min(cost.prefers, whole), carveout(cost)) if cost.prefers else (whole, 1.0)


def _step(share: float) -> float:
    return CARVEOUTS[min(bisect_left(CARVEOUTS, share - EPSILON), len(CARVEOUTS) - 1)]
