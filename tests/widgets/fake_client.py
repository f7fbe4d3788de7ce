"""A client without an engine: keeps what was asked of it, and plays forwards back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from dsv4lab.config.presets import preset
from dsv4lab.errors import LabError, PlanError, WorkerDiedError
from dsv4lab.overlap.plan import OverlapPlan, resolve_plan
from dsv4lab.predict.roofline import Scenario
from dsv4lab.timeline.program import StreamProgram
from dsv4lab.timeline.records import PoolRequest, PoolSnapshot, QueryReads, StepRecord
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.widgets.plan_rows import ListedSource

SOURCE = ListedSource(Scenario(replace(preset("tiny"), compress_ratios=(0, 4, 128, 4))))


@dataclass
class FakeClient:
    plan: OverlapPlan = field(default_factory=lambda: resolve_plan("hip"))
    hw_queues: int = 4
    side_streams: int | None = None
    alive: bool = True
    pid: int = 77
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    refuse: LabError | None = None
    watchers: list[Callable[..., object]] = field(default_factory=list)
    mourners: list[Callable[..., object]] = field(default_factory=list)
    observers: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limits = SimpleNamespace(max_requests=8, max_position=4096, pool_tokens=4096)
        self.model_config = SimpleNamespace(compress_ratios=(0, 4, 128, 4))
        self.config = SimpleNamespace(queue_policy="round_robin", device="cpu", model="tiny", speculative="off")
        self.load_running: SimpleNamespace | None = None

    def _did(self, *call: Any) -> None:
        self.calls.append(call)
        if self.refuse is not None:
            raise self.refuse

    def set_plan(self, plan: OverlapPlan) -> None:
        self._did("set_plan", plan.name)
        self.plan = plan

    def set_side_streams(self, count: int | None) -> None:
        self._did("set_side_streams", count)
        self.side_streams = count

    def set_queue_policy(self, policy: str) -> None:
        self._did("set_queue_policy", policy)
        self.config.queue_policy = policy

    def set_hw_queues(self, count: int, progress: Callable[[float, str], object]) -> None:
        progress(0.5, "loading torch")
        self._did("set_hw_queues", count)
        self.hw_queues = count

    def restart(self, progress: Callable[[float, str], object]) -> None:
        self._did("restart")
        self.alive = True

    def start_load(self, concurrency: int, *, prompt_tokens: int, max_new_tokens: int) -> None:
        self._did("start_load", concurrency, prompt_tokens, max_new_tokens)
        self.load_running = SimpleNamespace(concurrency=concurrency, prompt_tokens=prompt_tokens)
        self.changed()

    def stop_load(self) -> None:
        self._did("stop_load")
        self.load_running = None
        self.changed()

    def on_step(self, callback: Callable[..., object]) -> Callable[[], None]:
        self.watchers.append(callback)
        return lambda: self.watchers.remove(callback)

    def on_exit(self, callback: Callable[..., object]) -> Callable[[], None]:
        self.mourners.append(callback)
        return lambda: self.mourners.remove(callback)

    def on_change(self, callback: Callable[[], object]) -> Callable[[], None]:
        self.observers.append(callback)
        return lambda: self.observers.remove(callback)

    def changed(self) -> None:
        for observer in self.observers:
            observer()

    def ops(self) -> list[dict[str, Any]]:
        return list(SOURCE.table)

    def program(self, mode: str, tokens: int, plan: OverlapPlan) -> StreamProgram:
        return SOURCE.program(plan)

    def status(self) -> dict[str, Any]:
        speculation = {"rate_by_place": [0.8, 0.5], "accepted_per_step": 1.3, "steps": 40}
        return {"speculation": speculation} if self.config.speculative != "off" else {}

    def pool_snapshot(self) -> PoolSnapshot:
        requests = (PoolRequest(5, 1, 300, (1, 2)),)
        return PoolSnapshot(9, 3, 128, 128, 6, 256, 8, 4, (0, 4, 128, 4), requests, (3, 4, 5), (2,))

    def query_reads(self, request_id: int, position: int | None, layer: int) -> QueryReads:
        self._did("query_reads", request_id, position, layer)
        return QueryReads(request_id, 300, layer, 4, tuple(range(128, 256)), (384 + 64, 384 + 70))

    def decode(self, forwards: int = 3, first: int = 0) -> None:
        """Tell the watchers of ``forwards`` forwards of 10 ops on two streams, 1 ms apart."""
        steps = tuple(
            StepRecord(n, "decode", 2, 2, n * 10**6, 900_000, self.plan.name, self.hw_queues)
            for n in range(first, first + forwards)
        )
        i = np.arange(10 * forwards)
        recent = Timeline.build(
            start_ns=i * 100_000,
            dur_ns=np.full(len(i), 90_000),
            queued_ns=i // 10 * 10**6,
            stream=i % 2,
            queue=i % 2,
            name=i % 5,
            step=first + i // 10,
            names=tuple("abcde"),
            streams=("main", "side0"),
            queues=("q0", "q1"),
            main_stream="main",
        )
        for watcher in self.watchers:
            watcher(steps, recent)

    def die(self) -> None:
        """End as a killed worker does."""
        self.alive, self.load_running = False, None
        for mourner in self.mourners:
            mourner(WorkerDiedError("the worker died: <signal 9>"))
        self.changed()


def unknown_plan() -> PlanError:
    return PlanError("plan names the unknown op <b>x</b>")
