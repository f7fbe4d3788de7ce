"""Pitfalls 34a to 47 of other implementations: speculation, streams, long contexts, and the scheduler.

docs/pitfalls.md has the list; numbers are those of the specification.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dsv4_kernels.index_topk import cpu as index_topk
from dsv4_kernels.index_topk import index_topk_reference
from dsv4_kernels.moe_route import moe_route_reference
from dsv4_kernels.moe_route.cpu import moe_route_cpu

from dsv4lab.checkpoint.draft import DraftKind, detect_draft_kind, expected_draft_tensors, random_draft_weights
from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.drafters import make_drafter, target_taps
from dsv4lab.engine.request import FinishReason, RequestSpec, SamplingParams
from dsv4lab.engine.runner import Runner
from dsv4lab.engine.scheduler import Scheduler
from dsv4lab.engine.speculation import DraftRequest, Speculator
from dsv4lab.engine.step import Resume
from dsv4lab.errors import ConfigError
from dsv4lab.kv.allocator import Allocator
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.metadata import BatchItem
from dsv4lab.spec.draft import Anchor, greedy_choice
from tests.cpu.tiny import MODEL, decode, gap, prefill, runner_of, text, token_by_token

TOLERANCE = 1e-4
GREEDY = SamplingParams()


def speculating(kind: DraftKind, drafts: int) -> tuple[Runner, Speculator]:
    config = EngineConfig(
        "tiny", streams="serial", max_running_requests=3, max_total_tokens=2048, verify_tokens=drafts + 1
    )
    runner = Runner(MODEL, random_weights(MODEL, 0), config, target_taps(MODEL, kind))
    drafter = make_drafter(MODEL, kind, random_draft_weights(MODEL, kind, 7), drafts, runner)
    runner.speculator = Speculator(runner, drafter)
    return runner, runner.speculator


def greedy(runner: Runner, speculator: Speculator | None, prompt: tuple[int, ...], new: int) -> list[int]:
    """Continue ``prompt`` greedily, with a drafter or without."""
    pages, known = (1, 2, 3), list(prompt)
    runner.reset_slot(1)
    item = BatchItem(1, pages, 0, prompt)
    known.append(int(runner.forward([item], "prefill").logits[0].argmax()))
    if speculator is not None:
        speculator.observe_prefill([item], [known[-1]])
    while len(known) < len(prompt) + new:
        last = BatchItem(1, pages, len(known) - 1, (known[-1],))
        if speculator is None:
            known.append(int(runner.forward([last], "decode").logits[0].argmax()))
        else:
            known += speculator.decode([DraftRequest(last, GREEDY, 0, len(known) - len(prompt))])[0][0]
    return known[len(prompt) : len(prompt) + new]


def test_pitfall_34a_a_restored_state_does_not_diverge_from_the_129th_token_on() -> None:
    """A snapshot put into another slot, then 140 single steps: past the window, past entries of both ratios."""
    runner, tokens = runner_of(), text(5, 400)
    prefill(runner, tokens, 0, 256)
    snapshot = runner.save_slot(1, 256)
    expected = [decode(runner, tokens, p) for p in range(256, 396)]
    runner.reset_slot(2)
    runner.restore_slot(Resume(2, (1,), 256, tokens[256], snapshot))
    for p, row in enumerate(expected, start=256):
        assert torch.equal(decode(runner, tokens, p, slot=2, pages=(1, 7)), row)


@pytest.mark.parametrize("kind", ["mtp", "dspark"])
def test_pitfall_35_two_or_more_drafts_change_no_token(kind: DraftKind) -> None:
    """Drafts of random weights are mostly wrong, so nearly every step is rolled back, across a 128-boundary."""
    prompt = text(5, 120)
    plain = greedy(runner_of(debug_poison=False), None, prompt, 40)
    for drafts in (2, 5):
        runner, speculator = speculating(kind, drafts)
        assert greedy(runner, speculator, prompt, 40) == plain
        assert speculator.stats.steps > 20


def test_pitfall_36_rejected_rows_of_a_ratio_128_ring_are_cleared_and_never_read() -> None:
    """A step of four over position 127 of which one token stands: the entry is made without the others."""
    runner, tokens, truth = runner_of(verify_tokens=4), text(5, 135), token_by_token(5, 135)
    prefill(runner, tokens, stop=125)
    wrong = tuple((t + 1) % MODEL.vocab_size for t in tokens[126:129])
    runner.forward([BatchItem(1, (1, 2, 3), 125, (tokens[125], *wrong))], "decode")
    runner.pool.forget_rejected(1, 126, 129)
    layer = MODEL.compress_ratios.index(128)
    state = runner.pool.state[layer]
    assert state is not None
    half = state.shape[1] // 2
    rows = [runner.geometry.state_row(1, p, 128) for p in (126, 127, 128)]
    assert not state[rows, :half].any()
    assert (state[rows, half:] == -torch.inf).all()
    for p in range(126, 135):
        assert gap(decode(runner, tokens, p), truth[p]) < TOLERANCE


def test_pitfall_37_the_drafter_reads_the_streams_before_they_are_collapsed() -> None:
    runner, _ = speculating("mtp", 3)
    prefill(runner, text(5, 20))
    hidden = runner.hidden_rows(20)
    assert hidden.shape == (20, MODEL.hc_mult, MODEL.hidden_size)
    assert torch.equal(hidden, runner.arena.buffers["x"][:20])
    assert gap(hidden[:, 0], hidden[:, 1]) > 1e-3, "four streams, not one repeated"


def test_pitfall_38_a_block_drafter_is_not_loaded_as_a_serial_one() -> None:
    """The names tell; what the model does not carry is refused and not cut down to what is there."""
    names = list(expected_draft_tensors(MODEL, "dspark"))
    assert {name.split(".")[1] for name in names} == {"0", "1", "2"}
    assert detect_draft_kind(names) == "dspark"
    with pytest.raises(ConfigError, match="speculative 'mtp': model flash carries dspark"):
        expected_draft_tensors(preset("flash"), "mtp")


def test_pitfall_39_a_block_drafter_has_its_window_after_a_prefix_hit() -> None:
    """The drafts right after a hit are those of a request that computed its prefix."""
    runner, speculator = speculating("dspark", 5)
    drafter, tokens = speculator._drafter, text(5, 300)
    proposals = []
    for slot, pages in ((1, (1, 2)), (2, (1, 3))):
        runner.reset_slot(slot)
        if slot == 1:
            item = BatchItem(1, pages, 0, tokens[:256])
            runner.forward([item], "prefill")
            speculator.observe_prefill([item], [tokens[256]])
            snapshot = runner.save_slot(1, 256)
        else:
            runner.restore_slot(Resume(2, (1,), 256, tokens[256], snapshot))
        item = BatchItem(slot, pages, 256, tokens[256:258])
        runner.forward([item], "prefill")
        speculator.observe_prefill([item], [tokens[258]])
        proposals.append(drafter.propose([Anchor(slot, pages, 258, tokens[258])], greedy_choice))
    assert proposals[0].tokens == proposals[1].tokens
    assert abs(proposals[0].logits - proposals[1].logits).max() < 1e-4


@pytest.mark.parametrize("layout", ["unified", "three_pool"])
def test_pitfall_40_verify_steps_store_fp8_rows_as_decode_does(layout: str) -> None:
    """Four tokens in one step and one by one leave the same bytes in every ring."""
    tokens = text(5, 135)
    pools = []
    for verify in (True, False):
        runner = runner_of(verify_tokens=4, kv_cache_dtype="fp8", kv_layout=layout, debug_poison=False)
        prefill(runner, tokens, stop=120)
        if verify:
            runner.forward([BatchItem(1, (1, 2, 3), 120, tokens[120:124])], "decode")
        else:
            for p in range(120, 124):
                decode(runner, tokens, p)
        pools.append(runner.pool)
    first, second = ([store[torch.arange(*span_of(pool.geometry))] for store in pool.unified] for pool in pools)
    assert torch.equal(first[0], second[0]), "layer 0 depends on the tokens alone"
    assert max(gap(a, b) for a, b in zip(first, second, strict=True)) < 0.3, "one step of e4m3 at most"


def span_of(geometry: Geometry) -> tuple[int, int]:
    """Ring rows of slot 1's positions 120 to 123."""
    return geometry.ring_row(1, 120), geometry.ring_row(1, 123) + 1


