"""On a GPU: with `batch_invariant` rows have the same bits in any batch, kernel by kernel and through a model; greedy
speculation then gives the very tokens of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from dsv4_kernels.registry import Case, KernelSpec, specs
from dsv4_kernels.testing.batches import ROWS, cases_of, check_rows

from dsv4lab.checkpoint.draft import random_draft_weights
from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.drafters import make_drafter
from dsv4lab.engine.request import SamplingParams
from dsv4lab.engine.runner import Runner
from dsv4lab.engine.speculation import DraftRequest, Speculator
from dsv4lab.kv.metadata import BatchItem

pytestmark = pytest.mark.gpu

SIZES = (1, 3, 8, 17, 40)
CASES = [(specs()[name], case) for name in ROWS for case in cases_of(specs()[name])]
MODEL = replace(preset("demo"), compress_ratios=(0, 4, 128, 4), num_hash_layers=1, mtp_layers=1)
GREEDY, DRAFTS, NEW, PAGES = SamplingParams(), 3, 140, 2
LENGTHS = (119, 5, 130, 61)
FIELDS: dict[str, Any] = {"device": "hip" if torch.version.hip else "cuda", "dtype": "bfloat16"}


def text(seed: int, length: int) -> tuple[int, ...]:
    return tuple(torch.randint(2, MODEL.vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


TEXTS = {slot: text(slot, LENGTHS[slot % len(LENGTHS)]) for slot in range(1, max(SIZES) + 1)}


def make(slots: int, drafts: int = 0, **fields: Any) -> Runner:
    config = EngineConfig(
        "demo",
        max_running_requests=slots,
        max_total_tokens=slots * PAGES * 256,
        verify_tokens=drafts + 1,
        batch_invariant=True,
        **{**FIELDS, **fields},
    )
    return Runner(MODEL, random_weights(MODEL, 0, torch.bfloat16), config)


def item(slot: int, start: int, tokens: Sequence[int]) -> BatchItem:
    return BatchItem(slot, tuple(range(1 + (slot - 1) * PAGES, 1 + slot * PAGES)), start, tuple(tokens))


def prefill(runner: Runner, slot: int) -> int:
    """The first new token of a request that is prefilled alone."""
    runner.reset_slot(slot)
    return int(runner.forward([item(slot, 0, TEXTS[slot])], "prefill").logits[0].argmax())


def plain(runner: Runner, slots: Sequence[int], new: int) -> dict[int, list[int]]:
    """Greedy continuations, decoded in one batch."""
    out = {slot: [prefill(runner, slot)] for slot in slots}
    for i in range(new - 1):
        items = [item(s, len(TEXTS[s]) + i, out[s][-1:]) for s in slots]
        for slot, row in zip(slots, runner.forward(items, "decode").logits, strict=True):
            out[slot].append(int(row.argmax()))
    return out


def speculated(runner: Runner, slots: Sequence[int], new: int) -> tuple[dict[int, list[int]], float]:
    """The same with a drafter of random weights, and how many drafts were accepted a step."""
    drafter = make_drafter(MODEL, "mtp", random_draft_weights(MODEL, "mtp", 1, torch.bfloat16), DRAFTS, runner)
    speculator, out = Speculator(runner, drafter), {}
    for slot in slots:
        out[slot] = [prefill(runner, slot)]
        speculator.observe_prefill([item(slot, 0, TEXTS[slot])], out[slot])
    while running := [slot for slot in slots if len(out[slot]) < new]:
        asked = [
            DraftRequest(item(s, len(TEXTS[s]) + len(out[s]) - 1, out[s][-1:]), GREEDY, 0, len(out[s])) for s in running
        ]
        for slot, tokens in zip(running, speculator.decode(asked)[0], strict=True):
            out[slot] += tokens
    return {slot: tokens[:new] for slot, tokens in out.items()}, speculator.stats.accepted_per_step


@pytest.mark.parametrize(("spec", "case"), CASES, ids=lambda value: str(getattr(value, "name", value)))
def test_rows_of_a_kernel_have_the_same_bits_in_any_batch(spec: KernelSpec, case: Case) -> None:
    assert check_rows(spec, case, torch.device("cuda"), SIZES) == []


@pytest.mark.parametrize("graphs", [True, False])
def test_a_request_has_the_same_bits_in_any_batch(graphs: bool) -> None:
    runner = make(max(SIZES), graphs=graphs)
    logits: dict[int, torch.Tensor] = {}
    for size in SIZES:
        slots = range(1, size + 1)
        for slot in slots:
            prefill(runner, slot)
        rows = runner.forward([item(s, len(TEXTS[s]), (7,)) for s in slots], "decode").logits
        for slot, row in zip(slots, rows, strict=True):
            assert torch.equal(row, logits.setdefault(slot, row)), f"slot {slot} in a batch of {size}"


def test_prompts_have_the_same_bits_in_any_batch() -> None:
    runner = make(4)
    alone = []
    for slot in (1, 2, 3, 4):
        runner.reset_slot(slot)
        alone.append(runner.forward([item(slot, 0, TEXTS[slot])], "prefill").logits[0])
        runner.reset_slot(slot)
    together = runner.forward([item(slot, 0, TEXTS[slot]) for slot in (1, 2, 3, 4)], "prefill").logits
    assert torch.equal(together, torch.stack(alone))


@pytest.mark.parametrize("kv", ["auto", "fp8"])
def test_greedy_speculation_gives_the_tokens_of_plain_decoding(kv: str) -> None:
    """Across 4-, 128- and page boundaries, in batches and alone; random drafts, nearly all of them rejected."""
    slots = (1, 2, 3, 4)
    expected = plain(make(4, kv_cache_dtype=kv), slots, NEW)
    assert plain(make(4, kv_cache_dtype=kv), slots[:1], NEW)[1] == expected[1]
    found, accepted = speculated(make(4, DRAFTS, kv_cache_dtype=kv), slots, NEW)
    assert found == expected
    assert accepted < DRAFTS
