"""A user's server as what a search session measures on: one process per setting of its environment and flags."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from dsv4lab.errors import EngineError, LabError, TimeoutExceededError, UsageError, WorkerDiedError
from dsv4lab.load.live import LiveServer, Outcome, Profile, check_complete
from dsv4lab.load.report import LoadReport, RequestRecord, Spread
from dsv4lab.load.spec import LoadSpec, Prompt, prompts_of
from dsv4lab.tuning.arm_target import ArmProfile, Outputs
from dsv4lab.tuning.block import Measured
from dsv4lab.tuning.knobs import LOAD_KNOBS, Setting
from dsv4lab.tuning.server_plan import ServerPlan
from dsv4lab.tuning.stats import median
from dsv4lab.tuning.trial import digest

APART = 1_000_003
"""Added to seeds of requests that no block times, so that a prefix cache which they fill helps no block."""

_ERRORS: Mapping[Outcome, type[EngineError]] = {
    Outcome.DIED_AT_START: WorkerDiedError,
    Outcome.START_TIMED_OUT: TimeoutExceededError,
    Outcome.CRASHED: WorkerDiedError,
    Outcome.HUNG: TimeoutExceededError,
}
T = TypeVar("T")


@dataclass(slots=True)
class _Life:
    number: int
    server: LiveServer
    warmed: set[Setting] = field(default_factory=set)


class ServerArms:
    """Servers by the setting of their process knobs: started when a setting asks, kept while only loads change."""

    name = "server"

    def __init__(self, plan: ServerPlan) -> None:
        self.plan = plan
        self._lives: dict[Setting, _Life] = {}
        self._logs = plan.folder / "logs"
        self._started = len(list(self._logs.glob("server-*.log")))

    @property
    def facts(self) -> Mapping[str, Any]:
        """The plan's."""
        return self.plan.facts

    def prepare(self, setting: Setting, *, fresh: bool = False) -> int:
        """A healthy server for ``setting``; see :class:`dsv4lab.tuning.arm_target.ArmTarget`."""
        key = setting.without(LOAD_KNOBS)
        life = self._lives.pop(key, None)
        if life is not None and (fresh or life.server.process.exit_code is not None):
            life.server.stop()
            life = None
        if life is None:
            while len(self._lives) >= self.plan.alive:
                self._lives.pop(next(iter(self._lives))).server.stop()
            life = self._start(key)
        self._lives[key] = life  # the latest used is the last
        return life.number

    def outputs(self, setting: Setting) -> Outputs:
        """Greedy answers to prompts that no block has, one after the other."""
        key, life = self._life(setting)
        load = replace(self.plan.load(setting, APART), requests=self.plan.gate_prompts)
        prompts = self._prompts(life, load)
        found = self._ask(key, life.server.outputs(prompts, self.plan.gate_tokens))
        return Outputs(
            tokens=tuple(output.tokens or (output.text,) for output in found),
            logprobs=tuple(output.logprobs for output in found),
        )

    def measure(self, setting: Setting, *, seed: int) -> Measured:
        """One load; what goes wrong is an outcome with the end of the log, and the server is then stopped.

        Its texts are no part of the gate: who shares a batch with whom, and so the rounding, depends on the moment.
        """
        key, life = self._life(setting)
        load = self.plan.load(setting, seed)
        try:
            records, report = asyncio.run(self._loaded(life, setting, load))
        except UsageError:
            raise
        except LabError as error:
            outcome, why = self._give_up(key, error)
            return Measured(process=life.number, outcome=outcome.value, why=why)
        return _measured(life.number, records, report)

    def profile(self, setting: Setting, folder: Path) -> ArmProfile | None:
        """Requests of ``setting``'s load through the profile endpoints of a fresh server; None without endpoints.

        Raises what :meth:`prepare` raises, and :class:`LabError` for a recording that fails.
        """
        if not self.plan.server.has_profiles or not self.plan.profile_requests:
            return None
        self.close()  # nothing runs beside what is recorded
        self.prepare(setting)
        key, life = self._life(setting)
        found = self._ask(key, self._profiled(life, setting))
        self.close()
        trace, home = found.trace.resolve(), folder.resolve()
        return ArmProfile(str(trace.relative_to(home) if trace.is_relative_to(home) else trace), found.busy)

    def close(self) -> None:
        """Stop every server."""
        while self._lives:
            self._lives.popitem()[1].server.stop()

    def _start(self, key: Setting) -> _Life:
        number, self._started = self._started, self._started + 1
        log = self._logs / f"server-{number:03d}.log"
        spec = self.plan.of(key)
        server = LiveServer.launch(spec, log, body=self.plan.body, silence_s=self.plan.silence_s)
        life = self._lives[key] = _Life(number, server)
        self._ask(key, server.ready())
        return life

    async def _loaded(self, life: _Life, setting: Setting, load: LoadSpec) -> tuple[list[RequestRecord], LoadReport]:
        await self._warm(life, setting)
        records, report = await life.server.load(load, self._prompts(life, load), self.plan.gpus)
        check_complete(records, report)
        return records, report

    async def _profiled(self, life: _Life, setting: Setting) -> Profile:
        await self._warm(life, setting)
        load = replace(self.plan.load(setting, 2 * APART), requests=self.plan.profile_requests)
        return await life.server.profile(load, self._prompts(life, load), load.requests)

    async def _warm(self, life: _Life, setting: Setting) -> None:
        """The first requests of a load in this process, apart: shapes are new to it."""
        part = setting.only(LOAD_KNOBS)
        if part in life.warmed or not self.plan.warmup:
            return
        load = self.plan.load(part, APART + 1)
        load = replace(load, requests=max(load.requests, self.plan.warmup))
        await life.server.warm_up(load, self._prompts(life, load), self.plan.warmup)
        life.warmed.add(part)

    def _life(self, setting: Setting) -> tuple[Setting, _Life]:
        key = setting.without(LOAD_KNOBS)
        if key not in self._lives:
            raise EngineError(f"the server of {setting.label} does not run")
        return key, self._lives[key]

    def _prompts(self, life: _Life, load: LoadSpec) -> list[Prompt]:
        given = self.plan.prompts
        if given is not None:
            turn = load.seed % len(given)
            given = (*given[turn:], *given[:turn])
        return prompts_of(load, given, self.plan.vocab_size or life.server.vocab_size)

    def _ask(self, key: Setting, work: Coroutine[Any, Any, T]) -> T:
        """``work``, with its error as the outcome it makes; the server is stopped then."""
        try:
            return asyncio.run(work)
        except UsageError:
            raise
        except LabError as error:
            outcome, why = self._give_up(key, error)
            raise _ERRORS.get(outcome, EngineError)(why) from error

    def _give_up(self, key: Setting, error: LabError) -> tuple[Outcome, str]:
        server = self._lives.pop(key).server
        outcome, why = server.verdict(error)
        if outcome in (Outcome.HUNG, Outcome.FAILED):
            why = f"{why} ({server.process.epitaph()})"
        server.stop()
        return outcome, f"{why}\n  log: {server.process.log.name}"


def _measured(number: int, records: Sequence[RequestRecord], report: LoadReport) -> Measured:
    tpot = tuple(r.tpot_ms for r in records if r.tpot_ms is not None)
    if tpot and not median(tpot) > 0:
        why = "the tokens of most requests came all at once, so there is no time per token: does it stream?"
        return Measured(process=number, outcome=Outcome.FAILED.value, why=why)
    return Measured(
        process=number,
        tpot_ms=tpot,
        ttft_ms=tuple(r.ttft_ms for r in records if r.ttft_ms is not None),
        tokens_per_s=report.tokens_per_s if report.duration_s else math.nan,
        wall_s=report.duration_s,
        extra={
            "outputs": digest([(r.text, r.token_ids) for r in records]),
            "requests": report.completed,
            "new_tokens": report.new_tokens,
            "tokens_per_s_per_gpu": report.tokens_per_s_per_gpu,
            "concurrency_level": report.concurrency_level,
            "itl_ms": _percentiles(report.itl_ms),
            "e2e_ms": _percentiles(report.e2e_ms),
        },
    )


def _percentiles(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else dict(spread.percentiles)
