"""Programs on the streams of a GPU: eager, and as the work of a capture."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from dsv4lab.errors import EngineError, UnavailableError
from dsv4lab.overlap.arena import Arena, Lane
from dsv4lab.overlap.compile import CompiledProgram
from dsv4lab.overlap.device_api import DeviceApi, Event, Stream
from dsv4lab.overlap.ops import OpFunction
from dsv4lab.overlap.run_record import RunRecord
from dsv4lab.overlap.schedule import START, Schedule, schedule_of
from dsv4lab.overlap.tracer import Tracer
from dsv4lab.timeline.program import MAIN, ProgramOp, StreamProgram
from dsv4lab.timeline.timeline import UNKNOWN

_DRAWS = 64
"""Streams asked for before it is given up to find one that no other name has."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What a program needs to be issued. ``whole`` stands for all of it in records: a device tells no op's times."""

    schedule: Schedule
    whole: StreamProgram


class Launched:
    """A run that has been issued: the caller's stream goes on behind it, the host has waited for nothing."""

    def __init__(self, whole: StreamProgram, api: DeviceApi, queued_ns: int, begin: Event, end: Event) -> None:
        self.end = end
        self._whole = whole
        self._api = api
        self._queued_ns = queued_ns
        self._begin = begin

    def us(self) -> float:
        """Microseconds on the device from its beginning to its end; waits for the end."""
        return self._api.elapsed_us(self._begin, self.end)

    def record(self) -> RunRecord:
        """One op, ``forward``, that stands for the whole run; waits for the end. It begins when it was issued."""
        queued = np.array([self._queued_ns], np.int64)
        end = queued + round(self.us() * 1e3)
        return RunRecord(self._whole, {MAIN: UNKNOWN}, queued, queued, queued, end)


