"""From a stream program to what is done on a device's streams: which events are recorded, waited for and used again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsv4lab.overlap.scoreboard import cross_stream_waits
from dsv4lab.timeline.program import MAIN, StreamProgram

START = -1
"""In place of an op: the beginning of the run on ``main``."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What stream order and the program's ops leave to events.

    ``waits[i]``: what op ``i``'s stream waits for before it: the program's waits, and ``START`` where the op is the
    first of a side stream that nothing else orders behind the beginning. ``joins``: the ops that ``main`` waits for at
    the end. ``slot_of``: event slot of every op (or ``START``) that somebody waits for; a slot is used again once all
    waits for it have been issued. ``slots`` are needed at once.
    """

    waits: tuple[tuple[int, ...], ...]
    joins: tuple[int, ...]
    slot_of: Mapping[int, int]
    slots: int

    @property
    def edges(self) -> int:
        """Waits in all."""
        return sum(map(len, self.waits)) + len(self.joins)


def schedule_of(program: StreamProgram) -> Schedule:
    """The schedule of ``program``: no op of any stream runs before ``START``, and after the joins ``main`` is last."""
    ops = program.ops
    last = {op.stream: op.index + 1 for op in ops}
    streams = [MAIN, *(op.stream for op in ops), MAIN]
    deps = [(), *((0, *(d + 1 for d in op.deps)) for op in ops), tuple(sorted({0, *last.values()}))]
    shifted = cross_stream_waits(streams, deps, range(len(streams)))
    waits = [tuple(w - 1 for w in each) for each in shifted[1:]]
    slot_of, slots = _slots(waits)
    return Schedule(tuple(waits[:-1]), waits[-1], slot_of, slots)


def _slots(waits: Sequence[tuple[int, ...]]) -> tuple[dict[int, int], int]:
    """Slots by producer; the waits of a step come before what it records, so they free their slots for it."""
    last_reader = {producer: reader for reader, each in enumerate(waits) for producer in each}
    free: list[int] = []
    slot_of: dict[int, int] = {}
    slots = 0
    for at in range(START, len(waits)):
        if at != START:
            free += sorted((slot_of[w] for w in waits[at] if last_reader[w] == at), reverse=True)
        if at in last_reader:
            if not free:
                free.append(slots)
                slots += 1
            slot_of[at] = free.pop()
    return slot_of, slots
