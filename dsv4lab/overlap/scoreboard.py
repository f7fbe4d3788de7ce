"""Hazards between ops, and the waits that keep them across streams. Pure functions on names and numbers."""

from __future__ import annotations

from collections.abc import Sequence


def hazards(accesses: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[tuple[int, ...]]:
    """Direct predecessors of each op, from ``(reads, writes)`` in program order.

    An op depends on the last writer of what it reads (read after write), on the last writer of what it writes (write
    after write) and on all readers since then (write after read). Indices are ascending.
    """
    last_writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    found: list[tuple[int, ...]] = []
    for i, (reads, writes) in enumerate(accesses):
        needs: set[int] = set()
        for resource in reads:
            if resource in last_writer:
                needs.add(last_writer[resource])
        for resource in writes:
            if resource in last_writer:
                needs.add(last_writer[resource])
            needs.update(readers.get(resource, ()))
        needs.discard(i)
        found.append(tuple(sorted(needs)))
        for resource in reads:
            readers.setdefault(resource, []).append(i)
        for resource in writes:
            last_writer[resource] = i
            readers[resource] = []
    return found


def cross_stream_waits(
    streams: Sequence[str], deps: Sequence[Sequence[int]], order: Sequence[int]
) -> list[tuple[int, ...]]:
    """Waits each op needs when issued in ``order``: its ``deps`` on other streams that nothing already implies.

    Vector clocks: an op inherits what its stream knew after the op before it, and what each awaited op knew. A
    dependency whose stream is already known to have passed it needs no wait. ``streams``, ``deps`` and the result are
    indexed by op, ``order`` is a permutation in which every dependency precedes its dependant.
    """
    issued = {i: n for n, i in enumerate(order)}
    position: dict[int, int] = {}
    depth: dict[str, int] = {}
    for i in order:
        position[i] = depth.get(streams[i], 0)
        depth[streams[i]] = position[i] + 1
    clock_of_stream: dict[str, dict[str, int]] = {}
    clock_after: dict[int, dict[str, int]] = {}
    waits: list[tuple[int, ...]] = [()] * len(streams)
    for i in order:
        clock = dict(clock_of_stream.get(streams[i], {}))
        needed = []
        for d in sorted(deps[i], key=lambda j: issued[j], reverse=True):
            if d not in clock_after:
                raise ValueError(f"op {i} is issued before op {d}, which it depends on")
            if streams[d] == streams[i] or clock.get(streams[d], -1) >= position[d]:
                continue
            needed.append(d)
            for stream, known in clock_after[d].items():
                clock[stream] = max(clock.get(stream, -1), known)
        clock[streams[i]] = position[i]
        clock_of_stream[streams[i]] = clock
        clock_after[i] = clock
        waits[i] = tuple(sorted(needed))
    return waits
