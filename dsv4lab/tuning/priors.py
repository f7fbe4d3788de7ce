"""Forecasts of the queue model for a search: of this machine from a profile of the baseline, or of a GPU by name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dsv4lab.config.engine import EngineConfig
from dsv4lab.engine.settings import changed_by
from dsv4lab.overlap.plan import OFF, OverlapPlan, is_auto, resolve_plan
from dsv4lab.predict.cpu_probe import CpuProbe
from dsv4lab.predict.replan import Profiled, cpu_machine, profiled, replan
from dsv4lab.predict.setting import Setting as Simulation
from dsv4lab.queues.devices import device
from dsv4lab.queues.runtimes import runtime
from dsv4lab.queues.simulate import simulate
from dsv4lab.timeline.program import MAIN
from dsv4lab.tuning.engine_arms import HW_QUEUES, PLAN, QUEUE_POLICY, SIDE_STREAMS, EngineArms
from dsv4lab.tuning.knobs import CONCURRENCY, PROMPT_TOKENS, KnobSpace, Setting
from dsv4lab.tuning.search.forecast import Forecast

Cost = Callable[[Setting], float | None]
"""Time of a setting; None for one that the model cannot foresee: what plan ``auto`` picks depends on measurements."""

_HOLDS_NO_WEIGHTS = "tiny"
"""Model of a configuration that is only asked what variables mean."""


class CpuPrior:
    """The engine on this machine's processor: a profile of the baseline's ops under each load, placed on the queues of
    every setting. ``probe`` says what handing over and sharing cost here (:func:`dsv4lab.predict.cpu_probe.probe_cpu`).
    """

    name = "the queue model, from a profile of the baseline on this machine"

    def __init__(self, arms: EngineArms, probe: Callable[[], CpuProbe], cores: int) -> None:
        self._arms, self._probe, self._cores = arms, probe, cores

    def forecasts(self, space: KnobSpace) -> Sequence[Forecast]:
        """One per point of the space. None at all where the engine's plan is not ``off`` and no knob says so."""
        probe = self._probe()
        return [forecast for load in space.strata() for forecast in self._of(space, load, probe)]

    def _of(self, space: KnobSpace, load: Setting, probe: CpuProbe) -> Iterator[Forecast]:
        serial = space.join(space.baseline, load)
        if PLAN in serial.names:
            serial = serial.replace(PLAN, OFF.name)
        if resolve_plan(self._arms.config_of(serial).plan) != OFF:
            return
        found = self._arms.step_profile(serial)
        base = profiled(found.program, found.timeline)
        walls: dict[Hashable, int] = {}
        yield from _forecasts(
            space, load, lambda setting: self._wall(base, probe, self._arms.config_of(setting), walls)
        )

    def _wall(self, base: Profiled, probe: CpuProbe, config: EngineConfig, walls: dict[Hashable, int]) -> float | None:
        plan = resolve_plan(config.plan)
        if is_auto(plan):
            return None
        if config.side_streams is not None:
            plan = plan.fold(config.side_streams)
        key = (plan.rules, config.hw_queues, config.queue_policy) if _overlaps(plan) else None
        if key not in walls:
            on = cpu_machine(self._cores, config.hw_queues, probe, base.gap_us, config.queue_policy)
            walls[key] = simulate(replan(base, plan, self._cores, probe), on).wall_ns
        return walls[key]


@dataclass(frozen=True, slots=True)
class DevicePrior:
    """A model's decode step on a GPU that the queue model knows, by shapes alone: for the engine or a server.

    ``base`` is what holds where no knob varies it. Knobs that the model does not know are left out of account;
    variables that set plan or queue count (``GPU_MAX_HW_QUEUES`` and its kin) are understood.
    """

    base: Simulation
    plans: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What is simulated."""
        return f"the queue model, {self.base.model} on {self.base.device} ({self.base.runtime})"

    def forecasts(self, space: KnobSpace) -> Sequence[Forecast]:
        """One per point of the space; with TPOT where the whole model is simulated."""
        tpot = partial(self._tpot_ms, known={})
        told = self.base.layers is None
        return [forecast for load in space.strata() for forecast in _forecasts(space, load, tpot, told=told)]

    def simulation(self, setting: Setting) -> Simulation:
        """What is simulated for ``setting``. Raises a ``LabError`` for what the model cannot do."""
        fields: dict[str, Any] = self._by_environ(setting)
        if PLAN in setting.names:
            name = str(setting.get(PLAN))
            fields["plan"] = resolve_plan(self.plans.get(name, name))
        renamed = {
            HW_QUEUES: "hw_queues",
            SIDE_STREAMS: "side_streams",
            QUEUE_POLICY: "policy",
            CONCURRENCY: "concurrency",
            PROMPT_TOKENS: "isl",
        }
        fields |= {renamed[name]: value for name, value in setting.items if name in renamed}
        return replace(self.base, **fields)

    def _by_environ(self, setting: Setting) -> dict[str, Any]:
        """Plan and queue count as the variables among the knobs set them on this kind of device."""
        changes = setting.env
        if not changes:
            return {}
        kind = runtime(device(self.base.device).runtime).family
        plan, queues = self.base.plan.to_json(), self.base.hw_queues
        after = changed_by(changes, EngineConfig(_HOLDS_NO_WEIGHTS, device=kind, plan=plan, hw_queues=queues))
        return {"plan": resolve_plan(after.plan), "hw_queues": after.hw_queues}

    def _tpot_ms(self, setting: Setting, known: dict[Simulation, float]) -> float | None:
        """Settings that come to the same are simulated once: folded plans, and one queue where nothing overlaps."""
        asked = self.simulation(setting)
        if is_auto(asked.plan):
            return None
        plan = OverlapPlan("", asked.shown_plan.rules)
        asked = replace(asked, plan=plan, side_streams=None)
        if not _overlaps(plan):
            asked = replace(asked, plan=OFF, hw_queues=1, policy=None)
        if asked not in known:
            known[asked] = asked.tpot_ms(asked.run())
        return known[asked]


def _forecasts(space: KnobSpace, load: Setting, cost: Cost, *, told: bool = False) -> Iterator[Forecast]:
    """Forecasts under one load by a ``cost`` in time; ``told`` says that it is TPOT in milliseconds."""
    baseline = cost(space.join(space.baseline, load))
    if baseline is None:
        return
    for tuned in space.candidates():
        setting = space.join(tuned, load)
        own = cost(setting)
        if own is not None:
            yield Forecast(setting, own / baseline - 1.0, own if told else None)


def _overlaps(plan: OverlapPlan) -> bool:
    return any(rule.stream != MAIN for rule in plan.rules)
