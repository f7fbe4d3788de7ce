"""Penalties, cuts and forced length inside verification: the tokens are distributed as those of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dsv4lab.engine.penalties import TokenHistory
from dsv4lab.engine.request import SamplingParams
from dsv4lab.engine.sampler import distribution, sample
from dsv4lab.engine.speculation import DraftRequest, Speculator
from dsv4lab.kv.metadata import BatchItem
from dsv4lab.spec.draft import Anchor, Choose, Proposal, greedy_choice

V, DRAFTS = 5, 2
_RNG = np.random.default_rng(5)
TARGET = (1.5 * _RNG.standard_normal((V, V))).astype(np.float32)
DRAFT = (TARGET + 1.5 * _RNG.standard_normal((V, V))).astype(np.float32)
PROMPT = (0, 3, 1)
HOT = SamplingParams(temperature=0.9)
PARAMS = [
    replace(HOT, repetition_penalty=1.5, presence_penalty=0.7, frequency_penalty=0.5),
    replace(HOT, repetition_penalty=1.2, top_k=4, top_p=0.9, min_p=0.05, stop_token_ids=(2,), min_new_tokens=2),
]


class ToyRunner:
    """A target whose logits depend on the last token alone."""

    pool = SimpleNamespace(forget_rejected=lambda *_: None)

    def forward(self, items: Sequence[BatchItem], mode: str, *, all_rows: bool) -> Any:
        assert (mode, all_rows) == ("decode", True)
        rows = TARGET[[t for item in items for t in item.tokens]]
        return SimpleNamespace(likeliest=None, logits=torch.from_numpy(rows))

    def hidden_rows(self, tokens: int) -> torch.Tensor:
        return torch.zeros(tokens, 1, 1)


class ToyDrafter:
    """Proposes from a table of its own."""

    drafts = DRAFTS

    def observe(self, committed: Any) -> None:
        pass

    def propose(self, anchors: Sequence[Anchor], choose: Choose | None) -> Proposal:
        rows = []
        for request, anchor in enumerate(anchors):
            tokens = [anchor.token]
            for place in range(DRAFTS):
                tokens.append((choose or greedy_choice)(request, place, DRAFT[tokens[-1]]))
            rows.append(tuple(tokens[1:]))
        return Proposal(tuple(rows), np.zeros((len(anchors), DRAFTS, V), np.float32))


def speculate(speculator: Speculator, params: SamplingParams, seed: int, new: int) -> list[int]:
    answer: list[int] = []
    while len(answer) < new:
        known = (*PROMPT, *answer)
        item = BatchItem(1, (1,), len(known) - 1, (known[-1],))
        request = DraftRequest(item, params, seed, len(answer), TokenHistory(PROMPT, answer))
        answer += speculator.decode([request])[0][0]
    return answer[:new]


@pytest.mark.parametrize("method", ["chain", "block"])
@pytest.mark.parametrize("params", PARAMS)
def test_sampling_keeps_the_target(params: SamplingParams, method: str) -> None:
    """Pearson's chi-squared over the first two tokens, 2,000 runs with fixed seeds. Alpha 1e-4 by the bound; a pair
    whose probability is off by 0.06 is found with power above 0.95 (noncentrality at least 2000 * 0.06^2 * 4 = 29
    at up to 24 degrees of freedom, where in truth few pairs are likely and the noncentrality is far larger).
    """
    expected = np.zeros((V, V))
    for a, p in enumerate(distribution(TARGET[PROMPT[-1]], params, 0, TokenHistory(PROMPT))):
        if p > 0:
            expected[a] = p * distribution(TARGET[a], params, 1, TokenHistory(PROMPT, (a,)))
    speculator = Speculator(ToyRunner(), ToyDrafter(), method)  # type: ignore[arg-type]
    runs, counts = 2_000, np.zeros((V, V))
    for seed in range(runs):
        counts[tuple(speculate(speculator, params, seed, 2))] += 1
    assert counts[expected == 0].sum() == 0
    possible = expected * runs >= 5
    chi2 = float(((counts - expected * runs)[possible] ** 2 / (expected * runs)[possible]).sum())
    degrees = int(possible.sum())
    assert chi2 < degrees + 3.72 * np.sqrt(2 * degrees) + 9.2  # the 1 - 1e-4 quantile within 0.5 for 4 to 24 degrees
    assert 0.3 < speculator.stats.accepted_per_step < DRAFTS


@pytest.mark.parametrize("params", PARAMS)
def test_greedy_tokens_are_those_of_plain_decoding(params: SamplingParams) -> None:
    params = replace(params, temperature=0.0)
    answer: list[int] = []
    for index in range(40):
        last = (*PROMPT, *answer)[-1]
        answer.append(sample(TARGET[last], params, 0, index, TokenHistory(PROMPT, answer)))
    speculator = Speculator(ToyRunner(), ToyDrafter())  # type: ignore[arg-type]
    assert speculate(speculator, params, 0, 40) == answer
    assert len(set(answer)) > 1


@pytest.mark.parametrize("params", [HOT, *PARAMS])
def test_coupled_tokens_are_those_of_plain_sampling(params: SamplingParams) -> None:
    """Token by token, whatever the drafts were; and as many are accepted as the coupling promises."""
    speculator = Speculator(ToyRunner(), ToyDrafter(), "coupled")  # type: ignore[arg-type]
    for seed in range(20):
        answer: list[int] = []
        for index in range(30):
            last = (*PROMPT, *answer)[-1]
            answer.append(sample(TARGET[last], params, seed, index, TokenHistory(PROMPT, answer)))
        assert speculate(speculator, params, seed, 30) == answer
    rate = speculator.stats.rate_by_place()
    assert rate[0] > 0.35


def test_equal_distributions_are_coupled_without_a_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "DRAFT", TARGET)
    speculator = Speculator(ToyRunner(), ToyDrafter(), "coupled")  # type: ignore[arg-type]
    speculate(speculator, PARAMS[0], 3, 40)
    assert speculator.stats.rate_by_place() == (1.0, 1.0)
