"""Dependencies of a workload: what each op follows, and which edges others already imply."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4lab.queues.workload import Workload


def predecessors(workload: Workload) -> list[tuple[int, ...]]:
    """What op ``i`` directly follows: its waits and the op before it on its stream."""
    last: dict[str, int] = {}
    out: list[tuple[int, ...]] = []
    for i, (stream, waits) in enumerate(zip(workload.streams, workload.waits, strict=True)):
        before = last.get(stream)
        if before is None:
            out.append(waits)
        elif not waits:
            out.append((before,))
        else:
            out.append(tuple(sorted({*waits, before})))
        last[stream] = i
    return out


Clock = dict[int, int]
"""How far other lanes are surely done: by lane, the number of its last op known to be."""


def needed_edges(lanes: Sequence[int], after: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Edges of ``after`` across lanes that nothing else implies, when ops of one lane run in order of their numbers."""
    return edges_and_clocks(lanes, after)[0]


def edges_and_clocks(lanes: Sequence[int], after: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], list[Clock]]:
    """:func:`needed_edges`, and what each op knows of other lanes once it runs (vector clocks).

    That an op knows itself and all before it on its lane goes without saying, so ops in a row share one clock: clocks
    are not to be changed.
    """
    clock_of_lane: dict[int, Clock] = {}
    clocks: list[Clock] = []
    out: list[tuple[int, ...]] = []
    for lane, before in zip(lanes, after, strict=True):
        clock = clock_of_lane.get(lane)
        if clock is None:
            clock = clock_of_lane[lane] = {}
        if not before or (len(before) == 1 and lanes[before[0]] == lane):
            out.append(())
        else:
            clock = clock_of_lane[lane] = dict(clock)
            out.append(_edges(lane, lanes, before, clocks, clock))
        clocks.append(clock)
    return out, clocks


def _edges(
    lane: int, lanes: Sequence[int], before: Sequence[int], clocks: Sequence[Clock], clock: Clock
) -> tuple[int, ...]:
    """The edges of one op among ``before`` that ``clock`` does not cover; it takes over what their producers knew."""
    needed = []
    for d in sorted(before, reverse=True):
        if lanes[d] == lane or clock.get(lanes[d], -1) >= d:
            continue
        needed.append(d)
        for other, at in clocks[d].items():
            if clock.get(other, -1) < at:
                clock[other] = at
        clock[lanes[d]] = d
    return tuple(sorted(needed))
