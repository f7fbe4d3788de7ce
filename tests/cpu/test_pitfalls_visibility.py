"""Pitfalls 1 to 9 of other implementations: who sees which compressed entry, and where compressor state lives.

docs/pitfalls.md has the list; numbers are those of the specification.
"""

from __future__ import annotations

import pytest
import torch

from dsv4lab.engine.step import Resume
from dsv4lab.kv.geometry import STATE_WINDOW, Geometry
from dsv4lab.kv.metadata import BatchItem, build_metadata
from dsv4lab.kv.pool import KvPool
from tests.cpu.tiny import MODEL, SELECTING, decode, gap, prefill, runner_of, text, token_by_token

TOLERANCE = 1e-4
GEOMETRY = Geometry.plan(MODEL, 3, 2048)


@pytest.mark.parametrize("p", [2, 3, 4, 6, 7, 126, 127, 128, 255, 256])
def test_pitfall_01_a_token_does_not_see_the_unfinished_group_it_is_in(p: int) -> None:
    """The entry of a group appears with the group's last token; whatever follows a token changes nothing for it."""
    assert [GEOMETRY.visible(p, r) for r in (4, 128)] == [
        len([w for w in range(p + 1) if w * r + r - 1 <= p]) for r in (4, 128)
    ]
    runner, tokens = runner_of(), text(1, 270)
    whole = prefill(runner, tokens)[p]
    assert gap(whole, prefill(runner, tokens, stop=p + 1)[-1]) < TOLERANCE


