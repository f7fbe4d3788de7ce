"""Our engine as the target of a search: a worker process per combination of process knobs, the rest changed live."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsv4lab.config import checks
from dsv4lab.config.engine import MAX_HW_QUEUES, QUEUE_POLICIES, EngineConfig, OverlapSetting
from dsv4lab.engine.client import EngineClient
from dsv4lab.engine.devices import gpu_name
from dsv4lab.engine.loop_store import Compiling
from dsv4lab.engine.results import GenerateResult, Profile
from dsv4lab.engine.settings import changed_by
from dsv4lab.errors import EngineError, UsageError
from dsv4lab.overlap.plan import is_auto, resolve_plan
from dsv4lab.timeline.program import MAIN
from dsv4lab.trace.export import export_run
from dsv4lab.tuning.arm_target import ArmProfile, Outputs
from dsv4lab.tuning.block import Measured
from dsv4lab.tuning.knobs import (
    CONCURRENCY,
    ENV_PREFIX,
    LIVE,
    LOAD,
    MAX_NEW_TOKENS,
    PROCESS,
    PROMPT_TOKENS,
    Knob,
    KnobSpace,
    KnobValue,
    Setting,
)
from dsv4lab.tuning.trial import digest

PLAN, HW_QUEUES, SIDE_STREAMS, QUEUE_POLICY = "plan", "hw_queues", "side_streams", "queue_policy"
GRAPHS, GRAPH_BUCKETS, HIGH_PRIORITY_MAIN = "graphs", "graph_buckets", "high_priority_main"
GPU_KNOBS = (GRAPHS, GRAPH_BUCKETS, HIGH_PRIORITY_MAIN)
"""Knobs that the CPU device has not: graphs, the batch sizes that they are made for, and priorities of streams."""
SCOPES = {
    PLAN: LIVE,
    SIDE_STREAMS: LIVE,
    QUEUE_POLICY: LIVE,
    HW_QUEUES: PROCESS,
    GRAPHS: PROCESS,
    GRAPH_BUCKETS: PROCESS,
    HIGH_PRIORITY_MAIN: PROCESS,
    CONCURRENCY: LOAD,
    PROMPT_TOKENS: LOAD,
    MAX_NEW_TOKENS: LOAD,
}
"""The engine's knobs, beside ``env:NAME``. Buckets are written as ``1+2+4``; None leaves them to the engine."""

_BOUNDS = {HW_QUEUES: (1, MAX_HW_QUEUES), SIDE_STREAMS: (0, 64), MAX_NEW_TOKENS: (2, 2**20)}
_SIZES = re.compile(r"[1-9]\d{0,4}(\+[1-9]\d{0,4})*")

GATE_SEED = 0
PROFILED_STEPS = 12

OpenEngine = Callable[[EngineConfig, Mapping[str, str | None]], EngineClient]


def engine_knob(name: str, values: Iterable[KnobValue]) -> Knob:
    """A knob of the engine. Raises :class:`UsageError` for a knob that it has not, or a value that it does not take."""
    given = tuple(values)
    if name.startswith(ENV_PREFIX):
        return Knob(name, given, PROCESS)
    if name not in SCOPES:
        known = ", ".join((*SCOPES, f"{ENV_PREFIX}NAME"))
        raise UsageError(f"knob {name}: the engine has no such knob, it has {known}")
    for value in given:
        _check(name, value)
    return Knob(name, given, SCOPES[name])


@dataclass(slots=True)
class _Life:
    number: int
    client: EngineClient
    config: EngineConfig


