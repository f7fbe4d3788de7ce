"""HIP graphs: linear segments, levels, and round robin over at most four streams (hw-queues 1.5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dsv4lab.queues.costs import Machine
from dsv4lab.queues.order import edges_and_clocks, predecessors
from dsv4lab.queues.workload import Workload

COLLAPSE_LEVELS = 4
MIN_OVERLAP = 2
DEPTH_FIRST_SEGMENTS, DEPTH_FIRST_NODES = 16, 8
"""The hybrid order goes depth first from so many segments on, if they have fewer nodes than that on average."""


@dataclass(frozen=True, slots=True)
class Segments:
    """``of[i]``: segment of op ``i``; ``level`` and ``slot`` by segment; ``width``: segments of the widest level."""

    of: tuple[int, ...]
    level: tuple[int, ...]
    slot: tuple[int, ...]
    width: int


def segment(
    workload: Workload, slots: int, direct: Sequence[tuple[int, ...]] | None = None, *, hybrid: bool = False
) -> Segments:
    """Maximal linear paths, numbered by first op. A segment's slot is its index within its level modulo ``slots``.

    ``hybrid``: many short segments get theirs depth first, as before rocm-systems#9363. ``direct``: what
    :func:`predecessors` gives, to spare the work.
    """
    streams = {s: k for k, s in enumerate(workload.lanes)}
    lanes = [streams[s] for s in workload.streams]
    after = _reduced(lanes, predecessors(workload) if direct is None else direct)
    followers = [0] * len(workload)
    for before in after:
        for d in before:
            followers[d] += 1
    of: list[int] = []
    level: list[int] = []
    slot: list[int] = []
    children: list[list[int]] = []
    width: dict[int, int] = {}
    for before in after:
        if len(before) == 1 and followers[before[0]] == 1:
            of.append(of[before[0]])
            continue
        for parent in sorted({of[d] for d in before}):
            children[parent].append(len(level))
        children.append([])
        depth = 1 + max((level[of[d]] for d in before), default=-1)
        at = width.get(depth, 0)
        width[depth] = at + 1
        of.append(len(level))
        level.append(depth)
        slot.append(at % slots)
    if hybrid and len(level) >= DEPTH_FIRST_SEGMENTS and len(of) < DEPTH_FIRST_NODES * len(level):
        slot = depth_first(children, [s for s, depth in enumerate(level) if depth == 0], slots)
    return Segments(tuple(of), tuple(level), tuple(slot), max(width.values(), default=0))


def depth_first(children: Sequence[Sequence[int]], roots: Sequence[int], slots: int) -> list[int]:
    """Slots in depth-first order: one is carried down a branch, the next begins after each leaf."""
    out = [-1] * len(children)
    current, stack = 0, list(reversed(roots))
    while stack:
        node = stack.pop()
        if out[node] >= 0:
            continue
        out[node] = current
        if not children[node]:
            current = (current + 1) % slots
        stack.extend(reversed(children[node]))
    return out


def _reduced(lanes: Sequence[int], after: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """``after`` without edges that others imply; the edge to the previous op of a lane stays unless implied."""
    cross, clocks = edges_and_clocks(lanes, after)
    last: dict[int, int] = {}
    out: list[tuple[int, ...]] = []
    for i, (lane, edges) in enumerate(zip(lanes, cross, strict=True)):
        before = last.get(lane)
        last[lane] = i
        if not edges:
            out.append(() if before is None else (before,))
        elif before is None or any(clocks[d].get(lane, -1) >= before for d in edges):
            out.append(edges)
        else:
            out.append((*edges, before))
    return out


def collapses(workload: Workload, found: Segments, machine: Machine) -> bool:
    """The collapse test of HIP 10: whether the work that could run in parallel is not worth its packets.

    Work is counted in passes over the machine, at least one an op. It is made for graphs of few levels only.
    """
    if not machine.runtime.graph_collapse or max(found.level, default=0) > COLLAPSE_LEVELS:
        return False
    after = predecessors(workload)
    longest: list[int] = []
    packets = signals = total = 0
    signalled: set[int] = set()
    for i, before in enumerate(after):
        work = max(1, math.ceil(workload.costs[i].occupancy))
        total += work
        longest.append(work + max((longest[d] for d in before), default=0))
        crossing = [d for d in before if found.of[d] != found.of[i]]
        packets += 0 if len(crossing) < 2 else -(-len(crossing) // machine.runtime.barrier_signals)
        signalled.update(crossing)
    signals = len(signalled)
    return total - max(longest, default=0) < MIN_OVERLAP * (packets + signals)
