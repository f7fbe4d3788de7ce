"""Op list + plan → stream program with the functions to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4lab.errors import PlanError
from dsv4lab.overlap.ops import Op, OpFunction
from dsv4lab.overlap.plan import OverlapPlan
from dsv4lab.overlap.recording import recording_order
from dsv4lab.overlap.scoreboard import cross_stream_waits, hazards
from dsv4lab.timeline.program import MAIN, ProgramOp, StreamProgram


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CompiledProgram:
    """A stream program and, op by op, what to call."""

    program: StreamProgram
    run: tuple[OpFunction, ...]


def compile_program(
    ops: Sequence[Op],
    plan: OverlapPlan,
    mode: str,
    tokens: int,
    order: Sequence[int] | None = None,
    *,
    late_sides: bool = False,
) -> CompiledProgram:
    """Place ``ops`` on the plan's streams, split fused ops whose parts the plan separates, and derive all waits.

    ``order`` is an alternative issue order (a permutation of the placed ops that respects their dependencies; used to
    test that the declared hazards are sufficient). By default ops are issued in program order, or with ``late_sides``
    each side op as late as its readers on ``main`` allow (:mod:`dsv4lab.overlap.recording`).

    Raises:
        PlanError: ``order`` breaks a dependency. (Whether rules match ops of some mode is :meth:`OverlapPlan.check`.)

    """
    placed = [item for op in ops for item in _place(op, plan, tokens)]
    streams = [stream for _, stream in placed]
    deps = hazards([(op.reads, op.writes) for op, _ in placed])
    natural = recording_order(streams, deps) if late_sides else range(len(placed))
    issue = list(natural if order is None else order)
    if sorted(issue) != list(range(len(placed))):
        raise PlanError(f"issue order must be a permutation of {len(placed)} ops")
    try:
        waits = cross_stream_waits(streams, deps, issue)
    except ValueError as error:
        raise PlanError(f"illegal issue order: {error}") from None
    index = {i: n for n, i in enumerate(issue)}
    program_ops = tuple(
        ProgramOp(
            index=n,
            name=placed[i][0].name,
            layer=placed[i][0].layer,
            stream=streams[i],
            waits=tuple(sorted(index[w] for w in waits[i])),
            deps=tuple(sorted(index[d] for d in deps[i])),
            reads=placed[i][0].reads,
            writes=placed[i][0].writes,
        )
        for n, i in enumerate(issue)
    )
    names = (MAIN, *(s for s in sorted(set(streams), key=_stream_key) if s != MAIN))
    high = tuple(name for name in names if name in plan.high)
    program = StreamProgram(program_ops, names, plan.name, mode, tokens, high)
    return CompiledProgram(program, tuple(placed[i][0].run for i in issue))


def _place(op: Op, plan: OverlapPlan, tokens: int) -> list[tuple[Op, str]]:
    """``op`` on its stream, or its parts on theirs if the plan separates or splits them."""
    if not op.parts:
        return [(op, plan.stream_of((op.name,), op.kind, tokens))]
    streams = [plan.stream_of((part.name, op.name), part.kind, tokens) for part in op.parts]
    if len(set(streams)) == 1 and not plan.splits(op.name):
        return [(op, streams[0])]
    return list(zip(op.parts, streams, strict=True))


def _stream_key(stream: str) -> int:
    return -1 if stream == MAIN else int(stream.removeprefix("side"))