class EngineArms:
    """An :class:`dsv4lab.tuning.arm_target.ArmTarget` on :class:`EngineClient`.

    ``config`` holds for what no knob varies. ``plans`` are plans by the names that the plan knob's values are; a name
    that is not among them is a preset's. At most ``alive`` worker processes are kept at once: two for pairs whose arms
    need processes of their own. Loads have as many requests as are in flight together.
    """

    name = "engine"

    def __init__(
        self,
        space: KnobSpace,
        config: EngineConfig,
        *,
        plans: Mapping[str, OverlapSetting] | None = None,
        alive: int = 2,
        open_engine: OpenEngine | None = None,
    ) -> None:
        for knob in space.knobs:
            engine_knob(knob.name, knob.values)
            if knob.name in GPU_KNOBS and config.device == "cpu":
                raise UsageError(f"knob {knob.name}: it is of GPUs, the CPU device has neither graphs nor priorities")
            if knob.name == QUEUE_POLICY and config.device != "cpu":
                raise UsageError(f"knob {knob.name}: it is the CPU device's; a GPU has its queues from its start")
        for name in (CONCURRENCY, PROMPT_TOKENS, MAX_NEW_TOKENS):
            space.knob(name)
        if config.enable_prefix_cache:
            raise UsageError("enable_prefix_cache: both arms of a pair have the same prompts; a search runs without it")
        self._space, self._config, self._plans = space, config, dict(plans or {})
        self._gpu = {} if config.device == "cpu" else {"gpu": gpu_name(config.device)}
        self._open, self._most_alive = open_engine or self._start, alive
        self._compiling = Compiling()
        self._lives: dict[Setting, _Life] = {}  # by process knobs, the one used last at the end
        self._started = 0

    @property
    def compiling_s(self) -> float:
        """Seconds that starts have spent on the CPU device's loops, which are compiled once on a machine."""
        return self._compiling.seconds

    @property
    def facts(self) -> Mapping[str, Any]:
        """The engine's configuration, the plans that are not presets, and on a GPU which one it is."""
        return {**self._config.to_json(), "plans": self._plans, **self._gpu}

    def config_of(self, setting: Setting) -> EngineConfig:
        """The engine's configuration under ``setting``. Raises a ``LabError`` for values that do not fit together."""
        environ = setting.env
        config = changed_by(environ, self._config) if environ else self._config
        given = setting.only((HW_QUEUES, SIDE_STREAMS, QUEUE_POLICY, GRAPHS, HIGH_PRIORITY_MAIN))
        fields: dict[str, Any] = given.to_json()
        if GRAPH_BUCKETS in setting.names:
            fields[GRAPH_BUCKETS] = _buckets(setting.get(GRAPH_BUCKETS))
        if PLAN in setting.names:
            fields[PLAN] = self._plan(setting)
        return replace(config, **fields)

    def program_of(self, setting: Setting) -> Hashable:
        """Equal for settings that run the same programs on the same queues.

        A plan folded onto no side stream is ``off``, and on the CPU device a program of one stream uses one queue
        whatever their number.
        """
        config = self.config_of(setting)
        plan = resolve_plan(config.plan)
        if config.side_streams is not None:
            plan = plan.fold(config.side_streams)
        rest = setting.without((PLAN, SIDE_STREAMS, HW_QUEUES, QUEUE_POLICY))
        if is_auto(plan):
            return plan.name, config.side_streams, config.hw_queues, config.queue_policy, rest
        if any(rule.stream != MAIN for rule in plan.rules):
            return plan.rules, config.hw_queues, config.queue_policy, rest
        return None if config.device == "cpu" else config.hw_queues, rest

    def prepare(self, setting: Setting, *, fresh: bool = False) -> int:
        """See :class:`ArmTarget`. Live knobs are put in force."""
        own = self._space.process_of(setting)
        life = self._lives.pop(own, None)
        if life is not None and (fresh or not life.client.alive):
            life.client.close()
            life = None
        config = self.config_of(setting)
        if life is None:
            self._make_room()
            self._started += 1
            life = _Life(self._started, self._open(config, setting.env), config)
        self._lives[own] = life
        _put_in_force(life, config)
        return life.number

    def outputs(self, setting: Setting) -> Outputs:
        """Tokens and fingerprints of the setting's load, its prompts the same for every setting."""
        result = self._load(setting, GATE_SEED, fingerprints=True)
        return Outputs(
            tuple(map(tuple, result.tokens)), fingerprints=tuple(tuple(r.fingerprints) for r in result.requests)
        )

    def measure(self, setting: Setting, *, seed: int) -> Measured:
        """One load: all its requests are submitted together."""
        result = self._load(setting, seed)
        return Measured(
            process=self._life(setting).number,
            tpot_ms=tuple(r.tpot_ms for r in result.requests if r.tpot_ms is not None),
            ttft_ms=tuple(r.ttft_ms for r in result.requests if r.ttft_ms is not None),
            tokens_per_s=result.tokens_per_s,
            wall_s=result.wall_s,
            tokens=digest(result.tokens),
        )

    def step_profile(self, setting: Setting, steps: int = PROFILED_STEPS) -> Profile:
        """Some decode forwards of the setting's load, recorded."""
        self.prepare(setting)
        client = self._life(setting).client
        return client.profile(
            steps, concurrency=_whole(setting, CONCURRENCY), prompt_tokens=_whole(setting, PROMPT_TOKENS)
        )

    def profile(self, setting: Setting, folder: Path) -> ArmProfile:
        """See :class:`ArmTarget`."""
        timeline = self.step_profile(setting).timeline
        path = export_run(timeline, folder, setting.label.replace(", ", "-").replace(" ", "_"))
        return ArmProfile(path.name, timeline.stream_busy())

    def close(self) -> None:
        """End the worker processes."""
        while self._lives:
            self._lives.popitem()[1].client.close()

    def _start(self, config: EngineConfig, environ: Mapping[str, str | None]) -> EngineClient:
        return EngineClient(config, environ=environ, progress=self._compiling.note)

    def _make_room(self) -> None:
        while len(self._lives) >= self._most_alive:
            self._lives.pop(next(iter(self._lives))).client.close()

    def _life(self, setting: Setting) -> _Life:
        life = self._lives.get(self._space.process_of(setting))
        if life is None:
            raise EngineError(f"{setting.label}: no worker process is prepared for it")
        return life

    def _load(self, setting: Setting, seed: int, *, fingerprints: bool = False) -> GenerateResult:
        concurrency, prompt, new = (_whole(setting, name) for name in (CONCURRENCY, PROMPT_TOKENS, MAX_NEW_TOKENS))
        return self._life(setting).client.load(concurrency, prompt, new, seed, fingerprints=fingerprints)

    def _plan(self, setting: Setting) -> OverlapSetting:
        name = setting.get(PLAN)
        return self._plans.get(str(name), str(name))


