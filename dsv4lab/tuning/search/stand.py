"""The test stand: a target under one setting after another, warm and checked before anything counts, all on record."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from dsv4lab.errors import EngineError, LabError, TimeoutExceededError, UnavailableError, UsageError, WorkerDiedError
from dsv4lab.tuning.arm_target import ArmTarget, Outputs
from dsv4lab.tuning.block import (
    CRASHED,
    DIED_AT_START,
    FAILED,
    HUNG,
    NO_PAIR,
    OUTPUTS_DIFFER,
    START_TIMED_OUT,
    WARM_UP,
    Block,
    Measured,
)
from dsv4lab.tuning.knobs import Setting
from dsv4lab.tuning.search.log import BLOCK, GATE, SearchLog, outputs_to_json
from dsv4lab.tuning.search.plan import SearchPlan
from dsv4lab.tuning.store import SessionStore

T = TypeVar("T")

UNSETTLED = 0.02
"""A warm-up load that is faster than the one before it by more than this fraction calls for another."""
MOST_WARM_UPS = 4
"""Times the warm-up loads asked for, at most."""


class ArmFailure(Exception):
    """A setting cannot be measured: ``outcome`` is a word of :mod:`dsv4lab.tuning.block`, ``why`` tells the story."""

    def __init__(self, setting: Setting, outcome: str, why: str) -> None:
        super().__init__(f"{setting.label}: {why}")
        self.setting, self.outcome, self.why = setting, outcome, why


class Stand:
    """Prepares, checks and measures settings on ``target``, and records each load before it returns.

    ``on_block`` is called with each of them. ``start_s``: what the latest new process took until it was warm and its
    outputs checked, in seconds.
    """

    on_block: Callable[[Block], object]

    def __init__(
        self,
        plan: SearchPlan,
        target: ArmTarget,
        store: SessionStore,
        log: SearchLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.log = log
        self.start_s = 0.0
        self._clock = clock
        self.on_block = lambda _block: None
        self._plan, self._space, self._target, self._store = plan, plan.space, target, store
        self._process_of_life: dict[int, int] = {}
        self._checked: set[tuple[int, Setting]] = set()
        self._suspect: set[Setting] = set()  # process knobs whose process did something wrong

    def block(
        self, setting: Setting, *, trial: int, phase: str, pair: int, position: int, seed: int, fresh: bool = False
    ) -> Block:
        """One load that counts. Raises :class:`ArmFailure`, with the failed load on record."""
        process = self._ready(setting, trial, fresh)
        return self._measure(setting, process, trial=trial, phase=phase, pair=pair, position=position, seed=seed)

    def _ready(self, setting: Setting, trial: int, fresh: bool) -> int:
        """The session's number of the process that now runs ``setting``: warm, and its outputs as they should be."""
        load = self._space.load_of(setting)
        if load not in self.log.references and setting != self._space.baseline_for(setting):
            self._ready(self._space.baseline_for(setting), trial, fresh=False)
        begun = self._clock()
        process, new = self._prepare(setting, fresh)
        if new:
            self._warm_up(setting, process, trial)
        if (process, setting) not in self._checked:
            self._check(setting, process)
            self._checked.add((process, setting))
        if new:
            self.start_s = self._clock() - begun
        return process

    def _prepare(self, setting: Setting, fresh: bool) -> tuple[int, bool]:
        own = self._space.process_of(setting)
        renew = fresh or own in self._suspect
        life = self._guard(setting, lambda: self._target.prepare(setting, fresh=renew), starting=True)
        self._suspect.discard(own)
        new = life not in self._process_of_life
        if new:
            self._process_of_life[life] = self.log.processes
            self.log.processes += 1
        return self._process_of_life[life], new

    def _warm_up(self, setting: Setting, process: int, trial: int) -> None:
        asked, before = self._plan.effort.warm_loads, None
        for made in range(MOST_WARM_UPS * asked):
            seed = derived_seed(self._plan.seed, WARM_UP, process, made)
            block = self._measure(setting, process, trial=trial, phase=WARM_UP, pair=NO_PAIR, position=made, seed=seed)
            now = block.tpot
            if made + 1 >= asked and (before is None or now >= before * (1 - UNSETTLED)):
                return
            before = now

    def _measure(self, setting: Setting, process: int, *, seed: int, **where: int | str) -> Block:
        try:
            measured = self._guard(setting, lambda: self._target.measure(setting, seed=seed))
        except ArmFailure as failure:
            measured = Measured(outcome=failure.outcome, why=failure.why)
        if measured.ok and math.isnan(measured.tpot):
            measured = replace(measured, outcome=FAILED, why="the load gave no TPOT: no request has two tokens or more")
        block = Block.of(replace(measured, process=process), setting=setting, seed=seed, **where)
        self._store.append(BLOCK, **block.to_json())
        self.log.add(block)
        self.on_block(block)
        if not block.ok:
            raise self._failure(setting, block.outcome, block.why or "no reason was given")
        return block

    def _check(self, setting: Setting, process: int) -> None:
        """The correctness gate: the greedy outputs of the baseline under the same load, token by token."""
        outputs = self._guard(setting, lambda: self._target.outputs(setting))
        load, baseline = self._space.load_of(setting), self._space.baseline_for(setting)
        reference = self.log.references.get(load)
        first = reference is None
        if reference is None:
            again = self._guard(setting, lambda: self._target.outputs(setting))
            reference, outputs = outputs, again
        why = reference.difference(outputs)
        self._record_check(setting, baseline, process, why, reference if first else None)
        if first:
            self.log.references[load] = reference
        if why is None or not self._plan.exact:
            return
        if setting != baseline:
            raise self._failure(setting, OUTPUTS_DIFFER, why)
        raise EngineError(
            f"the baseline's greedy outputs differ from run to run, so no setting can be held to them: {why}; "
            "--allow-different-outputs measures all the same"
        )

    def _record_check(
        self, setting: Setting, baseline: Setting, process: int, why: str | None, outputs: Outputs | None
    ) -> None:
        self._store.append(
            GATE,
            setting=setting.to_json(),
            reference=baseline.to_json(),
            process=process,
            identical=why is None,
            why=why,
            outputs=None if outputs is None else outputs_to_json(outputs),
        )

    def _guard(self, setting: Setting, call: Callable[[], T], *, starting: bool = False) -> T:
        """What ``call`` gives. Raises :class:`ArmFailure` for what the setting may be to blame for."""
        try:
            return call()
        except (UsageError, UnavailableError):
            raise
        except WorkerDiedError as error:
            raise self._failure(setting, DIED_AT_START if starting else CRASHED, str(error)) from error
        except TimeoutExceededError as error:
            raise self._failure(setting, START_TIMED_OUT if starting else HUNG, str(error)) from error
        except LabError as error:
            raise self._failure(setting, FAILED, str(error)) from error

    def _failure(self, setting: Setting, outcome: str, why: str) -> ArmFailure:
        if outcome != OUTPUTS_DIFFER:
            self._suspect.add(self._space.process_of(setting))
        return ArmFailure(setting, outcome, why)


def derived_seed(seed: int, *where: int | str) -> int:
    """A seed for one place of a session: the same at every run, and unrelated to those of other places."""
    text = "/".join(map(str, (seed, *where)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1
