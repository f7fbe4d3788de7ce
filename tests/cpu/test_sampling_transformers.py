"""Our penalties and cuts against transformers' logits processors of the same names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from dsv4lab.engine.penalties import TokenHistory
from dsv4lab.engine.request import SamplingParams
from dsv4lab.engine.sampler import distribution

VOCAB = 200
BASE = SamplingParams(temperature=1.0)
CASES = [
    BASE,
    replace(BASE, temperature=0.6),
    replace(BASE, repetition_penalty=1.3),
    replace(BASE, repetition_penalty=0.7),
    replace(BASE, top_k=1, temperature=1.0),
    replace(BASE, top_k=17),
    replace(BASE, top_k=500),
    replace(BASE, top_p=0.01),
    replace(BASE, top_p=0.9),
    replace(BASE, min_p=0.1),
    replace(BASE, min_p=1.0),
    replace(BASE, temperature=1.7, repetition_penalty=1.2, top_k=50, top_p=0.8, min_p=0.05),
]


def theirs(logits: np.ndarray, params: SamplingParams, tokens: list[int]) -> np.ndarray:
    """As ``generate`` chains them: penalty, temperature, top-k, top-p, min-p."""
    steps = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(params.repetition_penalty)])
    steps.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        steps.append(TopKLogitsWarper(params.top_k))
    steps.append(TopPLogitsWarper(params.top_p))
    steps.append(MinPLogitsWarper(params.min_p))
    scores = steps(torch.tensor([tokens]), torch.from_numpy(logits)[None].clone())
    return torch.softmax(scores[0].double(), -1).numpy()


@pytest.mark.parametrize("params", CASES, ids=str)
def test_same_distribution(params: SamplingParams, rng: np.random.Generator) -> None:
    for _ in range(5):
        logits = (4 * rng.standard_normal(VOCAB)).astype(np.float32)
        prompt, answer = rng.integers(0, VOCAB, 20).tolist(), rng.integers(0, VOCAB, 15).tolist()
        ours = distribution(logits, params, len(answer), TokenHistory(prompt, answer))
        assert ours == pytest.approx(theirs(logits, params, prompt + answer), abs=2e-6)


def test_ties_at_the_edge_of_top_k_are_kept_by_both() -> None:
    logits = np.array([1, 2, 2, 2, 0, -1], np.float32)
    params = replace(BASE, top_k=2)
    assert (distribution(logits, params) > 0).tolist() == (theirs(logits, params, [5]) > 0).tolist()


def test_ties_at_the_edge_of_top_p_are_kept_by_us_and_cut_by_their_sort() -> None:
    logits = np.zeros(8, np.float32)
    params = replace(BASE, top_p=0.5)
    assert (distribution(logits, params) > 0).sum() == 8
    assert (theirs(logits, params, [0]) > 0).sum() == 4