@pytest.mark.parametrize("plan", ["hip", "cuda"])
def test_pitfall_41_no_buffer_is_given_back_before_a_side_stream_has_read_it(plan: str) -> None:
    """Buffers live in an arena for good; threads as queues, forward after forward, give the serial bits."""
    tokens, runs = text(5, 170), []
    for streams, name in (("serial", "off"), ("queue", plan)):
        runner = runner_of(streams=streams, plan=name)
        rows = [prefill(runner, tokens, 0, 130)]
        addresses = {name: buffer.data_ptr() for name, buffer in runner.arena.buffers.items()}
        rows += [decode(runner, tokens, p) for p in range(130, 150)]
        kept = {name: buffer.data_ptr() for name, buffer in runner.arena.buffers.items()}
        assert addresses.items() <= kept.items()
        runs.append(rows)
        runner.close()
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("run", [moe_route_reference, moe_route_cpu])
def test_pitfall_43_the_router_takes_more_than_256_tokens(run: Any) -> None:
    x = torch.randn(600, 16, generator=torch.Generator().manual_seed(1))
    gate = torch.randn(8, 16, generator=torch.Generator().manual_seed(2))
    found = []
    for rows in (x, x[-1:]):
        weights, experts = torch.empty(len(rows), 2), torch.empty(len(rows), 2, dtype=torch.int64)
        run(
            rows,
            gate,
            bias=None,
            table=None,
            token_ids=torch.zeros(len(rows), dtype=torch.int64),
            top_k=2,
            scale=1.0,
            scoring="sqrtsoftplus",
            renormalise=True,
            weights=weights,
            experts=experts,
        )
        found.append((weights[-1], experts[-1]))
    assert found[0][1].tolist() == found[1][1].tolist()
    assert gap(found[0][0], found[1][0]) < 1e-5


