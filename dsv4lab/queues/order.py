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


def needed_edges(
    lanes: Sequence[int], after: Sequence[Sequence[int]], *, same_lane: bool = False
) -> list[tuple[int, ...]]:
    """Edges of ``after`` that nothing else implies, when ops of one lane run in the order of their numbers.

    Vector clocks over lanes: op ``i`` knows, for every lane, how far it is surely done. Edges within a lane are left
    out unless ``same_lane``, then only where they are not to the lane's previous op.
    """
    clock_of_lane: dict[int, dict[int, int]] = {}
    clocks: list[dict[int, int]] = []
    out: list[tuple[int, ...]] = []
    for i, lane in enumerate(lanes):
        before = after[i]
        known = clock_of_lane.get(lane)
        if not before or (len(before) == 1 and lanes[before[0]] == lane):
            clock = {} if known is None else known
            out.append(())
        else:
            clock = dict(known) if known else {}
            out.append(_edges(lane, lanes, before, clocks, clock, same_lane))
        mine = dict(clock) if clock is known or not clock else clock
        mine[lane] = i
        clock_of_lane[lane] = mine
        clocks.append(mine)
    return out


def _edges(
    lane: int,
    lanes: Sequence[int],
    before: Sequence[int],
    clocks: Sequence[dict[int, int]],
    clock: dict[int, int],
    same_lane: bool,
) -> tuple[int, ...]:
    """The edges of one op among ``before`` that ``clock`` does not cover; it takes over what their producers knew."""
    needed = []
    for d in sorted(before, reverse=True):
        if lanes[d] == lane and not same_lane:
            continue
        if lanes[d] != lane and clock.get(lanes[d], -1) >= d:
            continue
        needed.append(d)
        for other, at in clocks[d].items():
            if clock.get(other, -1) < at:
                clock[other] = at
    return tuple(sorted(needed))
