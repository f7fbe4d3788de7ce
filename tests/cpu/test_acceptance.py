"""The twelve acceptance tests of the specification (12.6), one or more of each number; docs/pitfalls.md has the table.

Number 11, tensor parallelism, is tested where ranks are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from dsv4_kernels.index_topk import index_topk_reference
from dsv4_kernels.index_topk.cpu import index_topk_cpu
from dsv4_kernels.rows import Fp8Rows
from dsv4_kernels.sparse_decode import sparse_decode_reference

from dsv4lab.checkpoint.draft import random_draft_weights
from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.engine.drafters import make_drafter
from dsv4lab.engine.request import SamplingParams
from dsv4lab.engine.runner import Runner
from dsv4lab.engine.sampler import distribution, sample
from dsv4lab.engine.speculation import DraftRequest, Speculator
from dsv4lab.engine.step import Resume
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.metadata import BatchItem, build_metadata
from dsv4lab.overlap.plan import resolve_plan
from dsv4lab.spec.draft import Anchor, Choose, Committed, Drafter, Proposal
from tests.cpu.tiny import MODEL, SELECTING, decode, gap, prefill, runner_of, text, token_by_token

TOLERANCE = 1e-4
LENGTHS = [*range(1, 10), *range(126, 131), *range(254, 259), *range(383, 386)]


def test_acceptance_01_lengths_around_boundaries() -> None:
    tokens, truth = text(5, 385), token_by_token(5, 385)
    runner, rng = runner_of(), np.random.default_rng(1)
    for n in LENGTHS:
        assert gap(prefill(runner, tokens, stop=n), truth[:n]) < TOLERANCE, f"{n} tokens at once"
    for n in LENGTHS[4::2]:
        cuts = sorted({0, n, *rng.integers(0, n, 2).tolist()})
        parts = [prefill(runner, tokens, a, b) for a, b in pairwise(cuts)]
        assert gap(torch.cat(parts), truth[:n]) < TOLERANCE, f"{n} tokens cut at {cuts}"


def test_acceptance_02_a_batch_of_mixed_lengths_equals_each_alone() -> None:
    """Prefill and decode of three requests; fp32 products change their rounding with the batch, hence 1e-5."""
    texts = {1: text(1, 300), 2: text(2, 5), 3: text(3, 130)}
    pages = {1: (1, 2), 2: (3,), 3: (4,)}
    alone = {}
    for slot, tokens in texts.items():
        runner = runner_of()
        n = len(tokens) - 4
        rows = [prefill(runner, tokens, stop=n)[-1]]
        alone[slot] = [*rows, *(decode(runner, tokens, p) for p in range(n, n + 4))]
    runner = runner_of()
    for slot in texts:
        runner.reset_slot(slot)
    items = [BatchItem(s, pages[s], 0, t[:-4]) for s, t in texts.items()]
    together = [runner.forward(items, "prefill").logits]
    for step in range(4):
        items = [BatchItem(s, pages[s], len(t) - 4 + step, (t[len(t) - 4 + step],)) for s, t in texts.items()]
        together.append(runner.forward(items, "decode").logits)
    for place, slot in enumerate(texts):
        for rows, truth in zip(together, alone[slot], strict=True):
            assert gap(rows[place], truth) < 1e-5


class RandomDrafts:
    """Drafts at random, so that nearly all are rejected; its own rings follow as usual."""

    def __init__(self, inner: Drafter, seed: int) -> None:
        self._inner = inner
        self._rng = np.random.default_rng(seed)
        self.pool = inner.pool

    @property
    def drafts(self) -> int:
        return self._inner.drafts

    def observe(self, committed: Sequence[Committed]) -> None:
        self._inner.observe(committed)

    def propose(self, anchors: Sequence[Anchor], choose: Choose | None) -> Proposal:
        tokens = self._rng.integers(0, MODEL.vocab_size, (len(anchors), self.drafts))
        return Proposal(
            tuple(tuple(row) for row in tokens.tolist()), np.zeros((len(anchors), self.drafts, 1), np.float32)
        )


@pytest.mark.parametrize(("k", "new"), [(4, 150), *(pytest.param(k, 520, marks=pytest.mark.slow) for k in (2, 4, 6))])
def test_acceptance_03_speculation_with_random_drafts_changes_no_token(k: int, new: int) -> None:
    """Beside test_speculation.py, whose drafts are accepted in every number. 4- and 128-boundaries are crossed."""
    prompt = text(5, 120)
    plain = runner_of(SELECTING)
    known = [*prompt, int(prefill(plain, prompt)[-1].argmax())]
    while len(known) < len(prompt) + new:
        known.append(int(decode(plain, known, len(known) - 1).argmax()))
    config = EngineConfig("tiny", streams="serial", max_running_requests=3, max_total_tokens=2048, verify_tokens=k)
    runner = Runner(SELECTING, random_weights(SELECTING, 0), config)
    inner = make_drafter(SELECTING, "mtp", random_draft_weights(SELECTING, "mtp", 7), k - 1, runner)
    speculator = Speculator(runner, RandomDrafts(inner, k))
    item = BatchItem(1, (1, 2, 3), 0, prompt)
    got = [*prompt, int(runner.forward([item], "prefill").logits[0].argmax())]
    speculator.observe_prefill([item], [got[-1]])
    while len(got) < len(prompt) + new:
        last = BatchItem(1, (1, 2, 3), len(got) - 1, (got[-1],))
        got += speculator.decode([DraftRequest(last, SamplingParams(), 0, len(got) - len(prompt))])[0][0]
    assert got[: len(known)] == known
    assert speculator.stats.steps > 0.9 * new, "nearly every draft was rejected"


@pytest.mark.parametrize("ended_at", [7, 129, 261])
def test_acceptance_04_a_slot_used_again_after_an_abort_off_a_boundary(ended_at: int) -> None:
    runner, tokens, truth = runner_of(debug_poison=False), text(5, 135), token_by_token(5, 135)
    prefill(runner, text(9, 300), stop=ended_at)
    assert gap(prefill(runner, tokens, stop=126), truth[:126]) < TOLERANCE
    for p in range(126, 135):
        assert gap(decode(runner, tokens, p), truth[p]) < TOLERANCE


def test_acceptance_05_pages_used_again_and_nobodys_rows_poisoned() -> None:
    """Slot 0, page 0 and all that was freed are NaN; the next owner of the same pages computes finite, right logits."""
    runner, tokens, truth = runner_of(), text(5, 385), token_by_token(5, 385)
    for start in (0, 350):
        prefill(runner, text(9, 700), start, start + 350, pages=(3, 1, 2))
    runner.pool.release(1, (3, 1, 2))
    logits = prefill(runner, tokens, slot=2, pages=(1, 3))
    assert logits.isfinite().all()
    assert gap(logits, truth) < TOLERANCE
    assert decode(runner, (*tokens, 5), 385, slot=2, pages=(1, 3)).isfinite().all()


def test_acceptance_06_row_numbers_past_what_32_bits_can_multiply(tmp_path: Path) -> None:
    """A geometry of 4.5 million rows a layer: row numbers stay exact, and fp8 rows at the end are found again."""
    geometry = Geometry.plan(MODEL, 3, 70_000 * 256)
    last = geometry.pages - 1
    item = BatchItem(3, (last, last - 1), 300, (5,))
    meta = build_metadata(geometry, 16, [item], "decode")
    rows = meta.streams[128].indices[-2:].tolist()
    assert rows == [geometry.swa_rows + 2 * last, geometry.swa_rows + 2 * last + 1]
    assert geometry.rows(4) > 4_200_000
    assert int(meta.page_table.max()) == last
    count, width = geometry.rows(4), 512
    try:
        nope = torch.from_numpy(np.memmap(tmp_path / "nope", np.uint8, "w+", shape=(count, width)))
        rope = torch.from_numpy(np.memmap(tmp_path / "rope", np.int16, "w+", shape=(count, 64))).view(torch.bfloat16)
    except OSError as error:
        pytest.skip(f"no sparse file of {count * width} bytes here: {error}")
    for name in ("nope", "rope"):
        (tmp_path / name).unlink()  # the mapping keeps it
    pool, small = (
        Fp8Rows(nope, rope, 448),
        Fp8Rows(torch.zeros(4, 512, dtype=torch.uint8), torch.zeros(4, 64).bfloat16(), 448),
    )
    values = torch.randn(4, 512, generator=torch.Generator().manual_seed(1))
    listed = torch.tensor([4_194_303, 4_194_304, count - 2, count - 1])
    pool.put(listed, values)
    small.put(torch.arange(4), values)
    q, sink = torch.randn(1, 2, 512, generator=torch.Generator().manual_seed(2)), torch.zeros(2)
    outs = []
    for store, where in ((pool, listed), (small, torch.arange(4))):
        out = torch.empty(1, 2, 512)
        sparse_decode_reference(q, store, where.int(), torch.tensor([0, 4], dtype=torch.int32), sink, 0.05, out)
        outs.append(out)
    assert torch.equal(*outs)


def test_acceptance_07_a_prefix_hit_is_exact() -> None:
    """Here with one request; tests/cpu/test_prefix_snapshots.py has every format, drafters and the whole engine."""
    runner, tokens = runner_of(SELECTING), text(5, 600)
    for page in (0, 256):
        prefill(runner, tokens, page, page + 256)
    snapshot = runner.save_slot(1, 512)
    miss = [prefill(runner, tokens, 512, 580), *(decode(runner, tokens, p) for p in range(580, 600))]
    runner.reset_slot(2)
    runner.restore_slot(Resume(2, (1, 2), 512, tokens[512], snapshot))
    hit = [prefill(runner, tokens, 512, 580, slot=2, pages=(1, 2, 7))]
    hit += [decode(runner, tokens, p, slot=2, pages=(1, 2, 7)) for p in range(580, 600)]
    assert all(torch.equal(a, b) for a, b in zip(hit, miss, strict=True))


def test_acceptance_08_programs_replayed_while_the_batch_shrinks_and_grows() -> None:
    """One compiled program per batch size, whatever the lengths: the CPU replays it as a GPU replays a graph."""
    texts, pages = {1: text(5, 385), 2: text(6, 385), 3: text(7, 385)}, {1: (1, 2), 2: (3, 4), 3: (5, 6)}
    truth = {1: token_by_token(5, 385), 2: token_by_token(6, 140), 3: token_by_token(7, 140)}
    runner, at = runner_of(), {1: 370, 2: 2, 3: 125}
    for slot, tokens in texts.items():
        prefill(runner, tokens, stop=at[slot], slot=slot, pages=pages[slot])
    programs: dict[int, set[int]] = {}
    for batch in ((1, 2, 3), (1,), (2, 3), (3, 2, 1), (2,), (1, 3), (1, 2, 3), (3,), (3, 1)):
        items = [BatchItem(s, pages[s], at[s], (texts[s][at[s]],)) for s in batch]
        for slot, row in zip(batch, runner.forward(items, "decode").logits, strict=True):
            assert gap(row, truth[slot][at[slot]]) < TOLERANCE
            at[slot] += 1
        programs.setdefault(len(batch), set()).add(id(runner.program("decode", len(batch))))
    assert {size: len(found) for size, found in programs.items()} == {1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("replays", [12, pytest.param(1000, marks=pytest.mark.slow)])
def test_acceptance_09_plans_and_queue_counts_give_the_same_bits(replays: int) -> None:
    """The same decode step over and over, on threads as hardware queues."""
    tokens = text(5, 135)
    expected: torch.Tensor | None = None
    for plan, queues in (("off", 1), ("hip", 1), ("hip", 2), ("hip", 4), ("cuda", 3), ("cuda", 4)):
        runner = runner_of(SELECTING, streams="queue", hw_queues=queues)
        runner.set_plan(resolve_plan(plan))
        prefill(runner, tokens, stop=127)
        for _ in range(replays):
            row = decode(runner, tokens, 127)
            expected = row if expected is None else expected
            assert torch.equal(row, expected), f"{plan} on {queues} queues"
        runner.close()


@pytest.mark.parametrize("run", [index_topk_reference, index_topk_cpu])
def test_acceptance_10_entries_are_taken_by_score_and_ties_by_number(run: Callable[..., None]) -> None:
    scores = torch.stack((torch.randperm(300, generator=torch.Generator().manual_seed(1)).float(), torch.zeros(300)))
    out = torch.empty(2, 16, dtype=torch.int32)
    run(scores, torch.tensor([300, 300]), 16, out)
    assert sorted(out[0].tolist()) == sorted(scores[0].topk(16).indices.tolist())
    assert sorted(out[1].tolist()) == list(range(16))
    runner, tokens = runner_of(SELECTING), text(5, 300)
    layer = SELECTING.compress_ratios.index(4)
    runner.watch_selection(layer)
    chosen = runner.forward([BatchItem(1, (1, 2), 0, tokens)], "prefill").selection
    assert chosen is not None
    assert all(len(set(row)) == 16 and min(row) >= 0 for row in chosen[64:].tolist())


def test_acceptance_12_rows_of_zeros_no_entries_and_the_first_position() -> None:
    """Equal logits: the lowest token, or one of a uniform draw. A first token that is decoded sees itself alone."""
    zeros = np.zeros(MODEL.vocab_size, np.float32)
    hot = SamplingParams(temperature=1.0)
    assert sample(zeros, SamplingParams(), 0, 0) == 0
    assert np.allclose(distribution(zeros, hot), 1 / MODEL.vocab_size)
    assert len({sample(zeros, hot, seed, 0) for seed in range(20)}) > 10
    runner, tokens = runner_of(), text(5, 385)
    runner.reset_slot(1)
    first = decode(runner, tokens, 0)
    assert gap(first, prefill(runner, tokens, stop=1)[0]) < 1e-5
    meta = build_metadata(runner.geometry, 16, [BatchItem(1, (1,), 0, (5,))], "decode")
    assert meta.streams[0].indptr.tolist() == [0, 1]
    assert (int(meta.visible4[0]), int(meta.visible128[0]), meta.compress[4].n, meta.compress[128].n) == (0, 0, 0, 0)
