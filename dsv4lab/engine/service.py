"""The worker's engine: commands in, messages out, forwards in between. One thread, no sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import singledispatchmethod
from typing import Any

from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.model import ModelConfig
from dsv4lab.engine import messages as m
from dsv4lab.engine.loop import EngineLoop
from dsv4lab.engine.manifest import manifest_of
from dsv4lab.engine.plans import effective_plan
from dsv4lab.engine.protocol import ModelRunner
from dsv4lab.engine.reads import ReadsDesk
from dsv4lab.engine.request import Limits
from dsv4lab.engine.scheduling import cache_status, make_scheduler
from dsv4lab.engine.telemetry import LiveFeed, Recorder, StepFacts
from dsv4lab.errors import EngineError
from dsv4lab.kv.formats import PoolFormat
from dsv4lab.kv.snapshot import pool_snapshot
from dsv4lab.overlap.plan import plan_from_json
from dsv4lab.overlap.run_record import RunRecord
from dsv4lab.timeline.records import Manifest, PoolSnapshot

Send = Callable[[m.Message], None]


class Service:
    """One engine. ``send`` takes every message to the client; ``rank`` is this process's where there are several."""

    def __init__(
        self, config: EngineConfig, model: ModelConfig, runner: ModelRunner, send: Send, rank: int | None = None
    ) -> None:
        self._config = config
        self._runner = runner
        self._send = send
        self.model = model
        self.manifest: Manifest = manifest_of(config)
        self.limits = limits_of(config, model, runner)
        plan = effective_plan(config.plan, config.side_streams)
        runner.set_plan(plan)
        self._scheduler = make_scheduler(config, model, runner, self.limits.lookahead)
        self._facts = StepFacts(self._scheduler, plan.name, config.hw_queues, rank)
        self._feed = LiveFeed(self._facts, send)
        self._reads = ReadsDesk(runner, self._scheduler, send)
        self._recorder = Recorder(self._facts, self._describe, send, runner)
        self._loop = EngineLoop(
            runner,
            self._scheduler,
            self.limits,
            send,
            listeners=(self._feed, self._recorder, self._reads),
            debug=config.debug_poison,
        )

    @property
    def idle(self) -> bool:
        """Whether :meth:`step` would find nothing to run."""
        return self._loop.idle

    def step(self) -> None:
        """Run one forward, if there is work."""
        self._loop.step()

    def on_idle_round(self, record: RunRecord, others: Mapping[int, RunRecord]) -> None:
        """Other groups ran a forward, and the ranks of this one took part in it without tokens."""
        self._recorder.on_idle_round(record, others)

    def handle(self, command: m.Command) -> None:
        """Carry out one command; what goes wrong in a call is its answer."""
        try:
            self._handle(command)
        except Exception as error:
            if not isinstance(command, m.Call):
                raise
            self._send(m.failure(command.call, error))

    def close(self) -> None:
        """Release what the runner holds."""
        self._runner.close()

    def _describe(self) -> dict[str, Any]:
        """The manifest with the settings of this moment, for a recording's ``meta``."""
        settings = {**self.manifest.settings, "plan": self._facts.plan, "queue_policy": self._config.queue_policy}
        return {"manifest": replace(self.manifest, settings=settings).to_json()}

    @singledispatchmethod
    def _handle(self, command: Any) -> None:
        raise EngineError(f"the worker takes no {type(command).__name__} here")

    @_handle.register
    def _(self, command: m.Submit) -> None:
        for spec in command.requests:
            self._loop.submit(spec)

    @_handle.register
    def _(self, command: m.Abort) -> None:
        self._loop.abort(command.request_id)
        self._reads.forget_ended()

    @_handle.register
    def _(self, command: m.Watch) -> None:
        self._feed.watch(command.on)

    @_handle.register
    def _(self, command: m.SetPlan) -> None:
        plan = plan_from_json(command.plan)
        self._runner.set_plan(plan)
        self._facts.plan = plan.name
        self._send(m.Done(command.call))

    @_handle.register
    def _(self, command: m.SetPolicy) -> None:
        changed = replace(self._config, queue_policy=command.policy)
        self._runner.set_streams(changed.streams, changed.hw_queues, changed.queue_policy, changed.intra_op_threads)
        self._config = changed
        self._send(m.Done(command.call))

    @_handle.register
    def _(self, command: m.Record) -> None:
        self._recorder.start(command, idle=self.idle)

    @_handle.register
    def _(self, command: m.EndRecord) -> None:
        self._recorder.end()
        self._send(m.Done(command.call))

    @_handle.register
    def _(self, command: m.GetStatus) -> None:
        allocator = self._scheduler.allocator
        value: dict[str, Any] = {
            "steps": self._scheduler.steps,
            "waiting": self._scheduler.waiting,
            "running": len(self._scheduler.running),
            "free_slots": allocator.free_slots,
            "free_pages": allocator.free_pages,
            "preemptions": self._scheduler.preemptions,
            "plan": self._facts.plan,
            "queue_policy": self._config.queue_policy,
        }
        if (cache := self._scheduler.cache) is not None:
            value["prefix_cache"] = cache_status(cache)
        if (device := self._runner.device_status()) is not None:
            value["graphs"] = device
        if (speculator := self._runner.speculator) is not None:
            stats = speculator.stats
            value["speculation"] = {
                "drafts": stats.drafts,
                "steps": stats.steps,
                "accepted_per_step": stats.accepted_per_step,
                "rate_by_place": list(stats.rate_by_place()),
            }
        self._send(m.Info(command.call, value))

    @_handle.register
    def _(self, command: m.GetOps) -> None:
        self._send(m.Info(command.call, {"ops": self._runner.op_table()}))

    @_handle.register
    def _(self, command: m.GetProgram) -> None:
        plan = None if command.plan is None else plan_from_json(command.plan)
        self._send(m.Program(command.call, self._runner.program(command.mode, command.tokens, plan)))

    @_handle.register
    def _(self, command: m.GetSnapshot) -> None:
        self._send(m.Snapshot(command.call, self._snapshot()))

    @_handle.register
    def _(self, command: m.GetReads) -> None:
        self._reads.ask(command)

    def _snapshot(self) -> PoolSnapshot:
        lengths = {r.spec.request_id: r.computed for r in self._scheduler.running}
        return pool_snapshot(
            self._runner.geometry,
            self._scheduler.allocator,
            lengths,
            self._scheduler.steps,
            dtype_bytes=DTYPE_BYTES[self._config.dtype],
            row_bytes=PoolFormat.for_engine(self.model, self._config).row_bytes,
        )


DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


def limits_of(config: EngineConfig, model: ModelConfig, runner: ModelRunner) -> Limits:
    """What this engine can hold."""
    geometry = runner.geometry
    return Limits(
        vocab_size=model.vocab_size,
        pool_tokens=geometry.capacity_tokens,
        page_size=geometry.page_size,
        max_requests=min(config.max_running_requests, geometry.slots - 1),
        max_position=model.max_position_embeddings,
        lookahead=runner.speculator.drafts if runner.speculator is not None else 0,
    )
