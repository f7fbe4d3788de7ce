"""The sequential test's decisions, one by one."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from dsv4lab.errors import UsageError
from dsv4lab.tuning.paired import Decision, SequentialTest, Verdict


def run(test: SequentialTest, logs: list[float]) -> Decision:
    for log in logs:
        if test.add(log).done:
            break
    return test.decision


def test_a_clear_gain_ends_soon(rng: np.random.Generator) -> None:
    found = run(SequentialTest(0.01, 0.01, 100), rng.normal(math.log(0.9), 0.02, 100).tolist())
    assert (found.verdict, str(found.verdict), found.done) == (Verdict.FASTER, "faster", True)
    assert found.pairs <= 14


def test_a_clear_loss_ends_soon(rng: np.random.Generator) -> None:
    found = run(SequentialTest(0.01, 0.01, 100), rng.normal(math.log(1.1), 0.02, 100).tolist())
    assert (found.verdict, found.done) == (Verdict.SLOWER, True)
    assert found.pairs <= 14
    search = run(SequentialTest(0.01, 0.01, 100, stop_without_gain=True), rng.normal(math.log(1.1), 0.02, 100).tolist())
    assert search.verdict is Verdict.NO_GAIN
    assert search.pairs <= 9
    assert "a gain of 1 % is ruled out" in search.why


def test_equal_arms_are_called_equal(rng: np.random.Generator) -> None:
    found = run(SequentialTest(0.01, 0.01, 200), rng.normal(0, 0.01, 200).tolist())
    assert (found.verdict, found.done) == (Verdict.NO_DIFFERENCE, True)
    assert found.pairs < 60


def test_a_sure_difference_below_the_least_is_none(rng: np.random.Generator) -> None:
    found = run(SequentialTest(0.01, 0.02, 400), rng.normal(-0.004, 0.002, 400).tolist())
    assert found.verdict is Verdict.NO_DIFFERENCE


def test_noise_too_large_for_the_pairs_ends_early(rng: np.random.Generator) -> None:
    test = SequentialTest(0.01, 0.01, 30)
    found = run(test, rng.normal(0, 0.1, 30).tolist())
    assert (found.verdict, found.done) == (Verdict.UNDECIDED, True)
    assert found.pairs < 12
    assert found.why.startswith("30 pairs would be too few: at this noise a difference of 1 % takes about ")


def test_the_last_pair_ends_it(rng: np.random.Generator) -> None:
    test = SequentialTest(0.01, 0.01, 5)
    assert [test.add(x).done for x in rng.normal(-0.05, 0.01, 5)] == [False] * 4 + [True]
    assert test.decision.verdict is Verdict.UNDECIDED
    assert test.decision.why.startswith("5 pairs are too few")


def test_a_decision_stays_and_later_pairs_sharpen_the_difference() -> None:
    test = SequentialTest(0.01, 0.01, 100)
    before = run(test, [-0.1, -0.11, -0.09, -0.105] * 5)
    assert before.verdict is Verdict.FASTER
    assert test.extend([0.3] * 40) == before
    assert len(test.logs) == before.pairs + 40
    assert test.difference().pairs == before.pairs + 40


def test_a_resumed_test_is_the_same_test(rng: np.random.Generator) -> None:
    logs = rng.normal(-0.01, 0.02, 20).tolist()
    one, two = SequentialTest(0.01, 0.01, 100), SequentialTest(0.01, 0.01, 100)
    for log in logs:
        one.add(log)
    assert two.extend(logs) == one.decision
    assert two.difference() == one.difference()
    json.dumps(one.decision.to_json())


def test_the_difference_has_bounds_once_there_are_any(rng: np.random.Generator) -> None:
    test = SequentialTest(0.01, 0.01, 100)
    test.extend(rng.normal(math.log(0.95), 0.01, 4))
    assert (test.difference().low, test.difference().high) == (None, None)
    test.extend(rng.normal(math.log(0.95), 0.01, 20))
    found = test.difference()
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.delta < found.high < 0
    assert found.delta == pytest.approx(-0.05, abs=0.01)


def test_equal_blocks_without_any_noise_are_equal() -> None:
    found = run(SequentialTest(0.01, 0.01, 30), [0.0] * 30)
    assert found.verdict is Verdict.NO_DIFFERENCE
    assert found.pairs <= 8


def test_bad_arguments() -> None:
    for alpha, least, pairs, says in (
        (0.0, 0.01, 5, "alpha is 0.0"),
        (0.01, 1.0, 5, "least is 1.0"),
        (0.01, 0.01, 0, "max_pairs"),
    ):
        with pytest.raises(UsageError, match=says):
            SequentialTest(alpha, least, pairs)
    with pytest.raises(UsageError, match="beta is 2"):
        SequentialTest(0.01, 0.01, 5, beta=2)
    with pytest.raises(ValueError, match="log ratio is nan"):
        SequentialTest(0.01, 0.01, 5).add(math.nan)
