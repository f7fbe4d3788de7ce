"""The evidence of pairs keeps its promise at every look, whatever the noise; and there are wrong tests that do not."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats as reference

from dsv4lab.tuning.evidence import confidence_sequence, log_evidence, signed_ranks
from dsv4lab.tuning.ranks import Array

EXPERIMENTS, PAIRS, ALPHA = 3000, 60, 0.01
Draw = Callable[[np.random.Generator, tuple[int, int]], Array]


def most(rate: float, experiments: int) -> int:
    """More events than this has a chance of one in 100,000 at ``rate``."""
    return int(reference.binom.isf(1e-5, experiments, rate))


def clustered(rng: np.random.Generator, size: tuple[int, int]) -> Array:
    """Two places and nothing between them: no normal test survives this."""
    return rng.choice([-1.0, 1.0], size) + rng.normal(0, 0.01, size)


def correlated(rng: np.random.Generator, size: tuple[int, int]) -> Array:
    """Blocks that drift and remember, compared in random order: what a session does."""
    blocks = rng.standard_t(3, (size[0], 2 * size[1]))
    for at in range(1, 2 * size[1]):
        blocks[:, at] += 0.8 * blocks[:, at - 1]
    blocks += np.linspace(0, 50, 2 * size[1])
    found: Array = (blocks[:, 1::2] - blocks[:, ::2]) * rng.choice([-1.0, 1.0], size)
    return found


NOISES: dict[str, Draw] = {
    "normal": lambda rng, size: rng.normal(0, 1, size),
    "cauchy": lambda rng, size: rng.standard_cauchy(size),
    "bursts": lambda rng, size: rng.laplace(0, 1, size) * np.where(np.arange(size[1]) % 10 < 5, 1.0, 30.0),
    "clustered": clustered,
    "correlated": correlated,
}


@pytest.mark.parametrize("noise", NOISES)
def test_evidence_of_nothing_seldom_grows(noise: str, rng: np.random.Generator) -> None:
    values = NOISES[noise](rng, (EXPERIMENTS, PAIRS))
    alarms = np.count_nonzero(log_evidence(values).max(axis=-1) >= math.log(1 / ALPHA))
    assert alarms <= most(ALPHA, EXPERIMENTS)


def test_it_is_a_martingale_by_enumeration() -> None:
    sizes = np.array([3.0, 1.0, 4.0, 1.5, 9.0, 2.0])
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * 6)).reshape(6, -1).T
    wealth = np.exp(log_evidence(signs * sizes))
    assert wealth.mean(axis=0) == pytest.approx(np.ones(6))


def test_looking_at_a_t_test_again_and_again_would_be_caught(rng: np.random.Generator) -> None:
    values = rng.normal(0, 1, (EXPERIMENTS, PAIRS))
    n = np.arange(1, PAIRS + 1)
    mean = np.cumsum(values, axis=1) / n
    variance = np.maximum(np.cumsum(values**2, axis=1) - n * mean**2, 1e-12) / np.maximum(n - 1, 1)
    rejects = np.abs(mean) / np.sqrt(variance / n) > reference.t.isf(ALPHA / 2, np.maximum(n - 1, 1))
    assert np.count_nonzero(rejects[:, 5:].any(axis=1)) > 2 * most(ALPHA, EXPERIMENTS)


@pytest.mark.parametrize(("effect", "pairs"), [(0.5, 120), (1.0, 36), (2.0, 16), (10.0, 10)])
def test_effects_are_seen_soon(effect: float, pairs: int, rng: np.random.Generator) -> None:
    values = rng.normal(effect, 1, (600, pairs))
    seen = np.count_nonzero(log_evidence(values).max(axis=-1) >= math.log(2 / ALPHA))
    assert seen >= reference.binom.ppf(1e-5, 600, 0.9)


def test_heavy_tails_hide_no_effect(rng: np.random.Generator) -> None:
    values = 1.0 + rng.standard_cauchy((600, 110))
    seen = np.count_nonzero(log_evidence(values).max(axis=-1) >= math.log(2 / ALPHA))
    assert seen >= reference.binom.ppf(1e-5, 600, 0.9)


def test_the_confidence_sequence_holds_at_every_look(rng: np.random.Generator) -> None:
    centre, misses, experiments = 0.03, 0, 60
    for _ in range(experiments):
        logs = (centre + 0.02 * rng.standard_t(3, 30)).tolist()
        bounds = [confidence_sequence(logs[:n], 0.1) for n in range(5, 31, 5)]
        misses += any(
            (low is not None and low > centre) or (high is not None and high < centre) for low, high in bounds
        )
    assert misses <= most(0.1, experiments)
    assert all(low is not None and high is not None for low, high in bounds[-2:])


def test_bounds_are_where_the_evidence_turns(rng: np.random.Generator) -> None:
    logs = rng.normal(0.05, 0.02, 40)
    low, high = confidence_sequence(logs.tolist(), 0.01)
    assert low is not None
    assert high is not None
    bar = math.log(200)
    assert log_evidence(logs - (low - 1e-4)).max() >= bar > log_evidence(logs - (low + 1e-4)).max()
    assert log_evidence(high + 1e-4 - logs).max() >= bar > log_evidence(high - 1e-4 - logs).max()
    assert low < 0.05 < high


def test_a_few_pairs_bound_nothing() -> None:
    assert confidence_sequence([], 0.01) == (None, None)
    assert confidence_sequence([-0.1] * 5, 0.01) == (None, None)
    low, high = confidence_sequence([-0.1] * 20, 0.01)
    assert low == pytest.approx(-0.1, abs=1e-5)
    assert high == pytest.approx(-0.1, abs=1e-5)


def test_ranks_by_hand() -> None:
    found = signed_ranks(np.array([3.0, -1.0, 0.0, -5.0, 3.0]))
    assert found.tolist() == pytest.approx([1 / 2, -1 / 3, 0.0, -4 / 5, 3.5 / 6])