class DeviceStreams:
    """Replays programs on one stream of the device per stream of the program; see :class:`Streams`.

    Each run begins behind the caller's current stream, which goes on behind the run's end, so memory that the caller
    made or frees needs no further care. Tensors that ops hand over with :meth:`Lane.keep` live until the next run,
    which is behind all streams of this one. ``high_main`` gives ``main`` the higher priority. ``tracer`` is told what
    is issued, while there is one.
    """

    def __init__(self, api: DeviceApi, *, high_main: bool = False) -> None:
        self.api = api
        self._high_main = high_main
        self._streams: dict[tuple[str, bool], Stream] = {}
        self._events: list[Event] = []
        self._enter = api.event()
        self._prepared: weakref.WeakKeyDictionary[CompiledProgram, Prepared] = weakref.WeakKeyDictionary()
        self._kept: list[torch.Tensor] = []
        self._closed = False
        self.tracer: Tracer | None = None

    def run(self, compiled: CompiledProgram, arena: Arena) -> RunRecord:
        """As :meth:`launch`, and wait for the end."""
        return self.launch(compiled, arena).record()

    def launch(self, compiled: CompiledProgram, arena: Arena) -> Launched:
        """Issue every op once. Raises what an op raised; then all streams have been joined."""
        prepared = self.prepared(compiled)
        self._kept.clear()
        while len(self._events) < prepared.schedule.slots:
            self._events.append(self.api.event())
        work = partial(self.issue, compiled, arena, self._events, self._kept, self.tracer)
        if self.tracer is None:
            return self.bracket(prepared.whole, work)
        with self.tracer.run(compiled.program, graph=False):
            return self.bracket(prepared.whole, work)

    def bracket(self, whole: StreamProgram, work: Callable[[], None]) -> Launched:
        """Issue ``work`` on ``main``, behind the caller's stream, and let that go on behind it."""
        if self._closed:
            raise EngineError("these device streams are closed")
        api, caller, main = self.api, self.api.current(), self.stream(MAIN)
        begin, end = api.event(timed=True), api.event(timed=True)
        queued_ns = time.perf_counter_ns()
        api.record(self._enter, caller)
        api.wait(main, self._enter)
        api.record(begin, main)
        try:
            work()
        finally:
            api.record(end, main)
            api.wait(caller, end)
        return Launched(whole, api, queued_ns, begin, end)

    def issue(
        self,
        compiled: CompiledProgram,
        arena: Arena,
        events: Sequence[Event],
        kept: list[torch.Tensor],
        tracer: Tracer | None = None,
    ) -> None:
        """Fork from ``main``, run all ops behind their waits, and join ``main``; ``events`` are one per slot."""
        api, schedule = self.api, self.prepared(compiled).schedule
        slot_of = schedule.slot_of
        program = compiled.program
        lanes = {name: Lane(name, arena, kept) for name in program.streams}
        used: dict[str, Stream] = {MAIN: self.stream(MAIN)}
        if START in slot_of:
            api.record(events[slot_of[START]], used[MAIN])
        for op, run, waits in zip(program.ops, compiled.run, schedule.waits, strict=True):
            stream = used[op.stream] = self._stream_of(op, program)
            for producer in waits:
                api.wait(stream, events[slot_of[producer]])
            try:
                self._call(op, run, stream, lanes[op.stream], tracer)
            except Exception:
                with suppress(Exception):  # what broke a capture may refuse further events: the first error is told
                    self._join_all(used)
                raise
            if op.index in slot_of:
                api.record(events[slot_of[op.index]], stream)
        for producer in schedule.joins:
            api.wait(used[MAIN], events[slot_of[producer]])

    def warm(self, compiled: CompiledProgram, arena: Arena) -> None:
        """Run every op on its stream, one stream at a time with the host in between: no event is waited for.

        Kernels compile, and scratch that is keyed by stream is made, before a capture. It waits for the device.
        """
        self._kept.clear()
        api, before = self.api, None
        api.synchronize()
        for op, run in zip(compiled.program.ops, compiled.run, strict=True):
            if before not in (None, op.stream):
                api.synchronize()
            before = op.stream
            stream = self._stream_of(op, compiled.program)
            self._call(op, run, stream, Lane(op.stream, arena, self._kept), self.tracer)
        api.synchronize()

    def prepared(self, compiled: CompiledProgram) -> Prepared:
        """Schedule and stand-in of ``compiled``, made once."""
        found = self._prepared.get(compiled)
        if found is None:
            program = compiled.program
            whole = StreamProgram((_FORWARD,), (MAIN,), program.plan, program.mode, program.tokens)
            found = self._prepared[compiled] = Prepared(schedule_of(program), whole)
        return found

    def stream(self, name: str, *, high: bool = False) -> Stream:
        """The device's stream for ``name`` of ``high`` or normal priority, the same for ever, and no other's.

        Raises :class:`UnavailableError` if the process has too few (on ROCm torch makes one less than it has queues).
        """
        high = high or (self._high_main and name == MAIN)
        found = self._streams.get((name, high))
        if found is None:
            draws = (self.api.stream(high=high) for _ in range(_DRAWS))
            found = next((s for s in draws if s not in self._streams.values()), None)
            if found is None:
                raise UnavailableError(
                    f"stream {name}: torch gives this process {len(self._streams)} distinct streams; raise "
                    f"GPU_MAX_HW_QUEUES, or fold the plan with side_streams={max(0, len(self._streams) - 1)}"
                )
            self._streams[name, high] = found
        return found

    def has(self, program: StreamProgram) -> bool:
        """Whether this process has a stream for each that ``program`` names."""
        try:
            for name in program.streams:
                self.stream(name, high=name in program.high)
        except UnavailableError:
            return False
        return True

    def close(self) -> None:
        """Wait for the device; further runs are an error."""
        if not self._closed:
            self._closed = True
            self.api.synchronize()
            self._kept.clear()

    def _stream_of(self, op: ProgramOp, program: StreamProgram) -> Stream:
        return self.stream(op.stream, high=op.stream in program.high)

    def _call(self, op: ProgramOp, run: OpFunction, stream: Stream, lane: Lane, tracer: Tracer | None) -> None:
        work = partial(run, lane)
        try:
            if tracer is None:
                self.api.run(stream, work)
            else:
                with tracer.op(op):
                    self.api.run(stream, work)
        except Exception as error:
            error.add_note(f"in op {op.label} on {op.stream}")
            raise

    def _join_all(self, used: dict[str, Stream]) -> None:
        """Let ``main`` wait for every stream in use: a capture cannot end with one left forked."""
        for name, stream in used.items():
            if name != MAIN:
                event = self.api.event()
                self.api.record(event, stream)
                self.api.wait(used[MAIN], event)


_FORWARD = ProgramOp(0, "forward", -1, MAIN, (), (), (), ())
