"""Pitfalls 10 to 22 of other implementations: rings, pages, formats, and lists that a replay must read anew.

docs/pitfalls.md has the list; numbers are those of the specification.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dsv4_kernels.rows import Fp8Rows, dequantise_tiles, quantise_tiles
from dsv4_kernels.sparse_decode import sparse_decode_reference
from dsv4_kernels.sparse_decode.cpu import sparse_decode_cpu
from dsv4_kernels.sparse_prefill import sparse_prefill_reference

from dsv4lab.engine.step import Resume
from dsv4lab.errors import EngineError, PoolError
from dsv4lab.kv.allocator import Allocator
from dsv4lab.kv.formats import PoolFormat
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.metadata import BatchItem, build_metadata
from dsv4lab.kv.prefix_cache import PrefixCache
from dsv4lab.model.builder import StepInputs
from tests.cpu.tiny import MODEL, decode, gap, prefill, runner_of, text, token_by_token

TOLERANCE = 1e-4
GEOMETRY = Geometry.plan(MODEL, 3, 2048)


@pytest.mark.parametrize("k", [2, 4, 7])
def test_pitfall_10_a_ring_of_the_window_alone_takes_no_drafts(k: int) -> None:
    """The first token of a verify step still finds the oldest row of its window; one row less and it would not."""
    right = Geometry.plan(MODEL, 3, 2048, verify_tokens=k)
    item = BatchItem(2, (1, 2), 300, text(1, k))
    meta = build_metadata(right, MODEL.index_topk, [item], "decode")
    first = meta.streams[0].indices[: meta.streams[0].indptr[1]].tolist()
    written = meta.ring_row.tolist()
    assert len(set(first)) == MODEL.sliding_window
    assert set(first) & set(written) == {written[0]}, "of the rows just written it reads its own"
    with pytest.raises(PoolError, match=f"has {k} tokens; these rings take at most {k - 1}"):
        build_metadata(replace(right, ring_rows=right.ring_rows - 1), MODEL.index_topk, [item], "decode")


@pytest.mark.parametrize("layout", ["unified", "three_pool"])
@pytest.mark.parametrize("plan", ["hip", "cuda"])
def test_pitfall_11_every_plan_runs_on_every_layout(plan: str, layout: str) -> None:
    """No path of a plan reaches for a window pool that the unified layout does not have."""
    logits = []
    for name in ("off", plan):
        runner = runner_of(kv_layout=layout, plan=name, streams="queue")
        logits.append((prefill(runner, text(1, 130)), decode(runner, text(1, 131), 130)))
        runner.close()
    assert all(torch.equal(a, b) for a, b in zip(*logits, strict=True))


def test_pitfall_12_a_prefix_hit_restores_the_ring() -> None:
    """Poison in the new slot's ring shows what a hit without it would read; with it the bits are the donor's."""
    runner, tokens = runner_of(), text(2, 300)
    prefill(runner, tokens, 0, 256)
    snapshot = runner.save_slot(1, 256)
    expected = prefill(runner, tokens, 256, 300)
    runner.reset_slot(2)
    assert prefill(runner, tokens, 256, 300, slot=2, pages=(1, 5)).isnan().any()
    runner.reset_slot(3)
    runner.restore_slot(Resume(3, (1,), 256, tokens[256], snapshot))
    assert torch.equal(prefill(runner, tokens, 256, 300, slot=3, pages=(1, 6)), expected)


def test_pitfall_13_one_common_page_is_enough_for_a_hit() -> None:
    """Every boundary of 256 tokens is one of both ratios, so no larger unit of sharing is needed."""
    assert all(GEOMETRY.page_size % ratio == 0 for ratio in GEOMETRY.ratios)
    cache = PrefixCache(Allocator(GEOMETRY), lambda slot, length: torch.empty(0), 1)
    common, own = text(1, 300), text(2, 200)
    lease = cache.allocator.admit(1, 300)
    cache.keep(common[:256], lease)
    hit = cache.match((*common[:256], *own), 455)
    assert hit is not None
    assert hit.length == 256


def test_pitfall_14_offsets_of_rows_past_two_to_the_31_bytes_and_values(tmp_path: Path) -> None:
    """5 million rows of 512 values, in a sparse file: only a handful of them is ever touched."""
    rows, width = 5_000_000, 512
    last = [4_194_303, 4_194_304, rows - 2, rows - 1]
    try:
        pool = torch.from_numpy(np.memmap(tmp_path / "pool", np.float32, "w+", shape=(rows, width)))
    except OSError as error:
        pytest.skip(f"no sparse file of {rows * width * 4} bytes here: {error}")
    (tmp_path / "pool").unlink()  # the mapping keeps it
    generator = torch.Generator().manual_seed(1)
    small = torch.randn(4, width, generator=generator)
    pool[torch.tensor(last)] = small
    q, sink = torch.randn(2, 3, width, generator=generator), torch.zeros(3)
    indptr = torch.tensor([0, 2, 4], dtype=torch.int32)
    outs = []
    for where, listed in ((pool, last), (small, [0, 1, 2, 3])):
        for attend in (sparse_decode_reference, sparse_decode_cpu):
            out = torch.empty(2, 3, width)
            attend(q, where, torch.tensor(listed, dtype=torch.int32), indptr, sink, 0.05, out)
            outs.append(out)
    assert all(gap(outs[0], other) < 1e-5 for other in outs[1:])


@pytest.mark.parametrize("tokens", [1, 3, 130])
def test_pitfall_15_nobodys_rows_may_hold_anything(tokens: int) -> None:
    """NaN in slot 0, page 0 and all that is free: a short request beside long ones, in decode and in prefill."""
    runner = runner_of()
    runner.forward([BatchItem(1, (4, 2), 0, text(1, 300))], "prefill")
    for mode in ("prefill", "decode"):
        runner.reset_slot(2)
        short = BatchItem(2, (3,), 0, text(2, tokens))
        beside = BatchItem(1, (4, 2), 300, (7,))
        if mode == "prefill" or tokens == 1:
            logits = runner.all_logits([beside, short], "prefill" if mode == "prefill" else "decode")
            assert gap(logits[1:], token_by_token(2, 130)[:tokens]) < TOLERANCE


@pytest.mark.parametrize("kv", ["float32", "bf16", "fp8"])
@pytest.mark.parametrize("index", ["float32", "bf16", "fp8", "fp4"])
def test_pitfall_16_plan_memory_and_writers_agree_on_the_format(kv: str, index: str) -> None:
    """The format is resolved once: the bytes planned are the bytes there, and a forward runs on them."""
    runner = runner_of(kv_cache_dtype=kv, index_cache_dtype=index)
    form = PoolFormat.for_engine(MODEL, runner.config)
    assert (form.kv, form.index) == (kv, index)
    assert runner.pool.nbytes == form.pool_bytes(runner.geometry)
    assert {isinstance(store, Fp8Rows) for store in runner.pool.unified} == {kv == "fp8"}
    assert prefill(runner, text(1, 40)).isfinite().all()


def test_pitfall_17_fp8_is_the_ocp_encoding() -> None:
    """448 is the largest code, 1.0 is 0x38: the other encoding of e4m3 would be off by a factor of two."""
    values = torch.tensor([[448.0, 1.0, -0.5, 0.0] + [0.0] * 60])
    codes, scale = quantise_tiles(values)
    assert codes[0, :4].tolist() == [0x7E, 0x38, 0xB0, 0x00]
    assert scale.tolist() == [[127]]
    assert torch.equal(dequantise_tiles(codes, scale), values)


def test_pitfall_18_window_rows_come_before_compressed_ones() -> None:
    """Builder, holes and fill agree: the same order in decode's streams and in prefill's prefix."""
    for mode, start in (("decode", 300), ("prefill", 300)):
        item = BatchItem(2, (5, 3), start, text(1, 1))
        meta = build_metadata(GEOMETRY, MODEL.index_topk, [item], mode)  # type: ignore[arg-type]
        stream = (meta.streams if mode == "decode" else meta.prefix)[128].indices
        compressed = (stream >= GEOMETRY.swa_rows).tolist()
        assert compressed == sorted(compressed)
        assert sum(compressed) == 2
        assert meta.csa is not None
        holes = (meta.csa.indices < 0).tolist()
        assert holes == sorted(holes)
        assert sum(holes) == 301 // 4


def test_pitfall_19_bounds_have_one_more_entry_than_tokens_and_an_empty_list_gives_zeros() -> None:
    items = [BatchItem(1, (1,), 0, text(1, 3)), BatchItem(2, (2, 3), 270, text(2, 5))]
    meta = build_metadata(GEOMETRY, MODEL.index_topk, items, "prefill")
    assert meta.extend is not None
    assert meta.csa is not None
    bounds = [meta.prefix[0].indptr, meta.prefix[128].indptr, meta.extend.indptr, meta.csa.indptr]
    assert [len(b) for b in bounds] == [meta.T + 1] * 4
    pool, q, sink = torch.full((4, 64), torch.nan), torch.ones(2, 4, 64), torch.full((4,), -torch.inf)
    empty, none = torch.zeros(3, dtype=torch.int32), torch.empty(0, dtype=torch.int32)
    for run in (sparse_decode_reference, sparse_decode_cpu):
        out = torch.full((2, 4, 64), torch.nan)
        run(q, pool, none, empty, torch.zeros(4), 0.1, out)
        assert torch.equal(out, torch.zeros(2, 4, 64))
    out = torch.full((2, 4, 64), torch.nan)
    own = torch.tensor([0, 1, 2], dtype=torch.int32)
    sparse_prefill_reference(q, pool, none, empty, torch.ones(2, 64), own[:2], own, sink, 0.1, out)
    assert torch.equal(out, torch.ones(2, 4, 64))


def test_pitfall_20_a_replayed_program_reads_the_lists_of_its_own_forward() -> None:
    """One compiled program, other slots, pages and positions each time; nothing of the forward before is left."""
    runner, a, b = runner_of(), text(5, 135), text(6, 135)
    prefill(runner, a, stop=126, slot=1, pages=(5,))
    prefill(runner, b, stop=100, slot=3, pages=(2,))
    programs = set()
    for p in range(126, 132):
        rows = [decode(runner, a, p, slot=1, pages=(5,)), decode(runner, b, p - 26, slot=3, pages=(2,))]
        programs.add(id(runner.program("decode", 1)))
        assert gap(rows[0], token_by_token(5, 135)[p]) < TOLERANCE
        assert gap(rows[1], token_by_token(6, 135)[p - 26]) < TOLERANCE
    assert len(programs) == 1


def test_pitfall_21_what_a_forward_returned_outlives_the_next_one() -> None:
    """The CPU has no staging buffers; results, though, are copies and not views of the arena."""
    runner, tokens = runner_of(), text(5, 135)
    first = prefill(runner, tokens, stop=60)
    kept, hidden = first.clone(), runner.hidden_rows(60)
    before = hidden.clone()
    prefill(runner, text(6, 60))
    assert torch.equal(first, kept)
    assert torch.equal(hidden, before)


def test_pitfall_22_no_op_runs_without_a_pool_and_a_forward() -> None:
    with pytest.raises(EngineError, match="an op ran outside a forward: no metadata is set"):
        _ = StepInputs(torch.device("cpu")).meta
