"""CUDA graphs: the replay lane of a node is decided by recording order (hw-queues 3)."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4lab.queues.order import predecessors
from dsv4lab.queues.workload import Workload


@dataclass(frozen=True, slots=True)
class Lanes:
    """``of[i]``: lane of op ``i``; ``opened_by[k]``: the op that opened lane ``k``."""

    of: tuple[int, ...]
    opened_by: tuple[int, ...]


def lanes(workload: Workload) -> Lanes:
    """A node goes on with the lane of its first-recorded parent if that parent ends it, else it opens a lane.

    Parents are its waits and its stream's previous op. Side work recorded before the main work that it is joined with
    therefore draws the join to its own lane, and every layer opens another one.
    """
    of: list[int] = []
    opened: list[int] = []
    tail: list[int] = []
    for i, before in enumerate(predecessors(workload)):
        lane = of[before[0]] if before else -1
        if lane < 0 or tail[lane] != before[0]:
            lane = len(tail)
            tail.append(i)
            opened.append(i)
        of.append(lane)
        tail[lane] = i
    return Lanes(tuple(of), tuple(opened))
