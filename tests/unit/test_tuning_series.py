"""Warm-up, outliers, drift and autocorrelation; ranks; the noise of a machine."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats as reference

from dsv4lab.errors import EngineError, UsageError
from dsv4lab.tuning.design import detectable, fewest_pairs, pairs_needed, power_of
from dsv4lab.tuning.pilot import machine_noise
from dsv4lab.tuning.ranks import centre, scale, signed_rank_difference, walsh_averages
from dsv4lab.tuning.series import autocorrelation, drift, outliers, warm_up_end


@pytest.mark.parametrize("count", [30, 100])
def test_a_settled_series_has_little_warm_up(count: int, rng: np.random.Generator) -> None:
    ends = [warm_up_end(rng.normal(10, 0.1, count).tolist()) for _ in range(50)]
    assert np.median(ends) <= count / 6
    assert max(ends) <= count / 2


def test_a_step_is_cut_where_it_is(rng: np.random.Generator) -> None:
    values = np.concatenate([rng.normal(12, 0.1, 10), rng.normal(10, 0.1, 90)])
    assert warm_up_end(values.tolist()) in (10, 15)
    assert warm_up_end(values[5:35].tolist()) in range(5, 9)


def test_a_wild_block_is_no_warm_up(rng: np.random.Generator) -> None:
    values = rng.normal(10, 0.1, 40)
    values[12] = 100.0
    assert warm_up_end(values.tolist()) < 12


def test_short_and_constant_series_have_none() -> None:
    assert warm_up_end([]) == 0
    assert warm_up_end([9.0, 1.0, 1.0]) == 0
    assert warm_up_end([1.0] * 30) == 0


def test_outliers_are_marked() -> None:
    values = [10.0, 10.1, 9.9, 10.05, 30.0, 9.95, 10.0, 10.02]
    assert outliers(values).tolist() == [False] * 4 + [True] + [False] * 3
    assert outliers([5.0] * 9 + [6.0]).tolist() == [False] * 9 + [True]
    assert not outliers([1.0, 1.0]).any()
    assert outliers([]).tolist() == []


def test_autocorrelation_by_signs(rng: np.random.Generator) -> None:
    values = np.zeros(4000)
    for at in range(1, len(values)):
        values[at] = 0.6 * values[at - 1] + rng.normal()
    assert autocorrelation([values.tolist()]) == pytest.approx(0.6, abs=0.06)
    values[::50] = 1e6
    found = autocorrelation([values.tolist()])
    assert found is not None
    assert 0.4 < found < 0.7
    assert autocorrelation([[1.0, 2.0, 3.0]]) is None


def test_drift_is_a_slope() -> None:
    assert drift([1.0, 1.5, 2.0, 99.0, 3.0, 3.5]) == pytest.approx(0.5)
    assert drift([1.0]) == 0.0


def test_walsh_averages_by_hand() -> None:
    assert walsh_averages([1.0, 2.0, 4.0]).tolist() == [1.0, 1.5, 2.0, 2.5, 3.0, 4.0]
    assert centre([1.0, 2.0, 4.0]) == 2.25
    assert np.isnan(centre([]))
    assert np.isnan(scale([1.0]))


@pytest.mark.parametrize("tail", [3.0, 1000.0])
def test_the_scale_is_what_the_test_feels(tail: float, rng: np.random.Generator) -> None:
    found = np.median([scale(rng.standard_t(tail, 80)) for _ in range(100)])
    # Signed-rank: the standard deviation over the root of its efficiency against t, 1.900 for 3 degrees of freedom.
    felt = {3.0: np.sqrt(3 / 1.900 * 3 / np.pi), 1000.0: 1.0}[tail]
    assert found == pytest.approx(felt, rel=0.08)


@pytest.mark.parametrize("n", [8, 15, 40])
def test_the_interval_agrees_with_the_signed_rank_test(n: int, rng: np.random.Generator) -> None:
    for shift in (0.0, 0.3, 0.6, 0.9):
        logs = rng.normal(shift, 1, n)
        found = signed_rank_difference(logs.tolist(), 0.05)
        assert found.low is not None
        assert found.high is not None
        rejects = reference.wilcoxon(logs, method="exact").pvalue <= 0.05
        assert rejects == (found.low > 0 or found.high < 0)


def test_intervals_cover(rng: np.random.Generator) -> None:
    experiments = 1000
    found = [signed_rank_difference((0.02 * rng.standard_t(2, 15)).tolist(), 0.05) for _ in range(experiments)]
    misses = sum(d.low is not None and d.high is not None and not d.low <= 0 <= d.high for d in found)
    assert misses <= reference.binom.isf(1e-5, experiments, 0.05)
    assert misses >= reference.binom.ppf(1e-5, experiments, 0.035)  # and are no wider than need be


def test_too_few_pairs_have_no_interval() -> None:
    assert fewest_pairs(0.01) == 8
    assert signed_rank_difference([-0.1] * 7, 0.01).low is None
    assert signed_rank_difference([-0.1] * 8, 0.01).low == pytest.approx(np.expm1(-0.1))
    assert signed_rank_difference([], 0.01).pairs == 0


def test_power_against_simulation(rng: np.random.Generator) -> None:
    pairs, experiments = 25, 2000
    logs = rng.normal(np.log1p(0.01), 0.014, (experiments, pairs))
    found = np.mean(reference.wilcoxon(logs, axis=1).pvalue <= 0.01)
    assert found == pytest.approx(power_of(0.014, 0.01, pairs, 0.01), abs=0.04)


def test_pairs_and_differences_are_each_others_inverse() -> None:
    pairs = pairs_needed(0.02, 0.01, 0.01, 0.9)
    assert 55 < pairs < 70
    assert power_of(0.02, 0.01, pairs - 1) < 0.9 <= power_of(0.02, 0.01, pairs)
    found = detectable(0.02, pairs)
    assert found is not None
    assert found == pytest.approx(0.01, rel=0.02)
    assert pairs_needed(0.0, 0.01) == fewest_pairs(0.01)
    assert detectable(0.02, 7) is None
    assert pairs_needed(0.02, -0.01) == pairs
    for sd, delta, alpha, says in ((0.02, 0.0, 0.01, "delta is 0"), (-1.0, 0.01, 0.01, "sd is"), (1, 0.1, 2, "alpha")):
        with pytest.raises(UsageError, match=says):
            pairs_needed(sd, delta, alpha)
    with pytest.raises(UsageError, match="more than 1000000 pairs"):
        pairs_needed(10.0, 0.001)


def test_the_noise_of_a_machine_is_told(rng: np.random.Generator) -> None:
    values = 10 * np.exp(rng.normal(0, 0.01, 60))
    values[20] *= 2
    found = machine_noise([values.tolist()])
    assert found.pair_sd == pytest.approx(0.0141, rel=0.35)
    assert found.outliers >= 1
    assert (found.processes, found.process_sd) == (1, None)
    lines = found.lines()
    assert f"1 % needs {found.pairs_needed(0.01)} pairs" in lines[1]
    assert "power 90 % (α = 1 %)" in lines[1]
    assert any("marked, and kept" in line for line in lines)
    assert found.detectable(20) is not None
    json.dumps(found.to_json())
    with pytest.raises(EngineError, match="tell no noise"):
        machine_noise([[1.0, 2.0, 3.0]])


def test_a_machine_too_noisy_for_any_number_of_pairs_says_so() -> None:
    wild = [10.0 * 30.0 ** ((-1) ** (at // 2) * (1 + at % 3)) for at in range(24)]
    found = machine_noise([wild, wild[::-1]])
    assert any("needs more than 1000000 pairs" in line for line in found.lines())
