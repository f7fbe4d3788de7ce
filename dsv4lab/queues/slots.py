"""Workgroups on CUs: how many of a kernel run at once, and who finds room beside whom.

A workgroup takes a share of a CU's registers, threads or places, whichever is largest: its *footprint*; and a share of
its shared memory. The hardware gives each workgroup the emptiest CU, and hands out those of one kernel, in order of
start, before it looks at the next kernel: a kernel that still has workgroups to hand out keeps later ones waiting,
however small they are. How much of a CU's memory is shared memory and how much cache is set when it is empty, as the
kernel wants it that comes first; a workgroup that needs more than is left of that waits until the CU is empty again.
The workgroups of a wave that is not the last are taken to end together, those of the last one after the other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import ceil

from dsv4lab.queues.workload import Cost

EPSILON = 1e-9
EMPTY = 1.0
CARVEOUTS = tuple(kib / 228 for kib in (0, 8, 16, 32, 64, 100, 132, 164, 196, 228))
"""Shares of a CU's shared memory that it can be set to: CUDA's programming guide, devices of capability 9.0."""


def per_cu(footprint: float, shared: float = 0.0) -> int:
    """Workgroups of a kernel that fit a CU; both shares are of one of them."""
    return max(1, int(1.0 / max(footprint, shared) + 1e-6))


def at_once(cost: Cost, cus: int) -> int:
    """How many of a kernel's workgroups run at once on a device that is empty."""
    if cost.footprint <= 0 and cost.shared <= 0:
        return cost.blocks
    return min(cost.blocks, cus * per_cu(cost.footprint, cost.shared))


def waves(cost: Cost, cus: int) -> int:
    """Waves of a kernel by itself; 1 if nothing is known of its workgroups."""
    return -(-cost.blocks // at_once(cost, cus)) if cost.blocks else 1


def last_wave(cost: Cost, cus: int) -> int:
    """Workgroups of its last wave."""
    return cost.blocks - (waves(cost, cus) - 1) * at_once(cost, cus)


def carveout(cost: Cost) -> float:
    """The share of shared memory that an empty CU is set to for a kernel: the least that lets all of it fit and is no
    less than it prefers (CUDA takes the next larger step).
    """
    wanted = max(cost.prefers, cost.shared * per_cu(cost.footprint, cost.shared) if cost.shared > 0 else 0.0)
    return CARVEOUTS[min(bisect_left(CARVEOUTS, wanted - EPSILON), len(CARVEOUTS) - 1)]


def room(costs: Sequence[Cost], more: Sequence[bool], cus: int, rest: Sequence[float] = ()) -> tuple[float, ...]:
    """By kernel, in order of start: the share of its workgroups that should run now for which there is room.

    ``more[i]``: kernel ``i`` is not in its last wave yet; ``rest[i]``: what share of that wave still runs (empty: all).
    All of ``costs`` have ``blocks``.
    """
    free: Free = {(EMPTY, 1.0): cus}
    found: list[float] = []
    closed = False
    for cost, waiting, part in zip(costs, more, rest or (1.0,) * len(costs), strict=True):
        wanted = at_once(cost, cus) if waiting else ceil(last_wave(cost, cus) * part)
        placed = 0 if closed else _place(free, wanted, cost)
        closed = closed or waiting or placed < wanted
        found.append(placed / wanted)
    return tuple(found)


Free = dict[tuple[float, float], int]
"""CUs by what is left of them: of the rest, then of shared memory as they are set."""


def _fits(left: tuple[float, float], cost: Cost) -> bool:
    return left[0] + EPSILON >= cost.footprint and (left[0] == EMPTY or left[1] + EPSILON >= cost.shared)


def _place(free: Free, wanted: int, cost: Cost) -> int:
    """Put up to ``wanted`` workgroups on the emptiest CUs that take one."""
    left, carve = wanted, carveout(cost)
    while left:
        most = max((key for key in free if _fits(key, cost)), default=None)
        if most is None:
            break
        count = min(free[most], left)
        free[most] -= count
        if not free[most]:
            del free[most]
        shared = carve if most[0] == EMPTY else most[1]
        rest = (round(most[0] - cost.footprint, 9), round(shared - cost.shared, 9))
        free[rest] = free.get(rest, 0) + count
        left -= count
        if cost.footprint <= 0:
            return wanted
    return wanted - left
