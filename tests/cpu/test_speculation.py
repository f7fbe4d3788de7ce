"""Speculation against plain decoding, token by token, in fp32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from dsv4lab.checkpoint.draft import DraftKind, detect_draft_kind, expected_draft_tensors, random_draft_weights
from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.drafters import draft_tokens, make_drafter, target_taps
from dsv4lab.engine.factory import build
from dsv4lab.engine.request import SamplingParams
from dsv4lab.engine.runner import Runner
from dsv4lab.engine.speculation import DraftRequest, Speculator
from dsv4lab.errors import ConfigError
from dsv4lab.kv.metadata import BatchItem
from dsv4lab.kv.pool import KvPool
from dsv4lab.spec.draft import Anchor, Choose, Committed, Drafter, Proposal, greedy_choice

MODEL = preset("tiny")
GREEDY = SamplingParams()
NEW = 512


def make(kind: DraftKind, width: int) -> tuple[Runner, Drafter]:
    config = EngineConfig("tiny", streams="serial", max_running_requests=3, max_total_tokens=4096, verify_tokens=width)
    runner = Runner(MODEL, random_weights(MODEL, 0), config, target_taps(MODEL, kind))
    return runner, make_drafter(MODEL, kind, random_draft_weights(MODEL, kind, 7), width - 1, runner)


class Oracle:
    """Drafts the true continuation, wrong at places that depend on position: acceptance of every length occurs."""

    def __init__(self, inner: Drafter, truth: Callable[[int, int], int]) -> None:
        self._inner, self._truth = inner, truth

    @property
    def drafts(self) -> int:
        return self._inner.drafts

    @property
    def pool(self) -> KvPool:
        return self._inner.pool

    def observe(self, committed: Sequence[Committed]) -> None:
        self._inner.observe(committed)

    def propose(self, anchors: Sequence[Anchor], choose: Choose | None) -> Proposal:
        real = self._inner.propose(anchors, choose)
        tokens = []
        for a in anchors:
            right = [self._truth(a.slot, a.position + 1 + i) for i in range(self.drafts)]
            wrong = int(np.random.default_rng([a.position, a.slot]).integers(self.drafts + 1))
            tokens.append(tuple((t + 1) % MODEL.vocab_size if i == wrong else t for i, t in enumerate(right)))
        return Proposal(tuple(tokens), real.logits)


def prompt(seed: int, n: int) -> tuple[int, ...]:
    return tuple(torch.randint(2, MODEL.vocab_size, (n,), generator=torch.Generator().manual_seed(seed)).tolist())


PROMPTS = {1: prompt(1, 119), 2: prompt(2, 5)}
PAGES = {1: (1, 2, 3), 2: (6, 5, 4)}


@pytest.fixture(scope="module")
def plain() -> dict[int, list[int]]:
    """Greedy continuations, each request decoded alone."""
    runner = Runner(MODEL, random_weights(MODEL, 0), EngineConfig("tiny", streams="serial", max_total_tokens=4096))
    texts = {}
    for slot, tokens in PROMPTS.items():
        text = list(tokens)
        logits = runner.forward([BatchItem(slot, PAGES[slot], 0, tokens)], "prefill").logits
        while len(text) < len(tokens) + NEW + 8:
            text.append(int(logits[0].argmax()))
            logits = runner.forward([BatchItem(slot, PAGES[slot], len(text) - 1, (text[-1],))], "decode").logits
        texts[slot] = text
    return texts


def speculate(
    runner: Runner, drafter: Drafter, slots: Sequence[int], new: int
) -> tuple[dict[int, list[int]], Speculator]:
    """Greedy speculation of several requests in one batch; a prompt is prefilled in two chunks."""
    speculator = Speculator(runner, drafter)
    texts = {slot: list(PROMPTS[slot]) for slot in slots}
    for slot in slots:
        runner.reset_slot(slot)
        cut = len(PROMPTS[slot]) // 2
        for start, stop in ((0, cut), (cut, len(PROMPTS[slot]))):
            item = BatchItem(slot, PAGES[slot], start, PROMPTS[slot][start:stop])
            logits = runner.forward([item], "prefill").logits
            if stop == len(PROMPTS[slot]):
                texts[slot].append(int(logits[0].argmax()))
            speculator.observe_prefill([item], [texts[slot][stop]])
    while True:
        running = [s for s in slots if len(texts[s]) < len(PROMPTS[s]) + new]
        if not running:
            return texts, speculator
        requests = [
            DraftRequest(BatchItem(s, PAGES[s], len(texts[s]) - 1, (texts[s][-1],)), GREEDY, 0, len(texts[s]))
            for s in running
        ]
        for s, tokens in zip(running, speculator.decode(requests)[0], strict=True):
            texts[s] += tokens


@pytest.mark.parametrize("kind", ["mtp", "dspark"])
@pytest.mark.parametrize("width", [2, 4, 6, 7])
def test_greedy_speculation_equals_plain_greedy(plain: dict[int, list[int]], kind: DraftKind, width: int) -> None:
    """512 tokens across 4-, 128- and page boundaries, forced rejections at every place, two requests in one batch."""
    runner, inner = make(kind, width)
    drafter = Oracle(inner, lambda slot, position: plain[slot][position])
    texts, speculator = speculate(runner, drafter, (1, 2), NEW)
    for slot, text in texts.items():
        stop = len(PROMPTS[slot]) + NEW
        assert text[:stop] == plain[slot][:stop]
    assert set(speculator.stats.by_accepted) == set(range(width))
    assert 0 < speculator.stats.accepted_per_step < width - 1


def test_a_dspark_block_may_be_longer_than_the_models(plain: dict[int, list[int]]) -> None:
    config = EngineConfig("tiny", streams="serial", max_total_tokens=4096, speculative="dspark", draft_block=9)
    runner, model, drafter = build(config, lambda stage: None, None)
    assert drafter is not None
    assert model.dspark is not None
    assert (drafter.drafts, model.dspark.block_size, runner.geometry.max_verify_tokens) == (9, 9, 10)
    texts, _ = speculate(runner, drafter, (2,), 40)
    assert texts[2][:45] == plain[2][:45]
    with pytest.raises(ConfigError, match="draft_tokens = 10: a DSpark block of tiny holds 9"):
        build(replace(config, draft_tokens=10), lambda stage: None, None)
    with pytest.raises(ConfigError, match="draft_block: got 9, expected null unless speculative is dspark"):
        EngineConfig("tiny", speculative="mtp", draft_block=9)


@pytest.mark.parametrize("kind", ["mtp", "dspark"])
def test_the_real_drafter_on_random_weights(plain: dict[int, list[int]], kind: DraftKind) -> None:
    runner, drafter = make(kind, 4)
    texts, speculator = speculate(runner, drafter, (2,), 130)
    assert texts[2][:135] == plain[2][:135]
    assert speculator.stats.steps > 0


@pytest.mark.parametrize("kind", ["mtp", "dspark"])
def test_a_drafter_does_not_depend_on_how_tokens_were_observed(kind: DraftKind) -> None:
    """In one chunk, in pieces, or beside another request: the same proposal."""
    runner, _ = make(kind, 4)
    tokens = prompt(9, 241)
    width = 4 if kind == "mtp" else 3
    hidden = torch.randn(240, width, MODEL.hidden_size, generator=torch.Generator().manual_seed(3))
    proposals = []
    for cuts in ((0, 240), (0, 1, 7, 130, 131, 140, 239, 240)):
        drafter = make_drafter(MODEL, kind, random_draft_weights(MODEL, kind, 7), 3, runner)
        for a, b in pairwise(cuts):
            other = Committed(2, (4, 5), a, tokens[a + 1 : b + 1], hidden[a:b].flip(0))
            drafter.observe([other, Committed(1, (1, 2), a, tokens[a + 1 : b + 1], hidden[a:b])])
        proposals.append(drafter.propose([Anchor(1, (1, 2), 240, tokens[240])], greedy_choice))
    assert proposals[0].tokens == proposals[1].tokens
    assert np.abs(proposals[0].logits - proposals[1].logits).max() < 1e-4


def test_a_dspark_block_sees_itself_and_just_the_window_before_it() -> None:
    """Later tokens of the block move the first one's logits; positions before P - 128 do not."""
    runner, _ = make("dspark", 4)
    tokens = prompt(9, 301)
    hidden = torch.randn(300, 3, MODEL.hidden_size, generator=torch.Generator().manual_seed(3))

    def first_logits(taps: torch.Tensor, block: int) -> np.ndarray:
        model = replace(MODEL, dspark=replace(MODEL.dspark, block_size=block))  # type: ignore[type-var]
        drafter = make_drafter(model, "dspark", random_draft_weights(MODEL, "dspark", 7), 3, runner)
        drafter.observe([Committed(1, (1, 2), 0, tokens[1:], taps)])
        return drafter.propose([Anchor(1, (1, 2), 300, tokens[300])], greedy_choice).logits[0, 0]  # type: ignore[index]

    base = first_logits(hidden, 6)
    for position, reaches in ((171, False), (172, True), (299, True)):
        changed = hidden.clone()
        changed[position] += 1.0
        assert (np.abs(first_logits(changed, 6) - base).max() > 1e-6) == reaches
    assert np.abs(first_logits(hidden, 5) - base).max() > 1e-6


