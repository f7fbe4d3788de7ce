"""What the loop tells of its forwards: live batches for pictures, and recordings."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4lab.engine.messages import Record, Recorded, Reply, Steps, failure
from dsv4lab.engine.payloads import pack_timeline
from dsv4lab.engine.protocol import ForwardResult, ModelRunner
from dsv4lab.engine.scheduler import Scheduler
from dsv4lab.engine.step import Step
from dsv4lab.engine.step_busy import busy_of_each
from dsv4lab.engine.torch_recording import TorchRecording, UsualTimes
from dsv4lab.errors import EngineError, LabError
from dsv4lab.overlap.run_record import timeline_of
from dsv4lab.timeline.ranks import of_rank, side_by_side
from dsv4lab.timeline.records import StepRecord
from dsv4lab.timeline.timeline import UNKNOWN, Timeline

if TYPE_CHECKING:
    from dsv4lab.overlap.run_record import RunRecord

LIVE_PERIOD_NS = 100_000_000
RECENT_OPS = 600
MAX_RECORDED_STEPS = 4096
MAX_TORCH_STEPS = 256


@dataclass(frozen=True, slots=True)
class Ran:
    """A forward that ran, before its times are summed up."""

    step: Step
    record: RunRecord
    start_ns: int
    dur_ns: int
    plan: str
    hw_queues: int
    free_pages: int
    ranks: tuple[tuple[int, RunRecord], ...] = ()
    """With several ranks: the records of those that were asked for, by number."""


@dataclass(slots=True)
class StepFacts:
    """The settings in force that a :class:`StepRecord` names; whoever changes them keeps this current.

    ``rank`` is None where there is only one.
    """

    scheduler: Scheduler
    plan: str
    hw_queues: int
    rank: int | None = None

    def ran(self, step: Step, result: ForwardResult, start_ns: int, dur_ns: int, *, others: bool = False) -> Ran:
        """``step`` with the settings of this moment; with ``others``, also what the other ranks of the group did."""
        free = self.scheduler.allocator.free_pages
        ranks: tuple[tuple[int, RunRecord], ...] = ()
        if self.rank is not None:
            ranks = ((self.rank, result.record), *(result.others.items() if others else ()))
        return Ran(step, result.record, start_ns, dur_ns, self.plan, self.hw_queues, free, ranks)


def step_records(rans: Sequence[Ran]) -> tuple[StepRecord, ...]:
    """The records of these forwards."""
    busy = busy_of_each([ran.record for ran in rans])
    return tuple(_step_record(ran, *one) for ran, one in zip(rans, busy, strict=True))


def _step_record(ran: Ran, busy_ns: dict[str, int], hidden_ns: int) -> StepRecord:
    return StepRecord(
        step=ran.step.number,
        mode=ran.step.mode,
        tokens=ran.step.tokens,
        requests=len(ran.step.chunks),
        start_ns=ran.start_ns,
        dur_ns=ran.dur_ns,
        plan=ran.plan,
        hw_queues=ran.hw_queues,
        busy_ns=busy_ns,
        hidden_ns=hidden_ns,
        free_pages=ran.free_pages,
    )


def timeline(rans: list[Ran], meta: Mapping[str, Any]) -> Timeline:
    """Forwards on one timeline, numbered by step."""
    meta = {**meta, "step_modes": {str(r.step.number): r.step.mode for r in rans}}
    steps = [r.step.number for r in rans]
    if not rans or not rans[0].ranks:
        return timeline_of([r.record for r in rans], steps, meta=meta)
    by_rank = [dict(r.ranks) for r in rans]
    return side_by_side(
        [of_rank(timeline_of([records[rank] for records in by_rank], steps, meta=meta), rank) for rank in by_rank[0]]
    )


@dataclass(slots=True)
class LiveFeed:
    """Sends :class:`Steps` while somebody watches, at most ten times a second of the loop's clock."""

    facts: StepFacts
    send: Callable[[Steps], None]
    watched: bool = False
    _pending: list[Ran] = field(default_factory=list)
    _sent_ns: int = 0

    def on_step(self, step: Step, result: ForwardResult, start_ns: int, dur_ns: int) -> None:
        """See :class:`dsv4lab.engine.loop.StepListener`."""
        if not self.watched:
            return
        self._pending.append(self.facts.ran(step, result, start_ns, dur_ns))
        end = start_ns + dur_ns
        if end - self._sent_ns >= LIVE_PERIOD_NS:
            self._sent_ns = end
            self._flush()

    def on_idle(self) -> None:
        """Send what is left."""
        if self._pending:
            self._flush()

    def watch(self, on: bool) -> None:
        """Begin or end sending."""
        self.watched = on
        self._pending.clear()

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        records = step_records(pending)
        self.send(Steps(records, pack_timeline(timeline(_recent(pending), {}))))


