"""Workgroups on CUs: how many of a kernel run at once, and who finds room beside whom.

A workgroup takes a share of a CU's registers, local memory, threads or places, whichever is largest: its *footprint*.
The hardware gives each workgroup the emptiest CU, and hands out those of one kernel, in order of start, before it looks
at the next kernel: a kernel that still has workgroups to hand out keeps later ones waiting, however small they are. The
workgroups of a wave are taken to end together, so a wave of a kernel holds its places to its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsv4lab.queues.workload import Cost

EPSILON = 1e-9


def at_once(blocks: int, footprint: float, cus: int) -> int:
    """How many of ``blocks`` workgroups run at once on a device that is empty."""
    return min(blocks, cus * max(1, int(1.0 / footprint + 1e-6))) if footprint > 0 else blocks


def waves(cost: Cost, cus: int) -> int:
    """Waves of a kernel by itself; 1 if nothing is known of its workgroups."""
    return -(-cost.blocks // at_once(cost.blocks, cost.footprint, cus)) if cost.blocks else 1


def last_wave(cost: Cost, cus: int) -> int:
    """Workgroups of its last wave."""
    return cost.blocks - (waves(cost, cus) - 1) * at_once(cost.blocks, cost.footprint, cus)


def room(costs: Sequence[Cost], more: Sequence[bool], cus: int) -> tuple[float, ...]:
    """By kernel, in order of start: the share of its workgroups that should run now for which there is room.

    ``more[i]``: kernel ``i`` is not in its last wave yet. All of ``costs`` have ``blocks``.
    """
    free: dict[float, int] = {1.0: cus}
    found: list[float] = []
    closed = False
    for cost, waiting in zip(costs, more, strict=True):
        wanted = at_once(cost.blocks, cost.footprint, cus) if waiting else last_wave(cost, cus)
        placed = 0 if closed else _place(free, wanted, cost.footprint)
        closed = closed or waiting or placed < wanted
        found.append(placed / wanted)
    return tuple(found)


def _place(free: dict[float, int], wanted: int, footprint: float) -> int:
    """Put up to ``wanted`` workgroups on the emptiest CUs; ``free`` counts CUs by what is left of them."""
    left = wanted
    while left:
        most = max(free)
        if most + EPSILON < footprint:
            break
        count = min(free[most], left)
        free[most] -= count
        if not free[most]:
            del free[most]
        rest = round(most - footprint, 9)
        free[rest] = free.get(rest, 0) + count
        left -= count
        if footprint <= 0:
            return wanted
    return wanted - left
