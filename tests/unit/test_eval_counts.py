"""The exact test, the intervals and the numbers of questions, against references and by counting all outcomes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as reference

from dsv4lab.evaluate.counts import PairedCounts, detectable, power_of, questions_needed, wilson_interval


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (1, 0), (0, 6), (5, 9), (12, 2), (40, 20), (300, 340)])
def test_mcnemar_is_the_exact_binomial_test(only_a: int, only_b: int) -> None:
    found = PairedCounts(500, only_a, only_b, 30).mcnemar_p()
    n = only_a + only_b
    assert found == pytest.approx(reference.binomtest(only_a, n).pvalue if n else 1.0)


def test_an_interval_of_the_literature() -> None:
    # Airway reactivity before and after a transplantation: 1, 1, 7, 12 (Bentur 2009); Tango's interval of the
    # difference is 2.6 to 51.7 % (Fagerland, Lydersen and Laake 2014).
    low, high = PairedCounts(1, 1, 7, 12).interval(0.95)
    assert (round(low, 3), round(high, 3)) == (0.026, 0.517)
    back = PairedCounts(1, 7, 1, 12).interval(0.95)
    assert back == pytest.approx((-high, -low))


def test_the_interval_is_that_of_the_constrained_likelihood() -> None:
    counts = PairedCounts(100, 20, 40, 0)
    n, z = counts.questions, reference.norm.isf(0.025)
    for delta, sign in zip(counts.interval(0.95), (1, -1), strict=True):
        lose = np.linspace(max(0.0, -delta) + 1e-9, (1 - delta) / 2 - 1e-9, 200_001)
        likelihood = 40 * np.log(lose + delta) + 20 * np.log(lose) + 100 * np.log(1 - delta - 2 * lose)
        p = lose[np.argmax(likelihood)]
        score = (20 - n * delta) / math.sqrt(n * (2 * p + delta * (1 - delta)))
        assert score == pytest.approx(sign * z, abs=1e-3)


def test_intervals_cover(rng: np.random.Generator) -> None:
    for n, shares in ((60, (0.7, 0.08, 0.12, 0.1)), (200, (0.9, 0.03, 0.01, 0.06)), (40, (0.97, 0.01, 0.01, 0.01))):
        true, experiments = shares[2] - shares[1], 1000
        missed = 0
        for row in rng.multinomial(n, shares, experiments):
            low, high = PairedCounts(*map(int, row)).interval(0.95)
            missed += not low <= true <= high
        assert missed <= reference.binom.isf(1e-4, experiments, 0.06)


def test_no_discordant_question_still_bounds_the_difference() -> None:
    low, high = PairedCounts(180, 0, 0, 20).interval(0.95)
    z = reference.norm.isf(0.025)
    assert high == pytest.approx(z**2 / (200 + z**2))
    assert low == pytest.approx(-high)
    assert PairedCounts(0, 0, 0, 0).interval(0.95) == (-1.0, 1.0)
    assert PairedCounts(0, 0, 5, 0).interval(0.95)[1] == pytest.approx(1.0)


@pytest.mark.parametrize(("right", "n"), [(0, 10), (7, 10), (950, 1000)])
def test_wilson(right: int, n: int) -> None:
    expected = reference.binomtest(right, n).proportion_ci(method="wilson")
    assert wilson_interval(right, n, 0.95) == pytest.approx((expected.low, expected.high))
    assert wilson_interval(0, 0, 0.95) == (0.0, 1.0)
    assert (wilson_interval(0, 6, 0.95)[0], wilson_interval(6, 6, 0.95)[1]) == (0.0, 1.0)


@pytest.mark.parametrize(("n", "psi", "delta"), [(50, 0.3, 0.2), (200, 0.1, 0.05), (6, 1.0, 0.9), (5, 1.0, 1.0)])
def test_power_by_counting_all_outcomes(n: int, psi: float, delta: float) -> None:
    total = 0.0
    for m in range(n + 1):
        k = np.arange(m + 1)
        rejects = np.minimum(1.0, 2 * reference.binom.cdf(np.minimum(k, m - k), m, 0.5)) <= 0.05
        inner = reference.binom.pmf(k, m, (psi + delta) / (2 * psi))[rejects].sum() if m else 0.0
        total += reference.binom.pmf(m, n, psi) * inner
    assert power_of(n, psi, delta) == pytest.approx(total, abs=1e-7)


def test_the_test_keeps_its_level() -> None:
    assert power_of(300, 0.1, 1e-12) <= 0.05


def test_needed_questions_agree_with_the_normal_formula() -> None:
    z_a, z_b = reference.norm.isf(0.025), reference.norm.isf(0.2)
    for psi, delta in ((0.1, 0.03), (0.05, 0.01), (0.3, 0.1)):
        connor = (z_a * math.sqrt(psi) + z_b * math.sqrt(psi - delta**2)) ** 2 / delta**2  # Connor 1987
        found = questions_needed(psi, delta)
        assert found is not None
        assert connor < found < 1.25 * connor
        assert power_of(found, psi, delta) >= 0.8 > power_of(found - 20, psi, delta)
        at = detectable(found, psi)
        assert at == pytest.approx(delta, rel=0.05)
    assert questions_needed(0.5, 1e-5) is None


def test_few_questions_detect_nothing() -> None:
    assert detectable(5, 0.2) is None
    assert detectable(0, 0.2) is None
    found = detectable(20, 0.05)
    assert found is not None
    assert 0.3 < found < 0.5
