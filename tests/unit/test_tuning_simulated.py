"""Simulated arms: what was planted is there, and nothing depends on chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dsv4lab.errors import EngineError, TimeoutExceededError, UsageError, WorkerDiedError
from dsv4lab.tuning.arm_target import ArmTarget
from dsv4lab.tuning.block import CRASHED, DIED_AT_START, HUNG, START_TIMED_OUT
from dsv4lab.tuning.knobs import LIVE, LOAD, PROCESS, Knob, KnobSpace, Setting
from dsv4lab.tuning.pilot import measure_noise
from dsv4lab.tuning.simulated_arms import SimulatedArms, SimulatedNoise, additive

SPACE = KnobSpace(
    (
        Knob("plan", ("off", "hip"), LIVE),
        Knob("hw_queues", (1, 4), PROCESS),
        Knob("concurrency", (1, 8), LOAD),
    ),
    Setting.of(plan="off", hw_queues=1),
)
EFFECT = additive({"plan": {"hip": -0.05}, "hw_queues": {4: 0.02}})


def at(plan: str = "off", hw_queues: int = 1, concurrency: int = 1) -> Setting:
    return Setting.of(plan=plan, hw_queues=hw_queues, concurrency=concurrency)


def test_it_is_a_target() -> None:
    target: ArmTarget = SimulatedArms(SPACE)
    assert target.name == "simulated"
    target.close()


def test_without_noise_there_is_the_effect_alone() -> None:
    target = SimulatedArms(SPACE, EFFECT, base_ms=10.0)
    tpot = {}
    for setting in (at(), at("hip"), at("hip", 4), at(concurrency=8)):
        target.prepare(setting)
        tpot[setting] = target.measure(setting, seed=0).tpot
    assert tpot[at()] == pytest.approx(10.0)
    assert tpot[at("hip")] == pytest.approx(10 * math.exp(-0.05))
    assert tpot[at("hip", 4)] == pytest.approx(10 * math.exp(-0.03))
    assert tpot[at(concurrency=8)] > 10.0


def test_the_same_calls_give_the_same_figures() -> None:
    noise = SimulatedNoise(tail=3.0, autocorrelation=0.3, drift=0.01, process_sd=0.02, warm_up=0.1, spike_rate=0.1)

    def figures(seed: int) -> list[float]:
        target = SimulatedArms(SPACE, EFFECT, noise, seed=seed)
        found = []
        for k in range(20):
            setting = at(hw_queues=(1, 4)[k // 5 % 2])
            target.prepare(setting)
            found.append(target.measure(setting, seed=k).tpot)
        return found

    assert figures(1) == figures(1)
    assert figures(1) != figures(2)


def test_a_process_knob_takes_a_new_life_and_a_live_one_does_not() -> None:
    target = SimulatedArms(SPACE, noise=SimulatedNoise(sd=0.0, request_sd=0.0, process_sd=0.1))
    assert target.prepare(at()) == 1
    first = target.measure(at(), seed=0).tpot
    assert target.prepare(at("hip")) == 1
    assert target.measure(at("hip"), seed=1).tpot == pytest.approx(first)
    assert target.prepare(at("hip"), fresh=True) == 2
    assert target.prepare(at(hw_queues=4)) == 3
    assert target.prepare(at()) == 4
    assert target.measure(at(), seed=2).tpot != pytest.approx(first)
    with pytest.raises(EngineError, match="4 queues, concurrency 1: is not prepared"):
        target.measure(at(hw_queues=4), seed=0)


def test_prompts_cancel_in_a_pair_and_a_warm_up_fades() -> None:
    target = SimulatedArms(SPACE, noise=SimulatedNoise(sd=0.0, request_sd=0.0, prompt_sd=0.1))
    target.prepare(at())
    assert target.measure(at(), seed=5).tpot == pytest.approx(target.measure(at(), seed=5).tpot)
    assert target.measure(at(), seed=6).tpot != pytest.approx(target.measure(at(), seed=5).tpot)
    cold = SimulatedArms(SPACE, noise=SimulatedNoise(sd=0.0, request_sd=0.0, warm_up=0.2))
    cold.prepare(at())
    times = [cold.measure(at(), seed=0).tpot for _ in range(20)]
    assert times == sorted(times, reverse=True)
    assert times[0] == pytest.approx(10 * math.exp(0.2))
    assert times[-1] == pytest.approx(10.0, rel=1e-3)


def test_heavy_tails_keep_the_middle_half() -> None:
    for tail in (math.inf, 3.0, 1.0):
        target = SimulatedArms(SPACE, noise=SimulatedNoise(sd=0.02, tail=tail, request_sd=0.0), seed=7)
        target.prepare(at())
        logs = np.log([target.measure(at(), seed=0).tpot / 10 for _ in range(1500)])
        low, high = np.percentile(logs, [25, 75])
        assert (high - low) / 2 == pytest.approx(0.02 * 0.6745, rel=0.1)


def test_planted_failures_and_wrong_tokens() -> None:
    how = {"hip": CRASHED, "off": None}
    target = SimulatedArms(SPACE, fails=lambda s: how[str(s.get("plan"))], differs=lambda s: s.get("plan") == "hip")
    target.prepare(at("hip"))
    found = target.measure(at("hip"), seed=0)
    assert (found.ok, found.outcome, found.why) == (False, CRASHED, "planted to fail: crashed")
    with pytest.raises(EngineError, match="not prepared"):
        target.measure(at("hip"), seed=0)
    assert target.outputs(at()).difference(target.outputs(at())) is None
    assert target.outputs(at()).difference(target.outputs(at("hip"))) is not None
    for outcome, error in ((DIED_AT_START, WorkerDiedError), (START_TIMED_OUT, TimeoutExceededError)):
        how["hip"] = outcome
        with pytest.raises(error, match=outcome):
            target.prepare(at("hip"))
    how["hip"] = HUNG
    target.prepare(at("hip"))
    with pytest.raises(EngineError, match="planted to fail: hung"):
        measure_noise(target, at("hip"))


def test_bad_noise() -> None:
    with pytest.raises(UsageError, match="autocorrelation is 1"):
        SimulatedNoise(autocorrelation=1.0)
    with pytest.raises(UsageError, match="tail is 0"):
        SimulatedNoise(tail=0.0)