def test_sampling_is_reproducible_and_follows_the_target() -> None:
    """The first new token of many seeds: its frequencies match the target's own distribution (chi-squared)."""
    runner, drafter = make("mtp", 4)
    params = SamplingParams(temperature=1.0, top_k=6)
    item = BatchItem(1, (1,), 0, PROMPTS[2])
    logits = runner.forward([item], "prefill").logits.numpy()[0]
    first = int(logits.argmax())
    target = runner.forward([BatchItem(1, (1,), 5, (first,))], "decode").logits.numpy()[0]
    from dsv4lab.engine.sampler import distribution

    p = distribution(target, params)
    counts = np.zeros_like(p)
    speculator = Speculator(runner, drafter)
    runs = 400
    for seed in range(runs):
        runner.forward([item], "prefill")
        speculator.observe_prefill([item], [first])
        request = DraftRequest(BatchItem(1, (1,), 5, (first,)), params, seed, 1)
        tokens = speculator.decode([request])[0][0]
        counts[tokens[0]] += 1
        if seed < 3:
            runner.forward([item], "prefill")
            speculator.observe_prefill([item], [first])
            assert speculator.decode([request])[0][0] == tokens
    kept = p > 0
    chi2 = ((counts - p * runs)[kept] ** 2 / (p * runs)[kept]).sum()
    assert counts[~kept].sum() == 0
    assert chi2 < kept.sum() + 7 * np.sqrt(2 * kept.sum())


@pytest.mark.parametrize("kind", ["mtp", "dspark"])
def test_a_checkpoints_names_tell_its_drafter(kind: DraftKind) -> None:
    names = [f"layers.0.{i}" for i in range(3)] + list(expected_draft_tensors(MODEL, kind))
    assert detect_draft_kind(names) == kind
    assert detect_draft_kind(names[:3]) is None


def test_what_a_model_lacks_is_an_error() -> None:
    with pytest.raises(ConfigError, match="speculative 'mtp': model flash carries dspark"):
        expected_draft_tensors(preset("flash"), "mtp")
    with pytest.raises(ConfigError, match="draft_tokens = 9: a DSpark block of tiny holds 6"):
        draft_tokens(MODEL, "dspark", 9)


@pytest.fixture(autouse=True)
def _single_thread() -> None:
    torch.set_num_threads(1)
