"""Maps of the pool against a dictionary of every row, and against the pool's own geometry."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4lab.errors import UsageError
from dsv4lab.kv.allocator import Allocator
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.snapshot import pool_snapshot, query_reads
from dsv4lab.timeline.records import PoolRequest, PoolSnapshot
from dsv4lab.viz.pool_facts import pool_facts
from dsv4lab.viz.pool_map import FREE, RESERVED, STRAY, PoolMap, ages, pool_reads

RATIOS = (0, 4, 128)
GEOMETRY = Geometry(
    window=128, ring_rows=131, slots=5, pages=14, head_dim=512, index_head_dim=128, compress_ratios=RATIOS
)


@st.composite
def snapshots(draw: st.DrawFn) -> PoolSnapshot:
    """A pool of 13 pages and four slots with up to four requests."""
    pages = draw(st.permutations(range(1, 14)))
    slots = draw(st.permutations(range(1, 5)))
    requests, at = [], 0
    for number in range(draw(st.integers(0, 4))):
        held = draw(st.integers(0, min(4, 13 - at)))
        tokens = draw(st.integers(max(0, (held - 1) * 256 + 1) if held else 0, held * 256))
        requests.append(PoolRequest(number * 7, slots[number], tokens, tuple(pages[at : at + held])))
        at += held
    kept = draw(st.integers(0, 13 - at))  # by a cache that the snapshot does not name
    free = tuple(sorted(pages[at + kept :]))
    return PoolSnapshot(
        3, 5, 131, 128, 14, 256, 512, 2, RATIOS, tuple(requests), free, tuple(sorted(slots[len(requests) :]))
    )


def by_row(snapshot: PoolSnapshot, ratio: int) -> dict[int, tuple[int, bool]]:
    """Holder of every row, and whether it holds something, row by row."""
    out = {row: (RESERVED if row < 131 else FREE, False) for row in range(5 * 131)}
    for r in snapshot.requests:
        for row in range(131):
            out[r.slot * 131 + row] = (r.request_id, row < min(r.tokens, 131))
    size = 256 // ratio
    for page in range(14):
        owner = RESERVED if page == 0 else FREE if page in snapshot.free_pages else STRAY
        for row in range(size):
            out[655 + page * size + row] = (owner, owner == STRAY)
    for r in snapshot.requests:
        for at, page in enumerate(r.pages):
            for row in range(size):
                out[655 + page * size + row] = (r.request_id, (at * size + row + 1) * ratio <= r.tokens)
    return out


@settings(max_examples=40)
@given(snapshots(), st.sampled_from([4, 128]), st.sampled_from([4096, 300, 16, 5]), st.data())
def test_cells_agree_with_every_row(snapshot: PoolSnapshot, ratio: int, most: int, data: st.DataObject) -> None:
    pool, rows = PoolMap(snapshot), by_row(snapshot, ratio)
    read = data.draw(st.sets(st.sampled_from(sorted(rows)), max_size=40))
    first = pool.swa_rows
    ring_read = np.array(sorted(r for r in read if r < first), np.int64)
    page_read = np.array(sorted(r for r in read if r >= first), np.int64)
    for cells, end in (
        (pool.rings(None, ring_read, most), first),
        (pool.pages(ratio, None, page_read, most), len(rows)),
    ):
        begin = cells.first_row
        for at in range(len(cells.owner)):
            if cells.first_row == 0 and cells.rows < 131:
                slot, part = divmod(at, cells.unit)
                own = range(slot * 131 + part * cells.rows, min(slot * 131 + (part + 1) * cells.rows, (slot + 1) * 131))
            else:
                own = range(begin + at * cells.rows, min(begin + (at + 1) * cells.rows, end))
            used = sum(rows[r][1] for r in own)
            assert cells.used[at] == int(np.ceil(255 * used / len(own)))
            assert cells.read[at] == int(np.ceil(255 * sum(r in read for r in own) / len(own)))
            owners = {rows[r][0] for r in own}
            assert cells.owner[at] in owners
            if any(o >= 0 for o in owners):
                weight = {o: sum(rows[r][1] for r in own if rows[r][0] == o) for o in owners if o >= 0}
                assert weight[int(cells.owner[at])] == max(weight.values())
            assert cells.holders[at] == any(o >= 0 for o in owners)
        assert len(cells.owner) * cells.rows >= end - begin


@settings(max_examples=30)
@given(st.integers(0, 1023), st.sampled_from([0, 1, 2]))
def test_reads_are_those_of_the_pool(position: int, layer: int) -> None:
    allocator = Allocator(GEOMETRY)
    allocator.admit(1, 300)
    lease = allocator.admit(9, 1024)
    pool = PoolMap(pool_snapshot(GEOMETRY, allocator, {1: 300, 9: 1000}, 0, dtype_bytes=2))
    expected = query_reads(GEOMETRY, lease, position, layer)
    window, rows = pool_reads(pool, 9, position, RATIOS[layer])
    assert tuple(window.tolist()) == expected.window_rows
    assert tuple(rows.tolist()) == expected.compressed_rows


def made(*requests: PoolRequest, step: int = 0, free: tuple[int, ...] = (), slots: tuple[int, ...] = ()) -> PoolMap:
    return PoolMap(PoolSnapshot(step, 5, 131, 128, 14, 256, 512, 2, RATIOS, requests, free, slots))


def test_facts_count_waste_runs_and_bytes() -> None:
    pool = made(
        PoolRequest(1, 1, 300, (3, 4)), PoolRequest(2, 2, 256, (9,)), free=(1, 2, 5, 6, 7, 10, 11, 12, 13), slots=(3, 4)
    )
    facts = pool_facts(pool)
    assert (facts.pages_held, facts.pages_free, facts.pages_other, facts.slots_held) == (3, 9, 1, 2)
    assert (facts.tokens, facts.capacity) == (556, 13 * 256)
    assert facts.waste == pytest.approx(1 - 556 / 768)
    assert (facts.contiguity, facts.longest_free) == (1.0, 4)
    sizes = {p.part: (p.rows, p.bytes, p.used_bytes) for p in facts.parts}
    assert sizes["rings (every layer)"] == (655, 655 * 3 * 1024, 262 * 3 * 1024)
    assert sizes["CSA entries"] == (14 * 64, 14 * 64 * 1024, (64 + 11 + 64 + 64) * 1024)
    assert facts.bytes == sum(p.bytes for p in facts.parts)


def test_a_shared_page_counts_its_holders() -> None:
    pool = made(PoolRequest(1, 1, 512, (3, 4)), PoolRequest(2, 2, 300, (3, 9)), slots=(3, 4))
    assert pool.holders[[3, 4, 9]].tolist() == [2, 1, 1]
    assert pool_facts(pool).pages_shared == 1
    assert pool.tokens[3] == 256


def test_age_starts_anew_with_a_new_holder() -> None:
    first = made(PoolRequest(1, 1, 300, (3, 4)), step=10, free=(5,), slots=(2, 3, 4))
    second = made(PoolRequest(1, 1, 300, (3, 4)), PoolRequest(2, 2, 9, (5,)), step=14, slots=(3, 4))
    third = made(PoolRequest(2, 1, 300, (3, 4)), step=20, free=(5,), slots=(2, 3, 4))
    pages, slots = ages([first, second])
    assert (pages[[3, 5]].tolist(), slots[[1, 2]].tolist()) == ([4, 0], [4, 0])
    pages, _ = ages([first, second, third])
    assert pages[[3, 5]].tolist() == [0, 0]
    assert third.pages(4, pages).age.max() == 0


def test_what_is_not_there_is_refused() -> None:
    pool = made(PoolRequest(1, 1, 300, (3, 4)))
    with pytest.raises(UsageError, match="it has: 1"):
        pool.request(2)
    with pytest.raises(UsageError, match=r"0\.\.511"):
        pool_reads(pool, 1, 512, 4)
    with pytest.raises(UsageError, match="no compressed rows"):
        pool.pages(0)


def test_tens_of_millions_of_rows_are_a_few_thousand_cells() -> None:
    pages = 400_001
    request = PoolRequest(5, 1, 200_000 * 256 - 100, tuple(range(1, 200_001)))
    free = tuple(range(200_001, pages))
    pool = PoolMap(PoolSnapshot(0, 257, 131, 128, pages, 256, 512, 2, RATIOS, (request,), free, tuple(range(2, 257))))
    assert pool.rows(4) > 25_000_000
    cells = pool.pages(4)
    assert len(cells.owner) <= 8192
    assert cells.used.max() == 255
    assert (cells.owner >= 0).sum() * cells.rows >= 200_000 * 64
