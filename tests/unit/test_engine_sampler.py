"""Sampling: greedy, cut, and noise that depends on nothing but seed and index."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from dsv4lab.engine.request import SamplingParams
from dsv4lab.engine.sampler import derived_seed, sample, uniform
from dsv4lab.errors import EngineError

Logits = NDArray[np.float32]
logits = arrays(np.float32, st.integers(2, 40), elements=st.floats(-20, 20, width=32))

seeds = st.integers(0, 2**63 - 1)


def row(*values: float) -> Logits:
    return np.array(values, np.float32)


def softmax(values: Logits, temperature: float) -> NDArray[np.float64]:
    scaled = values.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return np.asarray(weights / weights.sum())


def test_greedy_takes_the_lowest_id_of_the_largest() -> None:
    assert sample(row(0, 3, 3, 1), SamplingParams(), 0, 0) == 1
    assert sample(row(0, 3, 3, 1), SamplingParams(temperature=2.0, top_k=1), 5, 9) == 1


@given(logits, st.floats(0.05, 5), st.integers(0, 50), st.floats(0.01, 1), seeds, st.integers(0, 99))
def test_a_token_comes_from_what_the_cuts_leave(
    values: Logits, temperature: float, top_k: int, top_p: float, seed: int, index: int
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    token = sample(values, params, seed, index)
    order = np.argsort(-values, kind="stable")[: top_k or None]
    probabilities = softmax(values[order], temperature)
    before = np.concatenate(([0.0], np.cumsum(probabilities)[:-1]))
    allowed = order[before < top_p + 1e-9]
    assert token in allowed
    assert token == sample(values.copy(), params, seed, index)


def test_frequencies_follow_the_probabilities() -> None:
    values = row(2.0, 1.0, 0.0, -1.0, 0.5)
    params = SamplingParams(temperature=0.7)
    count = 4000
    drawn = np.bincount([sample(values, params, 1234, i) for i in range(count)], minlength=5)
    expected = softmax(values, 0.7) * count
    assert float(((drawn - expected) ** 2 / expected).sum()) < 23.5  # chi-square, 4 degrees, p about 1e-4


def test_top_p_renormalises_what_it_leaves() -> None:
    values = np.log(row(0.5, 0.3, 0.15, 0.05))
    drawn = {sample(values, SamplingParams(temperature=1.0, top_p=0.8), 3, i) for i in range(300)}
    assert drawn == {0, 1}


def test_top_k_cuts_ties_by_token_id() -> None:
    values = row(1, 5, 5, 5, 0)
    drawn = {sample(values, SamplingParams(temperature=1.0, top_k=2), 3, i) for i in range(100)}
    assert drawn == {1, 2}


def test_noise_is_a_function_of_seed_and_index() -> None:
    numbers = {(seed, index): uniform(seed, index) for seed in range(20) for index in range(20)}
    assert len(set(numbers.values())) == len(numbers)
    assert all(0.0 <= value < 1.0 for value in numbers.values())
    assert uniform(7, 3) == uniform(7, 3)
    assert abs(float(np.mean(list(numbers.values()))) - 0.5) < 0.06


def test_derived_seeds_differ_and_fit() -> None:
    seeds = {derived_seed(engine, number) for engine in range(10) for number in range(100)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("bad", [row(1, np.nan, 0), row(np.inf, 0, 0), row(-np.inf, -np.inf, -np.inf)])
def test_logits_that_are_not_finite_are_an_error(bad: Logits) -> None:
    with pytest.raises(EngineError, match="not finite"):
        sample(bad, SamplingParams(temperature=1.0), 0, 0)
