"""From a layout to packets in rings: order, barrier packets, barrier bits, and when the host has written them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dsv4lab.queues.costs import Machine
from dsv4lab.queues.layout import Layout
from dsv4lab.queues.workload import Workload


@dataclass(frozen=True, slots=True)
class Packets:
    """``rings[q]``: ops in queue ``q`` in order. By op: ``waits`` on signals, ``barriers`` (packets that hold them),
    ``barrier_bit`` (it waits for all packets before it in its ring), ``ready_ns`` (written by the host), ``extra_ns``
    (beyond a dispatch: the entry of a graph), ``early`` (it may take its places while the packet before it in its ring
    runs). ``host_ns``: host time of all submissions.
    """

    rings: tuple[tuple[int, ...], ...]
    queue: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]
    barriers: tuple[int, ...]
    barrier_bit: tuple[bool, ...]
    ready_ns: tuple[float, ...]
    extra_ns: tuple[float, ...]
    host_ns: float
    early: tuple[bool, ...]


def lower(workload: Workload, layout: Layout, machine: Machine) -> Packets:
    """Write the packets of ``workload`` into the rings of ``layout``."""
    queue = tuple(map(layout.queue_of_lane.__getitem__, layout.lanes))
    rings: list[list[int]] = [[] for _ in range(layout.queues)]
    for i, q in enumerate(queue):
        rings[q].append(i)
    waits = _graph_joins(workload, layout, queue) if workload.graphs else layout.waits
    size = machine.runtime.barrier_signals
    ready, extra, host = _submission(workload, layout, machine)
    if workload.lead_us:
        extra = tuple(e + lead * 1e3 for e, lead in zip(extra, workload.lead_us, strict=True))
    return Packets(
        tuple(map(tuple, rings)),
        queue,
        tuple(waits),
        tuple([-(-len(w) // size) if w else 0 for w in waits]),
        tuple(_barrier_bits(layout, queue, machine.runtime.barrier_elision and not workload.graphs)),
        ready,
        extra,
        host,
        _early(workload, layout, rings),
    )


def _graph_joins(workload: Workload, layout: Layout, queue: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """A graph launch follows all of the one before: its roots wait for the last op of every other lane."""
    if not workload.steps or workload.steps[0] == workload.steps[-1]:
        return layout.waits
    waits = list(layout.waits)
    step, ends, before, seen = workload.steps[0], dict[int, int](), dict[int, int](), set[int]()
    for i, s in enumerate(workload.steps):
        if s != step:
            step, before, ends, seen = s, ends, {}, set()
        lane = layout.lanes[i]
        if lane not in seen and not waits[i]:
            waits[i] = tuple(sorted(end for end in before.values() if queue[end] != queue[i]))
        seen.add(lane)
        ends[lane] = i
    return tuple(waits)


def _early(workload: Workload, layout: Layout, rings: Sequence[Sequence[int]]) -> tuple[bool, ...]:
    """Only what follows the packet before it in its ring, on the same lane; what it waits for elsewhere has to have
    ended by then.
    """
    found = [False] * len(layout.lanes)
    for ring in rings if any(workload.early) else ():
        for before, i in pairwise(ring):
            found[i] = workload.early[i] and layout.lanes[before] == layout.lanes[i]
    return tuple(found)


def _barrier_bits(layout: Layout, queue: tuple[int, ...], elide: bool) -> list[bool]:
    """Every packet has it, unless rocm-systems#9895 is in force: then only if its stream has an earlier packet in the
    ring that no newer barrier covers.
    """
    if not elide:
        return [True] * len(queue)
    bits: list[bool] = []
    slot: dict[int, int] = {}
    newest: dict[int, int] = {}
    previous: dict[tuple[int, int], int] = {}
    for lane, q in zip(layout.lanes, queue, strict=True):
        at = slot[q] = slot.get(q, -1) + 1
        before, barrier = previous.get((q, lane)), newest.get(q)
        bit = before is not None and (barrier is None or barrier <= before)
        if bit:
            newest[q] = at
        previous[q, lane] = at
        bits.append(bit)
    return bits


def _submission(
    workload: Workload, layout: Layout, machine: Machine
) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    n = len(workload)
    if not workload.graphs:
        each = machine["submit_us"] * 1e3
        return tuple((i + 1) * each for i in range(n)), (0.0,) * n, n * each
    launch, segment = machine["graph_submit_us"] * 1e3, machine["segment_submit_us"] * 1e3
    entry = machine["graph_us"] * 1e3
    ready, extra = [0.0] * n, [0.0] * n
    now, step, newest, seen = 0.0, None, -1, set[int]()
    for i, s in enumerate(workload.steps):
        if s != step:
            now, step, newest, seen = now + launch, s, layout.segments[i], set()
        elif layout.segments[i] > newest:
            now, newest = now + segment, layout.segments[i]
        ready[i] = now
        if layout.lanes[i] not in seen and not layout.waits[i]:
            extra[i] = entry
        seen.add(layout.lanes[i])
    return tuple(ready), tuple(extra), now
