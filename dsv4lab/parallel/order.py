"""Collectives happen in one order, the same on every rank; a program in which they could not is refused.

Every collective reads and writes the resource :data:`COMM`, whatever group it runs in, so the scoreboard makes each
wait for the one before it, on whichever streams a plan puts them. All ranks list the same collectives in program order
(lists depend on shapes alone, and ranks agree on these), hence no two ranks can ever wait for each other's later
collective: plans cannot deadlock. :func:`check_order` proves it of a compiled program, from its streams and waits only.
"""

from __future__ import annotations

from dsv4lab.errors import PlanError
from dsv4lab.timeline.program import ProgramOp, StreamProgram

COMM = "comm"
"""Resource that stands for the links between ranks."""


def collectives(program: StreamProgram) -> tuple[ProgramOp, ...]:
    """The collectives of ``program`` in issue order."""
    return tuple(op for op in program.ops if COMM in op.writes)


def check_order(program: StreamProgram) -> None:
    """Raise :class:`PlanError` unless streams and waits force the collectives into their issue order."""
    reached: dict[str, dict[str, int]] = {}  # stream: what it knows to have completed, as (stream: op index)
    known: dict[int, dict[str, int]] = {}  # the same, after each op
    previous: ProgramOp | None = None
    for op in program.ops:
        clock = dict(reached.get(op.stream, {}))
        for wait in op.waits:
            for stream, index in known[wait].items():
                clock[stream] = max(clock.get(stream, -1), index)
        if COMM in op.writes:
            if previous is not None and clock.get(previous.stream, -1) < previous.index:
                raise PlanError(
                    f"plan {program.plan}: {op.label} on {op.stream} does not wait for {previous.label} on "
                    f"{previous.stream}: ranks could run these collectives in different orders and block for ever"
                )
            previous = op
        clock[op.stream] = op.index
        reached[op.stream] = known[op.index] = clock
