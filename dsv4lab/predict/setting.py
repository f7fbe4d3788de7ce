"""Everything that a simulated decode step is asked for with, as one value that controls can change piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dsv4lab.config.presets import preset
from dsv4lab.overlap.plan import HIP, OFF, OverlapPlan
from dsv4lab.predict.roofline import Scenario, decode_step
from dsv4lab.predict.scenarios import Options, run_step
from dsv4lab.predict.serving import ACCEPTED, Serving, stall_us, tpot_us
from dsv4lab.queues.costs import Machine, doubtful, machine, with_values
from dsv4lab.queues.devices import DEVICES, device
from dsv4lab.queues.policies import HIGH
from dsv4lab.queues.runtimes import RUNTIMES, runtime
from dsv4lab.queues.sensitivity import Lean, sensitivity
from dsv4lab.queues.simulate import Simulated
from dsv4lab.timeline.program import MAIN

GPUS = tuple(name for name, one in DEVICES.items() if runtime(one.runtime).family != "cpu")


def runtimes_of(device_name: str) -> list[str]:
    """The runtimes that a device can be used with."""
    family = runtime(device(device_name).runtime).family
    return [name for name, one in RUNTIMES.items() if one.family == family]


@dataclass(frozen=True, slots=True)
class Setting:
    """A model's decode step on a machine under a plan. ``layers``: only so many of its first layers; None: all.

    ``side_priority`` -1 asks for high-priority side streams, which only ops that are launched one by one have
    (``graphs`` False). ``values`` replaces numbers of the device, by name.
    """

    device: str = "mi355x"
    runtime: str = "rocm-10"
    hw_queues: int = 4
    plan: OverlapPlan = HIP
    side_streams: int | None = None
    policy: str | None = None
    barrier_elision: bool = False
    side_priority: int = 0
    graphs: bool = True
    model: str = "pro"
    tp: int = 8
    isl: int = 8192
    concurrency: int = 4
    speculative: str = "none"
    layers: int | None = None
    values: tuple[tuple[str, float], ...] = ()

    def on_device(self, name: str) -> Setting:
        """The same on another device, on its usual runtime if the present one is not for it."""
        fits = self.runtime in runtimes_of(name)
        return replace(self, device=name, runtime=self.runtime if fits else device(name).runtime, values=())

    @property
    def shown_plan(self) -> OverlapPlan:
        """The plan as it runs: folded onto the side streams."""
        return self.plan if self.side_streams is None else self.plan.fold(self.side_streams)

    @property
    def scenario(self) -> Scenario:
        """What is served. Raises ``UsageError`` for what the model cannot do."""
        model = preset(self.model)
        if self.layers is not None:
            model = replace(model, compress_ratios=model.compress_ratios[: self.layers])
        return Scenario(model, self.tp, self.isl, self.concurrency, self.speculative)

    @property
    def machine(self) -> Machine:
        """What it runs on. Raises ``UsageError`` for what there is none of."""
        rules: Mapping[str, Any] = {"policy": self.policy, "barrier_elision": self.barrier_elision or None}
        return machine(self.device, self.runtime, self.hw_queues, dict(self.values), **rules)

    def run(self) -> Simulated:
        """One simulated step. Deterministic."""
        return _run(self, self.shown_plan, self.machine)

    def baseline(self) -> Simulated:
        """The same step under ``off``."""
        return _run(self, OFF, self.machine)

    def tpot_ms(self, run: Simulated) -> float:
        """Time per output token of a load whose steps are ``run``, prefills of other requests included."""
        serving = Serving(accepted=ACCEPTED[self.speculative])
        return tpot_us(run.wall_ns / 1e3, serving, stall_us(self.scenario, run.machine, serving)) / 1e3


def _run(setting: Setting, plan: OverlapPlan, on: Machine) -> Simulated:
    scenario = setting.scenario
    work = decode_step(scenario, plan, on)
    priorities = {s: HIGH for s in work.lanes if s != MAIN} if setting.side_priority == HIGH else {}
    return run_step(replace(work, priorities=priorities), scenario, on, Options(eager=not setting.graphs))


def leans(setting: Setting, layers: int = 4) -> tuple[list[Lean], float]:
    """The assumed values that the gain over ``off`` leans on, and that gain (0 to 1), over the first ``layers``."""
    short = replace(setting, layers=layers)
    on = short.machine

    def gain(changes: dict[str, float]) -> float:
        at = with_values(on, changes)
        return 1.0 - _run(short, short.shown_plan, at).wall_ns / _run(short, OFF, at).wall_ns

    return sensitivity(gain, doubtful(on)), gain({})


@dataclass(frozen=True, slots=True)
class Prediction:
    """A setting's TPOT with that of ``off`` beside it, in milliseconds."""

    setting: Setting
    tpot_ms: float
    off_tpot_ms: float

    @property
    def change(self) -> float:
        """TPOT against ``off``, as a fraction; below zero is faster."""
        return self.tpot_ms / self.off_tpot_ms - 1


def predict(setting: Setting) -> Prediction:
    """The whole model's step, whatever ``setting.layers`` says."""
    whole = replace(setting, layers=None)
    run = whole.run()
    off = run if whole.shown_plan == OFF else whole.baseline()
    return Prediction(whole, whole.tpot_ms(run), whole.tpot_ms(off))
