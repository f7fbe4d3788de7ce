"""Verify steps: k tokens of a request in one decode forward equal k single ones, and rejected ones leave no trace."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.runner import Runner
from dsv4lab.errors import PoolError
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.metadata import BatchItem

MODEL = preset("tiny")
PAGES = {1: (2, 4), 2: (3, 6)}
BEGIN, LENGTH = 118, 266


def make_runner(k: int, **changes: Any) -> Runner:
    fields: dict[str, Any] = {"streams": "serial", "max_running_requests": 3, "max_total_tokens": 2048, **changes}
    return Runner(MODEL, random_weights(MODEL, 0), EngineConfig("tiny", verify_tokens=k, **fields))


def tokens(seed: int, n: int) -> tuple[int, ...]:
    return tuple(torch.randint(2, MODEL.vocab_size, (n,), generator=torch.Generator().manual_seed(seed)).tolist())


TEXTS = {1: tokens(1, LENGTH), 2: tokens(2, LENGTH)}


@pytest.fixture(scope="module")
def one_by_one() -> dict[int, torch.Tensor]:
    """Logits of every position from BEGIN on, each request alone, token by token."""
    runner, out = make_runner(1), {}
    for slot, text in TEXTS.items():
        runner.reset_slot(slot)
        runner.forward([BatchItem(slot, PAGES[slot], 0, text[:BEGIN])], "prefill")
        rows = [runner.forward([item(slot, p, 1)], "decode").logits for p in range(BEGIN, LENGTH)]
        out[slot] = torch.cat(rows)
    return out


def item(slot: int, start: int, count: int, drafts: tuple[int, ...] | None = None) -> BatchItem:
    """``count`` tokens of the true text, or ``drafts``."""
    return BatchItem(slot, PAGES[slot], start, TEXTS[slot][start : start + count] if drafts is None else drafts)


def close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool(((got - expected).abs() < 1e-4).all())


@pytest.mark.parametrize("k", [2, 4, 6, 7])
def test_rings_are_as_large_as_the_spec_says(k: int) -> None:
    g = make_runner(k).geometry
    assert g.ring_rows == 128 + k - 1
    assert (g.state4_ring, g.state128_ring) == ((8, 128) if k == 2 else (16, 256))
    assert g.max_verify_tokens == k


@pytest.mark.parametrize("k", [2, 4, 6, 7])
def test_verify_equals_token_by_token(one_by_one: dict[int, torch.Tensor], k: int) -> None:
    """Every token accepted; both requests in one forward, at their own positions, across 4, 128 and 256 boundaries."""
    runner = make_runner(k)
    for slot in TEXTS:
        runner.reset_slot(slot)
        runner.forward([BatchItem(slot, PAGES[slot], 0, TEXTS[slot][:BEGIN])], "prefill")
    at = {1: BEGIN, 2: BEGIN}
    while at[1] + k <= LENGTH and at[2] + k <= LENGTH:
        widths = {1: k, 2: 1 + (at[2] * 7) % k}  # ragged: any width up to k
        logits = runner.all_logits([item(s, at[s], widths[s]) for s in (1, 2)], "decode")
        for slot, part in zip((1, 2), logits.split([widths[1], widths[2]]), strict=True):
            first = at[slot] - BEGIN
            assert close(part, one_by_one[slot][first : first + widths[slot]]), f"slot {slot} at {at[slot]}"
            at[slot] += widths[slot]


@pytest.mark.parametrize("layout", ["unified", "three_pool"])
@pytest.mark.parametrize("k", [2, 4, 6, 7])
def test_rejected_tokens_leave_no_trace(one_by_one: dict[int, torch.Tensor], k: int, layout: str) -> None:
    """Random drafts: the first token is right, the others are wrong from a random place on and rolled back."""
    form = {} if layout == "unified" else {"kv_layout": layout}
    runner, rng = make_runner(k, **form), random.Random(k)
    plain = one_by_one if layout == "unified" else None
    if plain is None:
        reference = make_runner(1, **form)
        reference.forward([item(1, 0, BEGIN)], "prefill")
        plain = {1: torch.cat([reference.forward([item(1, p, 1)], "decode").logits for p in range(BEGIN, LENGTH)])}
    runner.forward([item(1, 0, BEGIN)], "prefill")
    at, rejected = BEGIN, 0
    while at + k <= LENGTH:
        good = rng.randint(1, k)
        wrong = tuple((t + 1 + rng.randrange(500)) % 512 for t in TEXTS[1][at + good : at + k])
        logits = runner.all_logits([item(1, at, k, TEXTS[1][at : at + good] + wrong)], "decode")
        assert close(logits[:good], plain[1][at - BEGIN : at - BEGIN + good]), f"position {at}, {good} of {k} accepted"
        runner.pool.forget_rejected(1, at + good, at + k)
        rejected += k - good
        at += good
    assert rejected > 20


@pytest.mark.parametrize("k", [2, 7])
def test_rejected_rows_are_harmless_whatever_they_hold(one_by_one: dict[int, torch.Tensor], k: int) -> None:
    """NaN in every row that only a rejected token wrote: nothing ever reads it."""
    runner = make_runner(k)
    runner.forward([item(1, 0, BEGIN)], "prefill")
    at, g = BEGIN, runner.geometry
    while at + k <= BEGIN + 60:
        logits = runner.all_logits([item(1, at, k)], "decode")
        assert close(logits, one_by_one[1][at - BEGIN : at - BEGIN + k])
        for p in range(at + 1, at + k):
            for layer, ratio in enumerate(g.compress_ratios):
                runner.pool.unified[layer][g.ring_row(1, p)] = float("nan")
                for state in (runner.pool.state[layer], runner.pool.index_state[layer]):
                    if state is not None:
                        state[g.state_row(1, p, ratio)] = float("nan")
                if ratio and (p + 1) % ratio == 0:
                    runner.pool.unified[layer][g.compressed_row(PAGES[1], p // ratio, ratio)] = float("nan")
        at += 1
    runner.pool.check_live(1, PAGES[1], at)


def test_forgetting_clears_the_ratio_128_state_of_rejected_tokens_alone() -> None:
    runner = make_runner(4)
    pool, g = runner.pool, runner.geometry
    layer = g.compress_ratios.index(128)
    runner.forward([item(1, 0, 126)], "prefill")
    runner.forward([item(1, 126, 4)], "decode")
    before = {name: [t.clone() for t in tensors] for name, tensors in pool.resources().items()}
    pool.forget_rejected(1, 127, 130)
    state = pool.state[layer]
    assert state is not None
    half = state.shape[1] // 2
    for p in range(127, 130):
        row = state[g.state_row(1, p, 128)]
        assert not row[:half].any()
        assert bool((row[half:] == -torch.inf).all())
    for name, tensors in pool.resources().items():
        for now, old in zip(tensors, before[name], strict=True):
            changed = (now != old).any(-1).nonzero().flatten().tolist()
            assert changed == ([g.state_row(1, p, 128) for p in range(127, 130)] if name == f"state.{layer}" else [])
    pool.forget_rejected(1, 130, 130)
    for committed, written in ((131, 130), (-1, 3)):
        with pytest.raises(PoolError, match=f"slot 1: {committed} tokens committed of {written} written"):
            pool.forget_rejected(1, committed, written)


@pytest.fixture
def plain_runner() -> Iterator[Runner]:
    runner = make_runner(1)
    yield runner
    runner.close()


def test_without_speculation_a_wide_step_is_refused(plain_runner: Runner) -> None:
    plain_runner.forward([item(1, 0, BEGIN)], "prefill")
    with pytest.raises(PoolError, match="has 3 tokens; these rings take at most 1 to a request and step"):
        plain_runner.forward([item(1, BEGIN, 3)], "decode")
    assert Geometry.plan(MODEL, 1, 256).max_verify_tokens == 1


@pytest.mark.parametrize("k", [2, 4, 7])
def test_a_verify_step_in_a_mixed_forward_is_rolled_back_too(one_by_one: dict[int, torch.Tensor], k: int) -> None:
    """Beside a prefill chunk, in prefill mode: one token stands, at every place around a 128-boundary."""
    for begin in range(123, 129):
        runner = make_runner(k)
        runner.forward([item(1, 0, begin)], "prefill")
        runner.reset_slot(2)
        wrong = tuple((t + 1) % 512 for t in TEXTS[1][begin + 1 : begin + k])
        items = [item(1, begin, k, (TEXTS[1][begin], *wrong)), item(2, 0, 40)]
        logits = runner.forward(items, "prefill", wide_items=1).logits
        assert logits.shape[0] == k + 1
        assert close(logits[0], one_by_one[1][begin - BEGIN])
        runner.pool.forget_rejected(1, begin + 1, begin + k)
        for p in range(begin + 1, 133):
            row = runner.forward([item(1, p, 1)], "decode").logits[0]
            assert close(row, one_by_one[1][p - BEGIN]), f"{k} tokens at {begin}, then {p}"
