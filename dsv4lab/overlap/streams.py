"""The stream runner that a compiled program is replayed on, and the serial reference."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Protocol

import numpy as np

from dsv4lab.overlap.arena import Arena, Lane
from dsv4lab.overlap.compile import CompiledProgram
from dsv4lab.overlap.ops import OpFunction
from dsv4lab.overlap.run_record import RunRecord
from dsv4lab.overlap.tracer import Tracer
from dsv4lab.timeline.program import ProgramOp


class Streams(Protocol):
    """Replays compiled programs; returns when all their ops have completed. ``tracer`` is told what runs."""

    tracer: Tracer | None

    def run(self, compiled: CompiledProgram, arena: Arena) -> RunRecord:
        """Run every op once, in stream order and after its waits. Raises what an op raised."""
        ...

    def close(self) -> None:
        """Release threads and other resources; further runs are an error."""
        ...


class SerialStreams:
    """All ops on the calling thread in issue order: the reference."""

    tracer: Tracer | None = None

    def run(self, compiled: CompiledProgram, arena: Arena) -> RunRecord:
        """See :meth:`Streams.run`."""
        program = compiled.program
        lanes = {stream: Lane(stream, arena) for stream in program.streams}
        n = len(program.ops)
        start, end = np.zeros(n, np.int64), np.zeros(n, np.int64)
        functions = compiled.run if self.tracer is None else traced(compiled, self.tracer)
        with nullcontext() if self.tracer is None else self.tracer.run(program, graph=False):
            begin = time.perf_counter_ns()
            for i, (op, run) in enumerate(zip(program.ops, functions, strict=True)):
                start[i] = time.perf_counter_ns()
                run(lanes[op.stream])
                end[i] = time.perf_counter_ns()
        queued = np.full(n, begin, np.int64)
        return RunRecord(program, dict.fromkeys(program.streams, 0), queued, start, start, end)

    def close(self) -> None:
        """Nothing to release."""


def traced(compiled: CompiledProgram, tracer: Tracer) -> list[OpFunction]:
    """The functions of ``compiled``, each in its op's range."""

    def within(op: ProgramOp, run: OpFunction) -> OpFunction:
        def call(lane: Lane) -> None:
            with tracer.op(op):
                run(lane)

        return call

    return [within(op, run) for op, run in zip(compiled.program.ops, compiled.run, strict=True)]