def _recent(rans: list[Ran]) -> list[Ran]:
    """The last forwards, at least one, of together at most ``RECENT_OPS`` ops."""
    out: deque[Ran] = deque()
    room = RECENT_OPS
    for ran in reversed(rans):
        room -= len(ran.record.program.ops)
        if out and room < 0:
            break
        out.appendleft(ran)
    return list(out)


@dataclass(slots=True)
class Recorder:
    """Answers :class:`Record` calls, one at a time."""

    facts: StepFacts
    describe: Callable[[], Mapping[str, Any]]
    send: Callable[[Reply], None]
    runner: ModelRunner
    _open: Record | None = None
    _begun: bool = False
    _seen: int = 0
    _torch: TorchRecording | None = None
    _usual: UsualTimes = field(default_factory=UsualTimes)
    _rans: list[Ran] = field(default_factory=list)
    _idles: dict[int, list[RunRecord]] = field(default_factory=dict)

    def start(self, call: Record, *, idle: bool) -> None:
        """Record from the next forward on. Raises :class:`EngineError` if a recording is open or too long."""
        if self._open is not None:
            raise EngineError("a profile is being recorded already; one at a time")
        most = MAX_TORCH_STEPS if call.torch else MAX_RECORDED_STEPS
        if not 1 <= call.steps <= most:
            raise EngineError(f"profile of {call.steps} steps: takes 1 to {most}{' with torch' if call.torch else ''}")
        torch = TorchRecording(self.runner, Path(call.torch)) if call.torch else None
        if torch is not None and call.decoding == 0:
            torch.start()
        self._open, self._begun, self._rans, self._idles = call, call.decoding == 0, [], {}
        self._torch, self._seen = torch, 0
        if idle:
            self.on_idle()

    def on_step(self, step: Step, result: ForwardResult, start_ns: int, dur_ns: int) -> None:
        """See :class:`dsv4lab.engine.loop.StepListener`."""
        if self._torch is None or not self._torch.running:
            self._usual.add(self.facts.ran(step, result, start_ns, dur_ns))
        if self._open is None:
            return
        if not self._begun and step.mode == "decode" and len(step.chunks) >= self._open.decoding:
            self._seen += 1
            if self._torch is None:
                self._begun = True
            elif self._seen >= self._open.lead:
                self._start_torch()
                return
        if self._begun:
            self._rans.append(self.facts.ran(step, result, start_ns, dur_ns, others=True))
            if self._torch is not None:
                self._torch.on_step(step.number)
        if len(self._rans) >= self._open.steps:
            self.end()

    def _start_torch(self) -> None:
        """From the next forward on; what keeps it from starting is the call's answer."""
        assert self._open is not None
        assert self._torch is not None
        try:
            self._torch.start()
        except LabError as error:
            self.send(failure(self._open.call, error))
            self._open = self._torch = None
        else:
            self._begun = True

    def on_idle_round(self, record: RunRecord, others: Mapping[int, RunRecord]) -> None:
        """The group took part in a forward of other groups without tokens of its own."""
        if self._open is not None and self.facts.rank is not None:
            for rank, of_rank_record in {self.facts.rank: record, **others}.items():
                self._idles.setdefault(rank, []).append(of_rank_record)

    def on_idle(self) -> None:
        """Answer, if the call does not want to wait for more work."""
        if self._open is not None and self._open.until_idle:
            self.end()

    def end(self) -> None:
        """Answer the open call, if there is one, with what there is."""
        if self._open is None:
            return
        call, rans, idles, torch = self._open, self._rans, self._idles, self._torch
        self._open, self._rans, self._idles, self._torch = None, [], {}, None
        try:
            captured = None if torch is None else torch.end(self._usual.cost(rans))
        except LabError as error:
            self.send(failure(call.call, error))
            return
        program = rans[-1].record.program if rans else None
        steps = step_records(rans)
        ran = timeline(rans, self.describe())
        if idles:
            rounds = [
                of_rank(timeline_of(records, [UNKNOWN] * len(records), meta=ran.meta), rank)
                for rank, records in idles.items()
            ]
            ran = side_by_side([ran, *rounds] if rans else rounds)
        self.send(Recorded(call.call, pack_timeline(ran), program, steps, captured))
