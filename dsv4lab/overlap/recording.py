"""The order in which a program's ops are recorded into a graph, and the replay lanes that follow from it.

A CUDA graph's replay gives a node the lane of its first-recorded parent, if that parent is the lane's last node
(hw-queues 3). Side work recorded before the main work that it is joined with draws the join to its own lane, and every
layer opens another; recorded right before its join, it leaves main's chain on one lane. The same holds the other
way: a side op that waits for ``main`` stays on its stream's lane if the op before it was recorded ahead of what it
waits for.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsv4lab.queues.graph_cuda import lanes
from dsv4lab.queues.workload import Cost, from_program
from dsv4lab.timeline.program import MAIN, StreamProgram


def recording_order(streams: Sequence[str], deps: Sequence[Sequence[int]]) -> list[int]:
    """Ops in program order, but each side op as late as its readers on ``main`` allow, or the next op of its stream
    that waits for ``main``.

    ``deps`` are direct predecessors by op, all earlier. Ops of one stream keep their order.
    """
    return _Recording(streams, deps).order()


class _Recording:
    def __init__(self, streams: Sequence[str], deps: Sequence[Sequence[int]]) -> None:
        self._streams = streams
        self._before: list[tuple[int, ...]] = []
        """Direct predecessors by op, that on its own stream included."""
        self._ahead: dict[int, list[int]] = {}
        """By op of ``main``: the side ops that had better be recorded before it."""
        self._done: set[int] = set()
        self._order: list[int] = []
        last: dict[str, int] = {}
        for i, stream in enumerate(streams):
            previous = last.get(stream)
            self._before.append((*deps[i], *(() if previous is None else (previous,))))
            if stream != MAIN and previous is not None:
                for d in deps[i]:
                    if streams[d] == MAIN:
                        self._ahead.setdefault(d, []).append(previous)
            last[stream] = i

    def order(self) -> list[int]:
        """See :func:`recording_order`."""
        for i, stream in enumerate(self._streams):
            if stream == MAIN:
                for side in self._ahead.get(i, ()):
                    missing = self._missing(side)
                    if all(self._streams[m] != MAIN for m in missing):
                        self._emit(missing)
                self._emit(self._missing(i))
        for i in range(len(self._streams)):
            self._emit(self._missing(i))
        return self._order

    def _missing(self, i: int) -> set[int]:
        """``i`` and all that has to come before it, as far as not recorded."""
        found: set[int] = set()
        pending = [i]
        while pending:
            at = pending.pop()
            if at not in self._done and at not in found:
                found.add(at)
                pending += self._before[at]
        return found

    def _emit(self, ops: set[int]) -> None:
        self._order += sorted(ops)
        self._done |= ops


def replay_lanes(program: StreamProgram) -> tuple[str, ...]:
    """Labels of the ops that open the lanes of a CUDA graph of ``program``, one per lane, by the rule above."""
    found = lanes(from_program(program, [Cost(1.0)] * len(program.ops)))
    return tuple(program.ops[i].label for i in found.opened_by)
