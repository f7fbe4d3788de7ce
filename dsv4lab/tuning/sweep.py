"""Measuring: worker processes in turn, the gate first in each, then trials in balanced order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Self

from dsv4lab.config.engine import EngineConfig
from dsv4lab.errors import EngineError
from dsv4lab.tuning.gate import Divergence, Gate
from dsv4lab.tuning.recommend import Choice
from dsv4lab.tuning.space import BASELINE, Cell, SweepSpace, Turn, Visit, balanced
from dsv4lab.tuning.store import SessionStore, home_records
from dsv4lab.tuning.target import LoadResult, OpenTarget, SweepTarget
from dsv4lab.tuning.trial import (
    CONFIRM,
    EXPLORE,
    Trial,
    TrialKey,
    busy_from_json,
    cell_from_json,
    cell_to_json,
    digest,
)

Tell = Callable[[int, str], None]
"""``tell(loads, text)``: so many more loads are done; ``text`` says what comes next."""


class Diverged(Exception):
    """Two cells gave different tokens: nothing that was measured can be compared."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(str(divergence))
        self.divergence = divergence


class Bench:
    """One worker process at a time: opened for a queue count or for the control, and closed at the end."""

    def __init__(self, config: EngineConfig, cores: int, open_target: OpenTarget) -> None:
        self._config = replace(config, streams="queue", intra_op_threads=1, plan=BASELINE)
        self._control = replace(config, streams="serial", intra_op_threads=cores, plan=BASELINE)
        self._open = open_target
        self._target: SweepTarget | None = None
        self._is_control = False
        self._queues = 0

    def running(self, hw_queues: int) -> SweepTarget:
        """A worker process with ``hw_queues`` queues: the present one, if that is what it has."""
        if self._target is not None and not self._is_control and self._queues == hw_queues:
            return self._target
        return self.fresh(hw_queues, control=False)

    def fresh(self, hw_queues: int, *, control: bool) -> SweepTarget:
        """A new worker process with ``hw_queues`` queues, or the control."""
        if self._target is not None and not control and not self._is_control:
            self._target.set_hw_queues(hw_queues)
            self._queues = hw_queues
            return self._target
        self.close()
        config = self._control if control else replace(self._config, hw_queues=hw_queues)
        self._target = self._open(config)
        self._is_control, self._queues = control, hw_queues
        return self._target

    def close(self) -> None:
        """End the worker, if there is one."""
        target, self._target = self._target, None
        if target is not None:
            target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Sweep:
    """Runs what the store does not have yet; every trial is recorded before the next begins.

    Raises :class:`Diverged` at the first cell whose tokens differ from the reference.
    """

    def __init__(self, space: SweepSpace, bench: Bench, store: SessionStore, gate: Gate, tell: Tell) -> None:
        self.space = space
        self.trials = [Trial.from_json(record) for record in store.of_kind("trial")]
        self.busy = {cell_from_json(r["cell"]): busy_from_json(r["stream_busy"]) for r in store.of_kind("busy")}
        self._bench = bench
        self._store = store
        self._gate = gate
        self.tell = tell
        self._done: set[TrialKey] = {trial.key for trial in self.trials}
        for record in home_records(store.records):
            if record["kind"] == "gate":
                gate.restore(record["reference"])

    def explore(self) -> None:
        """Make every visit of the sweep that is not complete."""
        for visit in self.space.visits():
            self._visit(visit, EXPLORE)

    def confirm(self, candidate: Choice) -> None:
        """Measure ``candidate`` and ``off`` side by side in a fresh process, ``space.confirm`` times at each level."""
        self._visit(self.confirming_visit(candidate), CONFIRM)

    def confirming_visit(self, candidate: Choice) -> Visit:
        """The visit of :meth:`confirm`: pairs in alternating order."""
        turns = [
            Turn(repeat, Cell(plan, candidate.hw_queues, level))
            for repeat in range(self.space.confirm)
            for level in balanced(self.space.concurrency, repeat)
            for plan in balanced((BASELINE, candidate.plan), repeat)
        ]
        return Visit(self.space.rounds, candidate.hw_queues, False, tuple(turns))

    def _visit(self, visit: Visit, phase: str) -> None:
        left = [t for t in visit.turns if TrialKey(phase, visit.round, t.repeat, t.cell) not in self._done]
        self.tell((visit.loads if not left else len(visit.turns) - len(left)), "continuing")
        if not left:
            return
        where = "control" if visit.control else f"{visit.hw_queues} queue{'s' * (visit.hw_queues != 1)}"
        self.tell(0, f"{where}: starting a worker")
        target = self._bench.fresh(visit.hw_queues, control=visit.control)
        self._warm(target, visit, where)
        for turn in left:
            self.tell(0, turn.cell.label)
            trial = self._measure(target, turn, phase, visit.round)
            self._store.append("trial", **trial.to_json())
            self.trials.append(trial)
            self._done.add(trial.key)
            self.tell(1, turn.cell.label)

    def _warm(self, target: SweepTarget, visit: Visit, where: str) -> None:
        """One load to wake the process, then every cell once, profiled: warm-up and correctness gate in one."""
        if not visit.control:
            self.tell(0, f"{where}: warming up")
            self._load(target, max(visit.cells, key=lambda cell: cell.concurrency_level))
            self.tell(1, f"{where}: warming up")
        for cell in visit.cells:
            self.tell(0, f"check {cell.label}")
            result = self._load(target, cell, checked=True)
            self._check(cell, result)
            if result.timeline is not None:
                self.busy[cell] = result.timeline.stream_busy()
                self._store.append("busy", cell=cell_to_json(cell), stream_busy=self.busy[cell].to_json())
            self.tell(1, f"check {cell.label}")
        checked = [cell_to_json(cell) for cell in visit.cells]
        self._store.append("gate", cells=checked, reference=self._gate.take_new())

    def _measure(self, target: SweepTarget, turn: Turn, phase: str, number: int) -> Trial:
        result = self._load(target, turn.cell)
        self._check(turn.cell, result)
        return Trial(
            phase=phase,
            round=number,
            repeat=turn.repeat,
            cell=turn.cell,
            ttft_ms=_times("ttft_ms", (r.ttft_ms for r in result.requests)),
            tpot_ms=_times("tpot_ms", (r.tpot_ms for r in result.requests)),
            tokens_per_s=result.tokens_per_s,
            wall_s=result.wall_s,
            tokens=digest(result.tokens),
        )

    def _load(self, target: SweepTarget, cell: Cell, *, checked: bool = False) -> LoadResult:
        load = self.space.load
        target.set_plan(self.space.setting(cell.plan))
        return target.load(
            cell.concurrency_level,
            load.prompt_tokens,
            load.max_new_tokens,
            load.seed,
            profile=checked,
            fingerprints=checked,
        )

    def _check(self, cell: Cell, result: LoadResult) -> None:
        fingerprints = [request.fingerprints for request in result.requests]
        divergence = self._gate.check(cell, result.tokens, fingerprints, reference=not cell.control)
        if divergence is None:
            return
        self._store.append("diverged", **divergence.to_json())
        if not cell.control:
            raise Diverged(divergence)


def load_count(space: SweepSpace) -> int:
    """Loads of a whole session: warm-ups, gate passes and trials, the confirming ones included if there are any."""
    total = sum(visit.loads for visit in space.visits())
    if len(space.plans) > 1:
        total += 1 + 2 * len(space.concurrency) * (1 + space.confirm)
    return total


def _times(name: str, values: Iterable[float | None]) -> tuple[float, ...]:
    found = tuple(value for value in values if value is not None)
    if not found:
        raise EngineError(f"the load gave no {name}: did its requests end early?")
    return found