def _put_in_force(life: _Life, config: EngineConfig) -> None:
    """Change what a running worker can change."""
    if config.side_streams != life.config.side_streams:
        life.client.set_side_streams(config.side_streams)
    if config.plan != life.config.plan:
        life.client.set_plan(config.plan)
    if config.queue_policy != life.config.queue_policy:
        life.client.set_queue_policy(config.queue_policy)
    life.config = config


def _whole(setting: Setting, name: str) -> int:
    value = setting.get(name)
    assert isinstance(value, int)
    return value


def _buckets(value: KnobValue) -> tuple[int, ...] | None:
    return None if value is None else tuple(int(word) for word in str(value).split("+"))


def _check(name: str, value: KnobValue) -> None:
    """Raise :class:`UsageError` for a value that the knob ``name`` does not take."""
    if name == PLAN:
        good, takes = isinstance(value, str) and bool(value), "names of plans"
    elif name == QUEUE_POLICY:
        good, takes = value in QUEUE_POLICIES, checks.one_of(QUEUE_POLICIES)
    elif name in (GRAPHS, HIGH_PRIORITY_MAIN):
        good, takes = isinstance(value, bool), "true and false"
    elif name == GRAPH_BUCKETS:
        good, takes = value is None or bool(_SIZES.fullmatch(str(value))), "batch sizes such as 1+2+4, and none"
    else:
        low, high = _BOUNDS.get(name, (1, 2**20))
        none = name == SIDE_STREAMS and value is None
        good = none or (isinstance(value, int) and not isinstance(value, bool) and low <= value <= high)
        takes = f"integers from {low} to {high}{', or none' if name == SIDE_STREAMS else ''}"
    if not good:
        raise UsageError(f"knob {name}: got {value}, it takes {takes}")
