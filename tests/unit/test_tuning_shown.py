"""What a session's statistics promise, on simulated arms with drift, heavy tails, correlation, processes and warm-up.

Bounds are binomial: a right implementation passes with a chance of more than 99.9 %, and for each promise a test that
breaks it is shown to fail.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from dsv4lab.tuning.design import pairs_needed
from dsv4lab.tuning.knobs import LIVE, PROCESS, Knob, KnobSpace, Setting
from dsv4lab.tuning.paired import SequentialTest, Verdict
from dsv4lab.tuning.pilot import measure_noise
from dsv4lab.tuning.ranks import signed_rank_difference
from dsv4lab.tuning.series import warm_up_end
from dsv4lab.tuning.simulated_arms import SimulatedArms, SimulatedNoise, additive

ALPHA, LEAST, MAX_PAIRS = 0.01, 0.01, 80
ROUGH = SimulatedNoise(
    sd=0.012, tail=3.0, autocorrelation=0.5, drift=0.001, warm_up=0.2, prompt_sd=0.02, spike_rate=0.02
)
ALARMS = (Verdict.FASTER, Verdict.SLOWER)
OFF, ON = Setting.of(plan="off"), Setting.of(plan="on")


def arms(effect: float, noise: SimulatedNoise, seed: int, scope: str = LIVE) -> SimulatedArms:
    space = KnobSpace((Knob("plan", ("off", "on"), scope),), OFF)
    return SimulatedArms(space, additive({"plan": {"on": effect}}), noise, seed=seed)


def log_ratio(target: SimulatedArms, seed: int, order: np.random.Generator) -> float:
    """One pair, its order drawn by lot."""
    tpot = {}
    for at in order.permutation(2):
        setting = (OFF, ON)[at]
        target.prepare(setting)
        tpot[at] = target.measure(setting, seed=seed).tpot
    return math.log(tpot[1] / tpot[0])


def warmed(target: SimulatedArms, blocks: int = 12) -> SimulatedArms:
    target.prepare(OFF)
    for block in range(blocks):
        target.measure(OFF, seed=block)
    return target


def experiment(effect: float, seed: int, noise: SimulatedNoise = ROUGH) -> tuple[Verdict, int]:
    """The verdict of a sequential test, and the pairs that it took."""
    target, order = warmed(arms(effect, noise, seed)), np.random.default_rng(seed)
    test = SequentialTest(ALPHA, LEAST, MAX_PAIRS)
    while not test.decision.done:
        test.add(log_ratio(target, 100 + len(test.logs), order))
    return test.decision.verdict, test.decision.pairs


def test_at_most_2_false_alarms_in_40_null_experiments() -> None:
    found = [experiment(0.0, seed) for seed in range(40)]
    assert sum(verdict in ALARMS for verdict, _ in found) <= 2
    assert binom.sf(2, 40, ALPHA) < 0.01


def test_false_alarms_are_as_rare_as_said_and_more_would_be_noticed() -> None:
    experiments = 240
    limit = int(binom.isf(1e-3, experiments, ALPHA))
    alarms = sum(experiment(0.0, 1000 + seed)[0] in ALARMS for seed in range(experiments))
    assert alarms <= limit
    assert binom.cdf(limit, experiments, 0.1) < 1e-2  # a test with 10 % false alarms is caught


def test_a_planted_difference_of_3_percent_is_found() -> None:
    experiments = 200
    needed = int(binom.ppf(1e-3, experiments, 0.9))
    found = [experiment(math.log(0.97), 5000 + seed) for seed in range(experiments)]
    assert sum(verdict is Verdict.FASTER for verdict, _ in found) >= needed
    assert not any(verdict is Verdict.SLOWER for verdict, _ in found)
    assert binom.sf(needed - 1, experiments, 0.7) < 1e-3  # one with a power of 70 % fails
    assert np.median([pairs for _, pairs in found]) < 30


def test_equal_and_hopeless_arms_end_early() -> None:
    equal = [experiment(0.0, 9000 + seed, SimulatedNoise(sd=0.005, tail=4.0)) for seed in range(60)]
    called = sum(verdict is Verdict.NO_DIFFERENCE for verdict, _ in equal)
    assert called >= 54
    assert np.median([pairs for _, pairs in equal]) < 25
    slow = [experiment(0.1, 9500 + seed, SimulatedNoise(sd=0.01, tail=4.0)) for seed in range(60)]
    assert {verdict for verdict, _ in slow} == {Verdict.SLOWER}
    assert np.median([pairs for _, pairs in slow]) <= 11


def test_a_gain_that_matters_is_seldom_called_no_difference() -> None:
    experiments = 100
    found = [experiment(math.log(1 - LEAST), 20000 + seed, SimulatedNoise(sd=0.01)) for seed in range(experiments)]
    missed = sum(verdict is Verdict.NO_DIFFERENCE for verdict, _ in found)
    assert missed <= binom.isf(1e-3, experiments, 0.1)
    assert not any(verdict is Verdict.SLOWER for verdict, _ in found)


def test_a_fixed_paired_design_finds_1_percent_with_its_stated_power() -> None:
    power, experiments = 0.9, 120
    noise = SimulatedNoise(sd=0.012, tail=4.0, drift=0.0005, prompt_sd=0.02)
    pilots = [measure_noise(arms(0.0, noise, 70 + k), OFF, pairs=40) for k in range(9)]
    sd = float(np.median([pilot.pair_sd for pilot in pilots]))
    pairs = pairs_needed(sd, 0.01, ALPHA, power)

    def found(effect: float, seed: int) -> str:
        target, order = warmed(arms(effect, noise, seed)), np.random.default_rng(seed)
        logs = [log_ratio(target, 100 + pair, order) for pair in range(pairs)]
        return signed_rank_difference(logs, ALPHA).verdict(0.0)

    gains = [found(math.log(0.99), 30000 + seed) for seed in range(experiments)]
    assert gains.count("faster") >= binom.ppf(1e-3, experiments, power)
    assert gains.count("slower") == 0
    nulls = [found(0.0, 60000 + seed) for seed in range(experiments)]
    assert experiments - nulls.count("no difference") <= binom.isf(1e-3, experiments, ALPHA)


def test_noise_of_processes_is_told_from_noise_of_repeats() -> None:
    noise = SimulatedNoise(sd=0.01, process_sd=0.03, request_sd=0.0)
    found = measure_noise(arms(0.0, noise, 4), OFF, pairs=10, processes=12)
    assert found.process_sd is not None
    assert 0.018 < found.process_sd < 0.045
    assert 0.0075 < found.repeat_sd < 0.0125
    assert found.pair_sd < 1.7 * found.repeat_sd
    assert found.pairs_needed(0.01, fresh_processes=True) > 4 * found.pairs_needed(0.01)


def test_pairs_of_fresh_processes_raise_no_false_alarms() -> None:
    noise = SimulatedNoise(sd=0.01, process_sd=0.02)
    alarms = 0
    for seed in range(150):
        target, order = arms(0.0, noise, seed, PROCESS), np.random.default_rng(seed)
        test = SequentialTest(ALPHA, LEAST, 40)
        while not test.decision.done:
            test.add(log_ratio(target, len(test.logs), order))
        alarms += test.decision.verdict in ALARMS
    assert alarms <= binom.isf(1e-3, 150, ALPHA)


def test_the_documentation_says_how_many_pairs_it_takes(repo_root: Path) -> None:
    text = (repo_root / "docs/statistics.md").read_text("utf-8")
    rows = re.findall(r"^\| (1|2) \| (\d+) \| (\d+), (\d+) \| (\d+), (\d+) \|$", text, re.MULTILINE)
    random, experiments = np.random.default_rng(11), 120
    for ratio, fixed, *said in rows:
        sd, found = 0.01 / int(ratio), []
        assert pairs_needed(sd, 0.01) == int(fixed)
        for effect, least in ((math.log(0.99), 0.003), (0.0, 0.01)):
            taken = []
            for _ in range(experiments):
                test = SequentialTest(ALPHA, least, 200)
                while not test.add(random.normal(effect, sd)).done:
                    pass
                taken.append(test.decision.pairs)
            found += np.percentile(taken, [50, 90]).tolist()
        assert found == pytest.approx(list(map(int, said)), rel=0.2, abs=1)
    assert len(rows) == 2


def test_warm_up_is_found_where_it_was_planted() -> None:
    ends = []
    for seed in range(40):
        target = arms(0.0, SimulatedNoise(sd=0.01, warm_up=0.3, warm_up_blocks=2.0, spike_rate=0.02), seed)
        target.prepare(OFF)
        ends.append(warm_up_end([target.measure(OFF, seed=k).tpot for k in range(40)]))
    # 30 % fading by e every two blocks is below the noise of one block after seven.
    assert 4 <= np.median(ends) <= 10
    assert np.mean([end >= 4 for end in ends]) > 0.9
