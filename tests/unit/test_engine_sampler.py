"""Sampling: greedy, cut, and noise that depends on nothing but seed and index."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from dsv4lab.engine.logprobs import token_logprobs
from dsv4lab.engine.penalties import TokenHistory, adjusted
from dsv4lab.engine.request import SamplingParams
from dsv4lab.engine.sampler import derived_seed, distribution, sample, uniforms
from dsv4lab.errors import EngineError

Logits = NDArray[np.float32]
seeds = st.integers(0, 2**63 - 1)


def row(*values: float) -> Logits:
    return np.array(values, np.float32)


def test_greedy_takes_the_lowest_id_of_the_largest() -> None:
    assert sample(row(0, 3, 3, 1), SamplingParams(), 0, 0) == 1
    assert sample(row(0, 3, 3, 1), SamplingParams(temperature=2.0, top_k=1), 5, 9) == 1


def plain(
    values: Logits, params: SamplingParams, index: int, prompt: list[int], answer: list[int]
) -> dict[int, float] | None:
    """The distribution by loops over tokens, step by step as docs/text.md tells it; None where a cut is too close."""
    logits = [float(v) for v in values]
    for token in params.stop_token_ids:
        if index < params.min_new_tokens:
            logits[token] = -math.inf
    for token in {*prompt, *answer}:
        factor = 1 / params.repetition_penalty if logits[token] > 0 else params.repetition_penalty
        logits[token] *= factor
    for token in set(answer):
        logits[token] -= params.presence_penalty + params.frequency_penalty * answer.count(token)
    if params.top_k == 1:
        return {logits.index(max(logits)): 1.0}
    kept = set(range(len(logits)))
    if params.top_k and params.top_k < len(logits):
        least = sorted(logits, reverse=True)[params.top_k - 1]
        if any(0 < abs(v - least) < 1e-4 for v in logits):
            return None
        kept = {t for t in kept if logits[t] >= least}
    best = max(logits)
    mass = {t: math.exp((logits[t] - best) / params.temperature) for t in kept}
    total, reached, nucleus = sum(mass.values()), 0.0, list[float]()
    for weight in sorted(mass.values(), reverse=True):
        if nucleus and abs(reached - params.top_p * total) < 1e-4 * total:
            return None
        if reached >= params.top_p * total:
            break
        nucleus.append(weight)
        reached += weight
    floors = [f for f in (nucleus[-1], params.min_p) if f > 0]
    if any(0 < abs(w - f) < 1e-3 * f for w in mass.values() for f in floors):
        return None
    mass = {t: w for t, w in mass.items() if w >= max(floors, default=0.0)}
    return {t: w / sum(mass.values()) for t, w in mass.items()}


tokens = st.lists(st.integers(0, 11), max_size=8)


@given(
    arrays(np.float32, 12, elements=st.floats(-8, 8, width=16)),
    st.builds(
        SamplingParams,
        temperature=st.floats(0.05, 5),
        top_k=st.integers(0, 14),
        top_p=st.floats(0.01, 1) | st.just(1.0),
        min_p=st.floats(0, 1) | st.just(0.0),
        repetition_penalty=st.floats(0.5, 2) | st.just(1.0),
        presence_penalty=st.floats(-2, 2) | st.just(0.0),
        frequency_penalty=st.floats(-2, 2) | st.just(0.0),
        min_new_tokens=st.integers(0, 8),
        stop_token_ids=st.just((3, 7)),
    ),
    tokens,
    tokens,
    seeds,
)
def test_against_a_plain_implementation(
    values: Logits, params: SamplingParams, prompt: list[int], answer: list[int], seed: int
) -> None:
    index, history = len(answer), TokenHistory(prompt, answer)
    expected = plain(values, params, index, prompt, answer)
    assume(expected is not None)
    assert expected is not None
    found = distribution(values, params, index, history)
    assert found == pytest.approx([expected.get(t, 0.0) for t in range(12)], abs=1e-5)
    token = sample(values, params, seed, index, history)
    assert found[token] > 0
    assert token == sample(values.copy(), params, seed, index, TokenHistory(prompt, answer))
    assert sample(values, replace(params, temperature=0.0), seed, index, history) == int(
        np.argmax(adjusted(values, params, index, history))
    )


HOT = SamplingParams(temperature=0.7)
SPREAD = row(2.0, 1.0, 0.0, -1.0, 0.5, 1.8, -0.3, 0.9)


@pytest.mark.parametrize(
    "params",
    [
        HOT,
        replace(HOT, temperature=2.5),
        replace(HOT, top_k=4),
        replace(HOT, top_p=0.8),
        replace(HOT, min_p=0.2),
        replace(HOT, repetition_penalty=1.4, presence_penalty=0.3, frequency_penalty=-0.2),
        replace(HOT, temperature=1.3, top_k=6, top_p=0.9, min_p=0.05, repetition_penalty=0.8),
    ],
)
def test_frequencies_follow_the_distribution(params: SamplingParams) -> None:
    """Pearson's chi-squared over 10,000 draws with fixed noise, so it gives the same answer every time. At alpha 1e-4
    it rejects a distribution that is wrong by 0.04 in one token's probability with power above 0.99 (noncentrality
    of at least 10000 * 0.04^2 * 4 = 64 at up to 7 degrees of freedom, where the bound is 29.9).
    """
    count, history = 10_000, TokenHistory((0, 3), (3, 5, 5))
    expected = distribution(SPREAD, params, 3, history)
    drawn = np.zeros(len(SPREAD))
    for index in range(count):
        drawn[sample(SPREAD, params, 1234, index, history)] += 1
    possible = expected > 0
    assert drawn[~possible].sum() == 0
    chi2 = float(((drawn - expected * count)[possible] ** 2 / (expected * count)[possible]).sum())
    assert chi2 < {3: 21.1, 4: 23.5, 5: 25.7, 6: 27.9, 7: 29.9}.get(int(possible.sum()) - 1, 29.9)


def test_seeds_are_independent() -> None:
    """Correlation of the noise of neighbouring seeds and places, 4,000 pairs each: below 5 standard errors."""
    numbers = np.array([[uniforms(seed, index, 0, 1)[0] for index in range(65)] for seed in range(65)])
    for a, b in ((numbers[:-1, :-1], numbers[1:, :-1]), (numbers[:-1, :-1], numbers[:-1, 1:])):
        assert abs(float(np.corrcoef(a.ravel(), b.ravel())[0, 1])) < 5 / 64


def test_top_p_renormalises_what_it_leaves() -> None:
    values = np.log(row(0.5, 0.3, 0.15, 0.05))
    drawn = {sample(values, SamplingParams(temperature=1.0, top_p=0.79), 3, i) for i in range(300)}
    assert drawn == {0, 1}


def test_tokens_that_tie_with_the_last_one_kept_are_kept() -> None:
    values = row(1, 5, 5, 5, 0)
    for params in (SamplingParams(temperature=1.0, top_k=2), SamplingParams(temperature=1.0, top_p=0.5)):
        assert {sample(values, params, 3, i) for i in range(100)} == {1, 2, 3}


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 30.0])
@pytest.mark.parametrize("top_p", [0.001, 0.5, 0.95, 0.9999, 1.0 - 1e-12])
def test_top_p_of_a_large_vocabulary(spread: float, top_p: float, rng: np.random.Generator) -> None:
    """The nucleus is found without sorting everything; here against a sort."""
    values = (spread * rng.standard_normal(20_000)).round(2).astype(np.float32)
    found = np.flatnonzero(distribution(values, SamplingParams(temperature=1.0, top_p=top_p)))
    weights = np.exp(values.astype(np.float64) - values.max())
    ordered = np.sort(weights)[::-1]
    place = min(int(np.searchsorted(np.cumsum(ordered), top_p * weights.sum())), len(ordered) - 1)
    expected = np.flatnonzero((weights >= ordered[place]) & (weights > 0))
    border = np.abs(np.cumsum(ordered)[place] - top_p * weights.sum()) < 1e-9 * weights.sum()
    assert border or found.tolist() == expected.tolist()


def test_min_p_is_relative_to_the_likeliest() -> None:
    values = np.log(row(0.6, 0.3, 0.06, 0.04))
    assert distribution(values, SamplingParams(temperature=1.0, min_p=0.11)) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert distribution(values, SamplingParams(temperature=1.0, min_p=1.0)).tolist() == [1, 0, 0, 0]


def test_a_stop_token_waits_for_the_minimum() -> None:
    params = SamplingParams(stop_token_ids=(1,), min_new_tokens=2)
    values = row(0, 9, 3)
    assert [sample(values, params, 0, i, None) for i in range(4)] == [2, 2, 1, 1]


def test_greedy_after_penalties() -> None:
    history = TokenHistory((1,), (2, 2))
    values = row(1.0, 1.5, 1.4, -1.0)
    assert sample(values, SamplingParams(repetition_penalty=2.0), 0, 2, history) == 0
    assert sample(values, SamplingParams(presence_penalty=0.3), 0, 2, history) == 1
    assert sample(values, SamplingParams(frequency_penalty=-0.1), 0, 2, history) == 2


def test_a_history_with_drafts_is_its_own() -> None:
    history = TokenHistory((4, 4, 1), (2,))
    longer = history.extended((2, 9, 1))
    assert sorted(history.seen().tolist()) == [1, 2, 4]
    assert sorted(longer.seen().tolist()) == [1, 2, 4, 9]
    assert dict(zip(*map(np.ndarray.tolist, longer.counts()), strict=True)) == {2: 2, 9: 1, 1: 1}
    assert (len(history), len(longer)) == (1, 4)


def test_extreme_parameters_stay_finite() -> None:
    values = row(3.0, -2.0, 0.0, 1.0)
    for penalty in (1e-300, 1e300):
        params = SamplingParams(temperature=1e-300, repetition_penalty=penalty)
        assert np.isfinite(distribution(values, params, 0, TokenHistory((0, 1, 2)))).all()
    assert distribution(values, SamplingParams(temperature=1e300)) == pytest.approx([0.25] * 4)


def test_logprobs_are_of_the_raw_logits() -> None:
    values = row(1.0, 3.0, 3.0, -2.0)
    exact = values.astype(np.float64) - np.log(np.exp(values.astype(np.float64)).sum())
    found = token_logprobs(values, 0, 3)
    assert (found.token, [t for t, _ in found.top]) == (0, [1, 2, 0])
    assert [found.logprob, *(v for _, v in found.top)] == pytest.approx(exact[[0, 1, 2, 0]], abs=1e-6)
    assert token_logprobs(values, 3, 0).top == ()
    assert len(token_logprobs(values, 3, 64).top) == 4


def test_noise_is_a_function_of_seed_index_and_lane() -> None:
    places = [(seed, index, lane) for seed in range(9) for index in range(9) for lane in range(3)]
    numbers = np.concatenate([uniforms(*place, 64) for place in places])
    assert len(set(numbers.tolist())) == len(numbers)
    assert (numbers >= 0).all()
    assert (numbers < 1).all()
    assert abs(float(numbers.mean()) - 0.5) < 5 / math.sqrt(12 * len(numbers))
    assert uniforms(7, 3, 1, 8).tolist() == uniforms(7, 3, 1, 64)[:8].tolist()


def test_derived_seeds_differ_and_fit() -> None:
    seeds = {derived_seed(engine, number) for engine in range(10) for number in range(100)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("bad", [row(1, np.nan, 0), row(np.inf, 0, 0), row(-np.inf, -np.inf, -np.inf)])
def test_logits_that_are_not_finite_are_an_error(bad: Logits) -> None:
    with pytest.raises(EngineError, match="not finite"):
        sample(bad, SamplingParams(temperature=1.0), 0, 0)
