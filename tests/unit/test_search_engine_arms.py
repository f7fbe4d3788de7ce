"""The engine as a search's target, on fake workers; and what the queue model forecasts for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dsv4lab.config.engine import EngineConfig
from dsv4lab.engine.link import worker_environ
from dsv4lab.engine.request import FinishReason
from dsv4lab.engine.results import GenerateResult, Profile, RequestStats
from dsv4lab.errors import EngineError, UsageError
from dsv4lab.overlap.plan import OverlapPlan, Rule
from dsv4lab.predict.cpu_probe import CpuProbe
from dsv4lab.predict.setting import Setting as Simulation
from dsv4lab.queues.costs import machine
from dsv4lab.queues.simulate import simulate
from dsv4lab.queues.workload import Cost, from_program
from dsv4lab.tuning.engine_arms import EngineArms, engine_knob
from dsv4lab.tuning.knobs import KnobSpace, KnobValue, Setting
from dsv4lab.tuning.priors import CpuPrior, DevicePrior
from dsv4lab.tuning.search.forecast import Order
from dsv4lab.tuning.trial import digest
from tests.unit.attention_layer import US, serial

LOADS: dict[str, tuple[KnobValue, ...]] = {"concurrency": (1, 2), "prompt_tokens": (16,), "max_new_tokens": (4,)}


def space(**tuned: tuple[KnobValue, ...]) -> KnobSpace:
    named = {name.replace("env_", "env:"): values for name, values in tuned.items()}
    knobs = tuple(engine_knob(name, values) for name, values in {**named, **LOADS}.items())
    return KnobSpace(knobs, Setting(tuple((name, values[0]) for name, values in named.items())))


class FakeEngine:
    """What :class:`EngineArms` uses of a client; ``told`` keeps what it was told."""

    def __init__(self, config: EngineConfig, environ: Mapping[str, str | None]) -> None:
        self.config, self.environ = config, dict(environ)
        self.alive, self.told = True, list[tuple[Any, ...]]()

    def set_plan(self, plan: Any) -> None:
        self.told.append(("plan", plan))

    def set_side_streams(self, count: int | None) -> None:
        self.told.append(("side_streams", count))

    def set_queue_policy(self, policy: str) -> None:
        self.told.append(("queue_policy", policy))

    def load(self, concurrency: int, prompt: int, new: int, seed: int, *, fingerprints: bool) -> GenerateResult:
        self.told.append(("load", concurrency, prompt, new, seed))
        stats = RequestStats(5.0, 2.0, FinishReason.LENGTH, new, (seed,) * new if fingerprints else ())
        return GenerateResult.of([[seed] * new] * concurrency, [stats] * concurrency, 10**7)

    def profile(self, steps: int, *, concurrency: int, prompt_tokens: int) -> Profile:
        program = serial(concurrency)
        on = machine("cpu", None, 2, {"gap_us": 3.0, "graph_us": 0.0})
        timeline = simulate(from_program(program, [Cost(us) for us in US]), on).timeline()
        return Profile(timeline, program=program, steps=())

    def close(self) -> None:
        self.alive = False


class Bench:
    """Arms over fake engines, all of which are kept here."""

    def __init__(self, over: KnobSpace, config: EngineConfig | None = None, **options: Any) -> None:
        self.engines: list[FakeEngine] = []

        def start(config: EngineConfig, environ: Mapping[str, str | None]) -> Any:
            self.engines.append(FakeEngine(config, environ))
            return self.engines[-1]

        self.space = over
        self.arms = EngineArms(over, config or EngineConfig("tiny"), open_engine=start, **options)

    def point(self, **values: KnobValue) -> Setting:
        first = {knob.name: knob.values[0] for knob in self.space.knobs}
        return self.space.setting({**first, **values})


def test_live_knobs_change_a_worker_and_process_knobs_start_one() -> None:
    bench = Bench(
        space(plan=("off", "hip"), side_streams=(None, 1), queue_policy=("round_robin", "refcount"), hw_queues=(1, 4))
    )
    assert bench.arms.prepare(bench.point()) == 1
    assert bench.arms.prepare(bench.point(plan="hip", side_streams=1, queue_policy="refcount")) == 1
    assert bench.engines[0].told == [("side_streams", 1), ("plan", "hip"), ("queue_policy", "refcount")]
    assert bench.arms.prepare(bench.point(plan="hip", side_streams=1, queue_policy="refcount")) == 1
    assert len(bench.engines[0].told) == 3  # nothing to change
    assert bench.arms.prepare(bench.point(hw_queues=4, plan="hip")) == 2
    assert (bench.engines[1].config.hw_queues, bench.engines[1].config.plan) == (4, "hip")
    assert bench.arms.prepare(bench.point(concurrency=2)) == 1  # both live side by side
    assert bench.arms.prepare(bench.point(), fresh=True) == 3
    assert [engine.alive for engine in bench.engines] == [False, True, True]
    bench.engines[2].alive = False
    assert bench.arms.prepare(bench.point()) == 4  # one that died is replaced
    bench.arms.close()
    assert not any(engine.alive for engine in bench.engines)


def test_no_more_workers_live_than_are_allowed_the_oldest_goes() -> None:
    bench = Bench(space(hw_queues=(1, 2, 4)), alive=2)
    for queues in (1, 2, 1, 4):
        bench.arms.prepare(bench.point(hw_queues=queues))
    assert [(e.config.hw_queues, e.alive) for e in bench.engines] == [(1, True), (2, False), (4, True)]


def test_variables_of_the_worker_set_what_they_set_at_a_start() -> None:
    bench = Bench(space(env_GPU_MAX_HW_QUEUES=(None, "7"), env_OTHER=("a", None)))
    bench.arms.prepare(bench.point())
    bench.arms.prepare(bench.point(**{"env:GPU_MAX_HW_QUEUES": "7", "env:OTHER": None}))
    assert bench.engines[0].environ == {"GPU_MAX_HW_QUEUES": None, "OTHER": "a"}
    assert bench.engines[1].environ == {"GPU_MAX_HW_QUEUES": "7", "OTHER": None}
    assert bench.engines[1].config.hw_queues == 7


def test_a_block_is_one_load_and_outputs_have_prompts_of_their_own() -> None:
    bench = Bench(space(plan=("off", "hip")))
    point = bench.point(concurrency=2)
    with pytest.raises(EngineError, match="no worker process is prepared"):
        bench.arms.measure(point, seed=3)
    bench.arms.prepare(point)
    measured = bench.arms.measure(point, seed=3)
    assert bench.engines[0].told == [("load", 2, 16, 4, 3)]
    assert (measured.process, measured.tpot_ms, measured.ttft_ms) == (1, (2.0, 2.0), (5.0, 5.0))
    assert measured.tokens == digest([[3] * 4] * 2)
    assert bench.arms.outputs(point).fingerprints == ((0,) * 4,) * 2


def test_plans_of_ones_own_go_by_their_names() -> None:
    own = OverlapPlan("mine", (Rule("compressor.*", "side0"),)).to_json()
    bench = Bench(space(plan=("off", "mine")), plans={"mine": own})
    assert bench.arms.config_of(bench.point(plan="mine")).plan == own
    assert bench.arms.facts["plans"] == {"mine": own}


def test_a_gpu_keeps_one_worker_whatever_the_plan_and_its_queues_are_those_of_its_environment() -> None:
    config = EngineConfig("demo", device="cuda", dtype="bfloat16", num_layers=2, graph_max_bs=4)
    bench = Bench(space(plan=("off", "cuda+moe", "side", "auto"), hw_queues=(4, 8)), config, alive=1)
    for plan in ("off", "cuda+moe", "side", "auto", "off"):
        assert bench.arms.prepare(bench.point(plan=plan)) == 1
    assert bench.engines[0].told == [("plan", plan) for plan in ("cuda+moe", "side", "auto", "off")]
    assert bench.arms.prepare(bench.point(hw_queues=8, plan="auto")) == 2
    assert [engine.alive for engine in bench.engines] == [False, True]
    kept = bench.engines[1].config
    assert (kept.device, kept.num_layers, kept.graph_max_bs, kept.plan) == ("cuda", 2, 4, "auto")
    assert worker_environ(kept, {}) == {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    assert worker_environ(replace(kept, device="hip:1"), {}) == {"GPU_MAX_HW_QUEUES": "8"}
    assert "gpu" in bench.arms.facts
    assert "gpu" not in Bench(space(plan=("off",))).arms.facts


def test_settings_that_come_to_the_same_are_tried_once() -> None:
    knobs = {"plan": ("off", "hip"), "hw_queues": (1, 4), "side_streams": (None, 0, 1)}
    cpu = Bench(space(**knobs, queue_policy=("round_robin", "refcount")))
    gpu = Bench(space(**knobs), EngineConfig("tiny", device="hip"))
    on_cpu = Order(cpu.space, [], cpu.arms.program_of).of(Setting.of(concurrency=1, prompt_tokens=16, max_new_tokens=4))
    assert len(on_cpu) == 2 * 2 * 2  # hip, its streams apart or together, by queues and policy; all else is off
    assert all(s.get("plan") == "hip" and s.get("side_streams") != 0 for s in on_cpu)
    on_gpu = Order(gpu.space, [], gpu.arms.program_of).of(Setting.of(concurrency=1, prompt_tokens=16, max_new_tokens=4))
    assert [s.label for s in on_gpu if s.get("plan") == "off"] == [
        "off, 4 queues, side streams as planned, concurrency 1, 16 prompt tokens, 4 new tokens"
    ]
    auto = Bench(space(plan=("off", "auto")))
    assert auto.arms.program_of(auto.point()) != auto.arms.program_of(auto.point(plan="auto"))


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("turbo", (1,), "no such knob"),
        ("hw_queues", (0,), "integers from 1 to 32"),
        ("side_streams", (True,), "or none"),
        ("queue_policy", ("fastest",), "round_robin or refcount"),
        ("max_new_tokens", (1,), "integers from 2"),
        ("graph_buckets", ("1,2",), r"1\+2\+4"),
        ("graphs", ("yes",), "true and false"),
    ],
)
def test_knobs_that_the_engine_does_not_take(name: str, values: tuple[KnobValue, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        engine_knob(name, values)


def test_what_the_cpu_has_not_and_what_would_not_be_fair() -> None:
    with pytest.raises(UsageError, match="knob graphs: it is of GPUs"):
        Bench(space(graphs=(True, False)))
    with pytest.raises(UsageError, match="both arms of a pair have the same prompts"):
        Bench(space(plan=("off",)), EngineConfig("tiny", enable_prefix_cache=True))
    assert Bench(space(graphs=(True, False)), EngineConfig("tiny", device="hip")).space.size == 4
    with pytest.raises(UsageError, match="knob queue_policy: it is the CPU device's"):
        Bench(space(queue_policy=("refcount",)), EngineConfig("tiny", device="hip"))
    with pytest.raises(UsageError, match="knob max_new_tokens: there is none"):
        EngineArms(
            KnobSpace((engine_knob("concurrency", (1,)), engine_knob("prompt_tokens", (8,))), Setting()),
            EngineConfig("tiny"),
        )


def test_the_queue_model_forecasts_from_a_profile_of_the_baseline() -> None:
    bench = Bench(space(plan=("off", "hip", "auto"), hw_queues=(1, 2), side_streams=(None, 0)))
    probe = CpuProbe(handoff_us=5.0, slowdown=1.0)
    found = {f.setting: f.change for f in CpuPrior(bench.arms, lambda: probe, cores=2).forecasts(bench.space)}
    assert {setting.get("plan") for setting in found} == {"off", "hip"}  # auto decides by what it measures
    assert len(found) == bench.space.size * 2 // 3
    same = [bench.point(), bench.point(hw_queues=2), bench.point(plan="hip", hw_queues=2, side_streams=0)]
    assert [found[setting] for setting in same] == pytest.approx([0.0, 0.0, 0.0])
    hidden = 500.0 / sum(US)  # the compressor's ops run beside the others
    assert found[bench.point(plan="hip", hw_queues=2)] == pytest.approx(-hidden, abs=0.03)
    assert found[bench.point(plan="hip", hw_queues=1)] > -0.01  # one queue overlaps nothing


def test_a_gpu_is_forecast_by_its_name_and_by_the_variables_that_it_reads() -> None:
    over = space(env_GPU_MAX_HW_QUEUES=(None, "1", "4"), env_SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=("0", "1"))
    prior = DevicePrior(Simulation(model="pro", layers=4))
    found = {f.setting: f for f in prior.forecasts(over)}
    assert all(f.tpot_ms is None for f in found.values())  # some layers are no model
    overlap = "env:SGLANG_OPT_USE_MULTI_STREAM_OVERLAP"
    point = {**{knob.name: knob.values[0] for knob in over.knobs}, "env:GPU_MAX_HW_QUEUES": "4"}
    off, on = over.setting(point), over.setting({**point, overlap: "1"})
    assert found[off].change == pytest.approx(0.0)
    assert prior.simulation(on).hw_queues == 4
    assert prior.simulation(on).plan.side_streams
    assert found[on].change != 0.0
