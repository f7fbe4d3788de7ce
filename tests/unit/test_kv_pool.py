"""The pool's tensors, its debug mode, snapshots and the limits of the index streams."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.config.presets import preset
from dsv4lab.errors import ConfigError, PoolError
from dsv4lab.kv import pool as names
from dsv4lab.kv.allocator import Allocator
from dsv4lab.kv.formats import PoolFormat
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.index_streams import indptr_of
from dsv4lab.kv.metadata import BatchItem, build_metadata
from dsv4lab.kv.pool import KvPool
from dsv4lab.kv.snapshot import pool_snapshot, query_reads
from dsv4lab.timeline.records import PoolSnapshot

G = Geometry(window=8, ring_rows=9, slots=4, pages=5, head_dim=6, index_head_dim=4, compress_ratios=(0, 4, 128, 4))


def test_shapes() -> None:
    pool = KvPool(G, torch.bfloat16)
    assert [tuple(t.shape) for t in pool.unified] == [(36, 6), (36 + 5 * 64, 6), (36 + 5 * 2, 6), (356, 6)]
    assert [None if t is None else tuple(t.shape) for t in pool.index_k] == [None, (320, 4), None, (320, 4)]
    assert [None if t is None else tuple(t.shape) for t in pool.state] == [None, (33, 24), (513, 12), (33, 24)]
    assert [None if t is None else tuple(t.shape) for t in pool.index_state] == [None, (33, 16), None, (33, 16)]
    assert {t.dtype for t in pool.unified} == {torch.bfloat16}
    assert all(not t.any() for t in (*pool.unified, *(k for k in pool.index_k if k is not None)))
    for state in (*pool.state, *pool.index_state):
        if state is not None:
            half = state.shape[1] // 2
            assert state.dtype == torch.float32
            assert not state[:, :half].any()
            assert bool((state[:, half:] == -math.inf).all())


@given(
    ratios=st.lists(st.sampled_from([0, 4, 128]), min_size=1, max_size=4),
    slots=st.integers(2, 4),
    pages=st.integers(2, 4),
    verify=st.integers(1, 12),
)
def test_bytes_are_what_the_formulas_say(ratios: list[int], slots: int, pages: int, verify: int) -> None:
    config = replace(preset("tiny"), compress_ratios=tuple(ratios), head_dim=8, index_head_dim=4, sliding_window=8)
    g = Geometry.plan(config, slots - 1, (pages - 1) * 256, verify_tokens=verify)
    form = PoolFormat.choose(config, dtype="bfloat16")
    assert KvPool(g, torch.bfloat16).nbytes == KvPool(g, torch.float32, form=form).nbytes == form.pool_bytes(g)
    assert (g.slots, g.pages) == (slots, pages)


def test_resources_are_disjoint_and_cover_the_pool() -> None:
    pool = KvPool(G, torch.float32)
    resources = pool.resources()
    expected = {names.ring(layer) for layer in range(4)} | {names.rows(layer) for layer in (1, 2, 3)}
    expected |= {f(layer) for layer in (1, 3) for f in (names.index_k, names.state, names.index_state)}
    assert set(resources) == expected | {names.state(2)}
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for tensors in resources.values() for t in tensors)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    for i, (tensor,) in enumerate(resources.values(), start=1):
        tensor.fill_(float(i))
    everything = [t for group in (pool.unified, pool.index_k, pool.state, pool.index_state) for t in group]
    assert all(bool((t > 0).all()) for t in everything if t is not None)


def test_reset_touches_one_slot_only() -> None:
    pool = KvPool(G, torch.float32)
    rings = [t for t in (*pool.state, *pool.index_state) if t is not None]
    for tensor in rings:
        tensor[:-1] = 5.0
    pool.reset_slot(2)
    for tensor in rings:
        size, half = (tensor.shape[0] - 1) // G.slots, tensor.shape[1] // 2
        own = tensor[2 * size : 3 * size]
        assert not own[:, :half].any()
        assert bool((own[:, half:] == -math.inf).all())
        assert bool((tensor[: 2 * size] == 5.0).all())
        assert bool((tensor[3 * size : -1] == 5.0).all())
        assert bool((tensor[-1, half:] == -math.inf).all())
    for slot in (0, 4, -1):
        with pytest.raises(PoolError, match=r"takes a slot in 1\.\.3"):
            pool.reset_slot(slot)


def fill_live(pool: KvPool, slot: int, pages: tuple[int, ...], tokens: int) -> None:
    """Write what a request of ``tokens`` tokens would have written."""
    for layer, ratio in enumerate(G.compress_ratios):
        for p in range(tokens):
            pool.unified[layer][G.ring_row(slot, p)] = 1.0
            for state in (pool.state[layer], pool.index_state[layer]):
                if state is not None:
                    state[G.state_row(slot, p, ratio)] = 1.0
        for w in range(tokens // ratio if ratio else 0):
            pool.unified[layer][G.compressed_row(pages, w, ratio)] = 1.0
            if (keys := pool.index_k[layer]) is not None:
                keys[G.compressed_slot(pages, w, ratio)] = 1.0


@pytest.mark.parametrize("tokens", [0, 1, 3, 7, 8, 9, 127, 128, 300])
def test_live_rows_are_finite_in_a_poisoned_pool_once_written(tokens: int) -> None:
    pool = KvPool(G, torch.float32)
    pool.poison()
    pool.reset_slot(2)
    pages = (3, 1)
    fill_live(pool, 2, pages, tokens)
    pool.check_live(2, pages, tokens)
    if tokens:
        with pytest.raises(PoolError, match=r"slot 1: layer 0 ring row .* is not finite"):
            pool.check_live(1, (2, 4), tokens)
    pool.release(2, pages)
    everything = [t for group in (pool.unified, pool.index_k) for t in group if t is not None]
    assert all(bool(t.isnan().all()) for t in everything)
    assert all(bool(t[:-1].isnan().all()) for t in (*pool.state, *pool.index_state) if t is not None)
    assert all(not t[-1].isnan().any() for t in (*pool.state, *pool.index_state) if t is not None)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (lambda pool: pool.unified[2][G.ring_row(2, 293)], r"layer 2 ring row 23 is not finite \(1 of 7 live rows\)"),
        (lambda pool: pool.unified[3][G.compressed_row((3, 1), 70, 4)], "layer 3 compressed row 106 is not finite"),
        (lambda pool: pool.index_k[1][G.compressed_slot((3, 1), 74, 4)], "layer 1 index key row 74 is not finite"),
        (lambda pool: pool.state[1][G.state_row(2, 296, 4)], "layer 1 state row 16 is not finite"),
        (lambda pool: pool.index_state[3][G.state_row(2, 299, 4)], "layer 3 index state row 19 is not finite"),
        (lambda pool: pool.state[2][G.state_row(2, 256, 128)], "layer 2 state row 256 is not finite"),
    ],
)
def test_check_live_names_the_row(place: object, text: str) -> None:
    pool = KvPool(G, torch.float32)
    fill_live(pool, 2, (3, 1), 300)
    pool.check_live(2, (3, 1), 300)
    place(pool).fill_(math.nan)  # type: ignore[operator]
    with pytest.raises(PoolError, match=text):
        pool.check_live(2, (3, 1), 300)


def test_release_without_debug_mode_leaves_the_rows() -> None:
    pool = KvPool(G, torch.float32)
    fill_live(pool, 1, (2,), 9)
    pool.release(1, (2,))
    pool.check_live(1, (2,), 9)
    with pytest.raises(PoolError, match="257 tokens take 2 pages, got 1"):
        pool.check_live(1, (2,), 257)


@pytest.mark.parametrize(
    ("items", "mode", "text"),
    [
        ([], "decode", "takes at least one item"),
        ([BatchItem(1, (1,), 0, (5,))], "extend", "mode 'extend': takes prefill or decode"),
        ([BatchItem(0, (1,), 0, (5,))], "decode", r"decode item of slot 0: takes a slot in 1\.\.3"),
        ([BatchItem(4, (1,), 0, (5,))], "prefill", r"prefill item of slot 4: takes a slot in 1\.\.3"),
        ([BatchItem(1, (1,), 0, ())], "prefill", "takes at least one token from a position >= 0, got 0 from 0"),
        ([BatchItem(1, (1,), -1, (5,))], "prefill", "got 1 from -1"),
        ([BatchItem(1, (1,), 256, (5,))], "decode", "has 1 pages; 257 tokens take 2"),
        ([BatchItem(1, (0,), 0, (5,))], "decode", r"has a page outside 1\.\.4"),
        ([BatchItem(1, (5,), 0, (5,))], "decode", r"has a page outside 1\.\.4"),
        ([BatchItem(1, (1,), 0, (5, 6, 7))], "decode", "has 3 tokens; these rings take at most 2"),
        ([BatchItem(1, (1,), 0, (5,)), BatchItem(1, (2,), 0, (5,))], "decode", "two items of one slot"),
    ],
)
def test_bad_items(items: list[BatchItem], mode: str, text: str) -> None:
    with pytest.raises(PoolError, match=text):
        build_metadata(G, 4, items, mode)  # type: ignore[arg-type]


def test_types_and_padding_of_metadata() -> None:
    items = [BatchItem(3, (4, 2, 1), 300, (7, 8)), BatchItem(1, (3,), 0, (9,))]
    meta = build_metadata(G, 4, items, "prefill")
    assert meta.page_table.dtype == torch.int32
    assert meta.page_table.tolist() == [[4, 2], [3, -1]], "pages ahead of the tokens are left out"
    whole = [meta.token_ids, meta.positions, meta.slots, meta.request, meta.ring_row, meta.last_rows, meta.visible4]
    whole += [meta.visible128, meta.csa_len, meta.ring_store_src, meta.ring_store_dst]
    for plan in meta.compress.values():
        whole += [plan.out_slot, plan.out_row, plan.position, plan.gather_state, plan.gather_flat, plan.state_src]
        assert plan.from_flat.dtype == torch.bool
        assert plan.gather_state.shape == plan.gather_flat.shape == plan.from_flat.shape
        assert plan.gather_state.shape[1] == {4: 8, 128: 128}[plan.ratio]
    assert {t.dtype for t in whole} == {torch.int64}
    assert meta.csa is not None
    assert meta.extend is not None
    streams = [meta.extend, *meta.prefix.values()]
    assert {t.dtype for s in streams for t in (s.indptr, s.indices)} == {torch.int32}
    assert meta.csa_prefix_indptr is meta.csa.indptr
    assert all(t.is_contiguous() for t in whole)
    with pytest.raises(PoolError, match="no ratio-4 decode stream in the metadata of a prefill forward"):
        _ = meta.csa_indptr
    no_csa = build_metadata(replace(G, compress_ratios=(0, 128)), 4, items, "decode")
    assert no_csa.csa is None
    assert set(no_csa.compress) == {128}


def test_row_numbers_past_the_usual_ranges() -> None:
    """Row times width passes 2**31 from row 4194304 on; rows themselves stay exact up to the int32 limit."""
    pages = 2**31 // 64 - 1
    g = replace(G, pages=pages, head_dim=512)
    far = (pages - 1, pages - 2)
    meta = build_metadata(g, 512, [BatchItem(3, far, 259, (1,))], "decode")
    assert meta.compress[4].out_row.tolist() == [36 + (pages - 2) * 64]
    assert int(meta.compress[4].out_row[0]) * 512 > 2**39
    assert meta.streams[128].indices[-2:].tolist() == [36 + (pages - 1) * 2, 37 + (pages - 1) * 2]
    with pytest.raises(ConfigError, match="rows in a layer; at most 2147483647"):
        replace(g, pages=2**31 // 64)


def test_streams_that_int32_cannot_bound_are_refused() -> None:
    assert indptr_of(np.array([2**30, 2**30 - 1])).tolist() == [0, 2**30, 2**31 - 1]
    with pytest.raises(PoolError, match="use smaller chunks"):
        indptr_of(np.array([2**30, 2**30]))


def test_plan_refuses_nonsense() -> None:
    for name in ("max_requests", "max_tokens", "verify_tokens"):
        given = {"max_requests": 2, "max_tokens": 600, "verify_tokens": 1, name: 0}
        with pytest.raises(ConfigError, match=f"{name} = 0: takes an integer >= 1"):
            Geometry.plan(preset("tiny"), given.pop("max_requests"), given.pop("max_tokens"), **given)
    assert Geometry.plan(preset("flash"), 2, 600).pages == 4


def test_snapshot_round_trip() -> None:
    allocator = Allocator(G)
    second = allocator.admit(8, 1)
    first = allocator.admit(7, 300)
    allocator.release(second)
    snapshot = pool_snapshot(G, allocator, {7: 299}, step=5, dtype_bytes=2, row_bytes=10)
    assert snapshot.row_bytes == 10
    assert PoolSnapshot.from_json(snapshot.to_json()) == snapshot
    (request,) = snapshot.requests
    assert (request.request_id, request.slot, request.tokens, request.pages) == (7, 2, 299, (2, 3))
    assert (snapshot.free_pages, snapshot.free_slots) == ((1, 4), (1, 3))
    assert (snapshot.step, snapshot.ring_rows, snapshot.pages, snapshot.dtype_bytes) == (5, 9, 5, 2)
    for lengths in ({}, {7: 1, 8: 1}):
        with pytest.raises(PoolError, match="a lease or a length, not both"):
            pool_snapshot(G, allocator, lengths, 5, dtype_bytes=2)
    with pytest.raises(PoolError, match="request 7 has 513 tokens, more than its pages hold"):
        pool_snapshot(G, allocator, {7: 513}, 5, dtype_bytes=2)
    assert query_reads(G, first, 299, 2).request_id == 7


@pytest.mark.parametrize("position", [0, 3, 7, 127, 128, 299])
def test_query_reads_equal_the_decode_streams(position: int) -> None:
    lease = Allocator(G).admit(7, 300)
    meta = build_metadata(G, 512, [BatchItem(lease.slot, lease.pages, position, (1,))], "decode")
    swa, csa, hca = (query_reads(G, lease, position, layer) for layer in (0, 1, 2))
    assert list(swa.window_rows) == meta.window.indices.tolist()
    assert swa.compressed_rows == ()
    assert [*hca.window_rows, *hca.compressed_rows] == meta.streams[128].indices.tolist()
    assert len(csa.compressed_rows) == int(meta.visible4[0])
    assert (swa.ratio, csa.ratio, hca.ratio) == (0, 4, 128)


def test_query_reads_of_a_selection() -> None:
    lease = Allocator(G).admit(7, 300)
    reads = query_reads(G, lease, 299, 3, [70, 2])
    assert reads.compressed_rows == (G.compressed_row(lease.pages, 70, 4), G.compressed_row(lease.pages, 2, 4))
    for call, text in (
        (lambda: query_reads(G, lease, 299, 3, [75]), "entry 75 is not among the 75 that position 299 may see"),
        (lambda: query_reads(G, lease, 299, 4), r"layer 4: takes a layer in 0\.\.3"),
        (lambda: query_reads(G, lease, 512, 0), r"position 512 of request 7: its pages hold positions 0\.\.511"),
    ):
        with pytest.raises(PoolError, match=text):
            call()


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        (("geometry", "allocator", "formats", "memory"), ("torch", "numpy")),
        (("index_streams", "compress_plan", "snapshot"), ("torch",)),
    ],
)
def test_bookkeeping_loads_without_the_heavy_libraries(modules: tuple[str, ...], forbidden: tuple[str, ...]) -> None:
    code = f"import sys, {', '.join(f'dsv4lab.kv.{m}' for m in modules)}; print(set(sys.modules) & set({forbidden!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("set()", "")
