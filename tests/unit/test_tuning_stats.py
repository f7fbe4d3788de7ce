from __future__ import annotations

import math

import numpy as np
import pytest

from dsv4lab.tuning.stats import (
    MIN_BLOCKS,
    Difference,
    difference,
    expanded_tail,
    log_ratios,
    median,
    noise,
    percentile,
)


def test_expanded_tails_shrink_towards_the_plain_one() -> None:
    tails = [expanded_tail(n) for n in (5, 8, 20, 1000)]
    assert tails == sorted(tails)
    assert tails[0] < 0.002
    assert tails[-1] == pytest.approx(0.025, rel=0.02)


def test_a_ratio_per_pair_of_neighbours() -> None:
    logs = log_ratios([[9.0, 9.0, 100.0], [18.0]], [[10.0], [20.0, 20.0]])
    assert [math.exp(x) for x in logs] == pytest.approx([0.9, 0.9])
    with pytest.raises(ValueError, match="argument"):
        log_ratios([[1.0]], [])


def test_drift_shared_by_neighbours_cancels() -> None:
    drift = [1.0, 1.5, 2.0, 1.2, 0.8, 3.0]
    found = difference(log_ratios([[0.9 * d] for d in drift], [[d] for d in drift]))
    assert found.delta == pytest.approx(-0.1)
    assert found.low == pytest.approx(-0.1)
    assert found.high == pytest.approx(-0.1)
    assert found.verdict(0.01) == "faster"


def test_too_few_pairs_decide_nothing() -> None:
    found = difference([-0.2] * (MIN_BLOCKS - 1))
    assert (found.low, found.high) == (None, None)
    assert found.verdict(0.01) == "undecided"


def test_verdicts() -> None:
    assert Difference(-0.05, -0.08, -0.02, 8).verdict(0.01) == "faster"
    assert Difference(0.05, 0.02, 0.08, 8).verdict(0.01) == "slower"
    assert Difference(-0.05, -0.08, 0.01, 8).verdict(0.01) == "no difference"
    assert Difference(-0.005, -0.006, -0.004, 8).verdict(0.01) == "no difference"


def test_null_experiments_seldom_alarm_and_a_planted_gain_is_found() -> None:
    rng = np.random.default_rng(7)
    nulls = [difference(rng.normal(0, 0.02, 8).tolist(), k).verdict(0.01) for k in range(150)]
    # 2.5 % a side would be the nominal rate; 5 of 150 is beyond its 99 % point only for a rate above 2 %.
    assert nulls.count("faster") <= 5
    gains = [difference(rng.normal(math.log(0.93), 0.02, 8).tolist(), k).verdict(0.01) for k in range(50)]
    assert gains.count("faster") >= 48


def test_one_wild_pair_of_nine_hides_no_difference() -> None:
    for seed in range(20):
        logs = [-0.12, -0.13, -0.11, -0.125, -0.115, -0.12, -0.13, -0.12, 0.5]
        assert difference(logs, seed).verdict(0.01) == "faster"


def test_the_interval_depends_on_the_data_alone() -> None:
    logs = [-0.1, 0.02, -0.05, 0.01, -0.2, -0.03]
    assert difference(logs, 3) == difference(logs, 3)


def test_noise_tells_repeats_from_processes() -> None:
    found = noise([[[10.0], [10.2], [9.8]], [[11.0], [11.0], [11.0]]])
    assert found.process == pytest.approx(1 / 10.5)
    assert found.repeat is not None
    assert 0 < found.repeat < 0.02
    assert noise([[[10.0]]]).to_json() == {"repeat": None, "process": None}


def test_nothing_has_no_median() -> None:
    assert math.isnan(median([]))
    assert math.isnan(percentile([], 90))