def test_pitfall_02_the_indexer_selects_nothing_from_the_future() -> None:
    runner, tokens = runner_of(SELECTING), text(2, 300)
    layer = MODEL.compress_ratios.index(4)
    runner.watch_selection(layer)
    result = runner.forward([BatchItem(1, (1, 2), 0, tokens)], "prefill")
    assert result.selection is not None
    for p, chosen in enumerate(result.selection.tolist()):
        entries = [e for e in chosen if e >= 0]
        assert len(entries) == min((p + 1) // 4, SELECTING.index_topk)
        assert all(e < (p + 1) // 4 for e in entries)
    changed = (*tokens[:200], *text(9, 100))
    assert torch.equal(prefill(runner, tokens)[:200], prefill(runner, changed)[:200]), "the same products and sums"


@pytest.mark.parametrize("ratio", [4, 128])
def test_pitfall_03_prefill_reads_compressed_rows(ratio: int) -> None:
    """The rows that an earlier chunk left: other values there, other logits."""
    runner, tokens = runner_of(debug_poison=False), text(3, 300)
    prefill(runner, tokens, 0, 256)
    plain = prefill(runner, tokens, 256, 300)
    prefill(runner, tokens, 0, 256)
    per_page, first = GEOMETRY.entries_per_page(ratio), GEOMETRY.swa_rows
    for layer in GEOMETRY.layers_of(ratio):
        store = runner.pool.unified[layer]
        assert isinstance(store, torch.Tensor)
        store[first + per_page : first + 2 * per_page] += 1.0
    assert gap(prefill(runner, tokens, 256, 300), plain) > 1e-3


def test_pitfall_04_rows_of_a_ratio_128_layer_are_counted_per_token() -> None:
    meta = build_metadata(GEOMETRY, MODEL.index_topk, [BatchItem(1, (1, 2), 0, text(4, 300))], "prefill")
    window = meta.prefix[0].indptr.diff()
    assert (meta.prefix[128].indptr.diff() - window).tolist() == [(p + 1) // 128 for p in range(300)]
    runner, tokens = runner_of(), text(4, 300)
    whole = prefill(runner, tokens)
    parts = torch.cat([prefill(runner, tokens, a, b) for a, b in ((0, 120), (120, 129), (129, 260), (260, 300))])
    assert gap(whole, parts) < TOLERANCE


@pytest.mark.parametrize("n", [3, 4, 5, 7, 8, 127, 128, 129])
def test_pitfall_05_prompts_that_end_at_a_boundary(n: int) -> None:
    """As one prefill and token by token, and the first tokens after it."""
    runner, tokens, truth = runner_of(), text(5, 135), token_by_token(5, 135)
    assert gap(prefill(runner, tokens, stop=n), truth[:n]) < TOLERANCE
    for p in range(n, min(n + 5, 135)):
        assert gap(decode(runner, tokens, p), truth[p]) < TOLERANCE


def test_pitfall_06_state_follows_the_request_not_its_place_in_the_batch() -> None:
    texts, pages = {1: text(5, 135), 2: text(6, 135), 3: text(7, 135)}, {1: (1,), 2: (2,), 3: (3,)}
    truth = {1: token_by_token(5, 135), 2: token_by_token(6, 135), 3: token_by_token(7, 135)}
    runner = runner_of()
    for slot, tokens in texts.items():
        prefill(runner, tokens, stop=118, slot=slot, pages=pages[slot])
    orders = [(1, 2, 3), (3, 1, 2), (2, 3), (2, 1, 3)]
    at = dict.fromkeys(texts, 118)
    for step in range(16):
        order = orders[step % 4]
        items = [BatchItem(s, pages[s], at[s], (texts[s][at[s]],)) for s in order]
        for slot, row in zip(order, runner.forward(items, "decode").logits, strict=True):
            assert gap(row, truth[slot][at[slot]]) < TOLERANCE
            at[slot] += 1


def test_pitfall_07_requests_that_share_a_page_have_states_of_their_own() -> None:
    """Two requests go on from one cached page, step by step beside each other: neither leaves a trace in the other."""
    common = text(8, 256)
    texts = {2: (*common, *text(21, 40)), 3: (*common, *text(22, 40))}
    runner = runner_of()
    truth = {s: prefill(runner, t, pages=(4, 5)) for s, t in texts.items()}
    prefill(runner, common, pages=(1,))
    snapshot = runner.save_slot(1, 256)
    pages = {2: (1, 2), 3: (1, 3)}
    for slot in (2, 3):
        runner.reset_slot(slot)
        runner.restore_slot(Resume(slot, (1,), 256, texts[slot][256], snapshot))
    for p in range(256, 296):
        items = [BatchItem(s, pages[s], p, (texts[s][p],)) for s in (2, 3)]
        for slot, row in zip((2, 3), runner.forward(items, "decode").logits, strict=True):
            assert gap(row, truth[slot][p]) < TOLERANCE


@pytest.mark.parametrize("accepted", [1, 2, 3, 4])
def test_pitfall_08_overlap_state_survives_a_verify_step_of_any_acceptance(accepted: int) -> None:
    """A step of four tokens before, on and after a 4-boundary, the wrong ones rolled back, then token by token."""
    tokens, truth = text(5, 135), token_by_token(5, 135)
    for begin in range(116, 121):
        runner = runner_of(verify_tokens=4)
        prefill(runner, tokens, stop=begin)
        wrong = tuple((t + 1) % MODEL.vocab_size for t in tokens[begin + accepted : begin + 4])
        drafted = (*tokens[begin : begin + accepted], *wrong)
        runner.forward([BatchItem(1, (1, 2), begin, drafted)], "decode")
        runner.pool.forget_rejected(1, begin + accepted, begin + 4)
        for p in range(begin + accepted, begin + accepted + 9):
            assert gap(decode(runner, tokens, p), truth[p]) < TOLERANCE


def test_pitfall_09_compressor_state_does_not_grow_with_the_pool() -> None:
    small, large = (KvPool(Geometry.plan(MODEL, 3, n), torch.float32) for n in (2048, 65536))
    shapes = [[None if s is None else tuple(s.shape) for s in (*p.state, *p.index_state)] for p in (small, large)]
    assert shapes[0] == shapes[1]
    for ratio in (4, 128):
        layer = MODEL.compress_ratios.index(ratio)
        assert shapes[0][layer] == (4 * STATE_WINDOW[ratio] + 1, GEOMETRY.state_width(ratio)), "one ring to a slot"