@pytest.mark.parametrize("run", [index_topk_reference, index_topk.index_topk_cpu])
def test_pitfall_43_top_1024_of_the_larger_model(run: Any) -> None:
    scores = torch.randn(2, 1500, generator=torch.Generator().manual_seed(3))
    out = torch.empty(2, 1024, dtype=torch.int32)
    run(scores, torch.tensor([1500, 1100]), 1024, out)
    for row, visible, chosen in zip(scores, (1500, 1100), out.tolist(), strict=True):
        assert sorted(chosen) == sorted(row[:visible].topk(1024).indices.tolist())


def test_pitfall_44_scores_of_a_long_context_are_made_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the budget, the selection is the same: memory does not grow with tokens times entries."""
    generator = torch.Generator().manual_seed(4)
    q, weights = torch.randn(40, 4, 32, generator=generator), torch.randn(40, 4, generator=generator)
    keys = torch.randn(128, 32, generator=generator)
    visible = torch.arange(80, 120)
    tables = (torch.tensor([[1]], dtype=torch.int32), torch.zeros(40, dtype=torch.int64), visible)
    sizes: list[int] = []
    score = index_topk.index_score_reference

    def counted(q: torch.Tensor, weights: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
        sizes.append(q.shape[0] * q.shape[1] * entries.shape[0])
        return score(q, weights, entries)

    monkeypatch.setattr(index_topk, "index_score_reference", counted)
    monkeypatch.setattr(index_topk, "FEW_PRODUCTS", 0)
    outs = []
    for budget in (1 << 30, 1 << 14):
        monkeypatch.setattr(index_topk, "SCORE_BUDGET", budget)
        sizes.clear()
        out = torch.empty(40, 16, dtype=torch.int32)
        index_topk.index_select_cpu(q, weights, keys, *tables, entries_per_page=64, out=out)
        assert 4 * max(sizes) <= budget
        outs.append(out)
    assert torch.equal(*outs)


def scheduler(slots: int, pages: int) -> Scheduler:
    return Scheduler(Allocator(Geometry.plan(MODEL, slots, pages * 256)), 512)


def test_pitfall_46_what_an_aborted_request_held_comes_back_after_the_forward_that_uses_it() -> None:
    s = scheduler(2, 4)
    s.submit(RequestSpec(1, text(1, 300), 4, GREEDY))
    step = s.next_step()
    assert step is not None
    assert s.abort(1) is None
    assert (s.allocator.free_slots, s.allocator.free_pages) == (1, 2)
    (outcome,) = s.complete(step, [None if not c.samples else 7 for c in step.chunks])
    assert outcome.finish is FinishReason.ABORT
    assert outcome.released is not None
    assert (outcome.released.slot, len(outcome.released.pages)) == (1, 2)
    assert (s.allocator.free_slots, s.allocator.free_pages) == (2, 4)


def test_pitfall_47_admission_counts_slots_and_pages() -> None:
    few_slots, few_pages = scheduler(2, 20), scheduler(8, 3)
    for s in (few_slots, few_pages):
        for number in range(5):
            s.submit(RequestSpec(number, text(number, 200), 4, GREEDY))
        assert s.next_step() is not None
    assert (len(few_slots.running), few_slots.allocator.free_slots) == (2, 0)
    assert few_slots.allocator.free_pages == 18
    assert (len(few_pages.running), few_pages.allocator.free_pages) == (2, 1), "one page is left for them to grow"
    assert few_pages.allocator.free_slots == 6
