from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4lab.timeline.records import PoolRequest, PoolSnapshot, QueryReads
from dsv4lab.viz import pool_cells
from dsv4lab.viz.page_layout import page_layout_figure
from dsv4lab.viz.query_reads import entry_grid, pages_read

RATIOS = (0, 4, 128)


def snapshot(lengths: list[int], *, slots: int = 6, ring: int = 16, pages: int = 24) -> PoolSnapshot:
    free = list(range(1, pages))[::-1]
    requests = []
    for number, tokens in enumerate(lengths):
        owned = tuple(free.pop() for _ in range(-(-tokens // 256)))
        requests.append(PoolRequest(100 + number, number + 1, tokens, owned))
    free_slots = tuple(range(len(lengths) + 1, slots))
    return PoolSnapshot(
        7, slots, ring, ring, pages, 256, 8, 4, RATIOS, tuple(requests), tuple(sorted(free)), free_slots
    )


def reads_of(pool: PoolSnapshot, request: PoolRequest, ratio: int, entries: list[int]) -> QueryReads:
    position = request.tokens - 1
    window = range(max(0, position + 1 - pool.ring_rows), position + 1)
    base, per_page = pool.slots * pool.ring_rows, pool.page_size // max(1, ratio)
    rows = tuple(request.slot * pool.ring_rows + p % pool.ring_rows for p in window)
    compressed = tuple(base + request.pages[w // per_page] * per_page + w % per_page for w in entries)
    return QueryReads(request.request_id, position, RATIOS.index(ratio), ratio, rows, compressed)


@given(st.lists(st.integers(0, 1200), max_size=5))
def test_cells_tell_owner_free_and_reserved(lengths: list[int]) -> None:
    pool = snapshot(lengths)
    cells = pool_cells.page_cells(pool)
    category = np.floor(cells.z.ravel()[: pool.pages]).astype(int)
    assert cells.group == 1
    assert category[0] == pool_cells.RESERVED
    assert all(category[p] == pool_cells.FREE for p in pool.free_pages)
    for request in pool.requests:
        assert all(category[p] == pool_cells.category(request.request_id) for p in request.pages)
    assert not (category == pool_cells.STRAY).any()


def test_ring_shade_follows_age_and_the_head_is_marked() -> None:
    pool = snapshot([20])  # ring of 16: head at row 3, oldest at row 4
    z, hover = pool_cells.ring_rows(pool)
    shade = z[1] - pool_cells.category(100)
    assert int(np.argmax(shade)) == 3
    assert int(np.argmin(shade)) == 4
    assert "position 19 (head)" in hover[1, 3]
    assert "position 4<" not in hover[1, 4]
    assert "position 4" in hover[1, 4]
    assert "reserved" in hover[0, 0]
    fig = page_layout_figure(pool)
    head = next(t for t in fig.data if t.name == "next write")
    assert (list(head.x), list(head.y)) == ([3.5], [1])


def test_unwritten_ring_rows_say_so() -> None:
    z, hover = pool_cells.ring_rows(snapshot([3]))
    assert "not written yet" in hover[1, 3]
    assert z[1, 3] == pool_cells.category(100)


def test_pages_nobody_owns_stand_out() -> None:
    pool = snapshot([300])
    torn = PoolSnapshot(**{f: getattr(pool, f) for f in pool.__slots__} | {"free_pages": pool.free_pages[1:]})
    cells = pool_cells.page_cells(torn)
    lost = pool.free_pages[0]
    assert int(cells.z.ravel()[lost]) == pool_cells.STRAY
    assert "owner unknown" in cells.hover.ravel()[lost]


def test_pages_of_several_requests_and_of_the_prefix_cache_name_all_their_owners() -> None:
    pool = PoolSnapshot(
        3, 4, 16, 16, 8, 256, 8, 4, RATIOS,
        (PoolRequest(7, 1, 600, (1, 2, 3)), PoolRequest(8, 2, 300, (1, 4))), (6, 7), (3,), cached_pages=(1, 2, 5),
    )  # fmt: skip
    cells = pool_cells.page_cells(pool)
    kinds = pool_cells.page_owners(pool)
    assert kinds.tolist()[:6] == [
        pool_cells.RESERVED,
        pool_cells.SHARED,
        pool_cells.category(7),
        pool_cells.category(7),
        pool_cells.category(8),
        pool_cells.CACHED,
    ]
    hover = cells.hover.ravel()
    assert all(words in hover[1] for words in ("request 7, its page 0", "request 8, its page 0", "prefix cache"))
    assert "request 7, its page 1" in hover[2]
    assert "kept by the prefix cache" in hover[2]
    assert hover[5] == "page 5<br>kept by the prefix cache"
    fig = page_layout_figure(pool)
    assert {"several requests", "prefix cache"} <= {trace.name for trace in fig.data}
    assert "5 of 7 pages in use" in fig.layout.title.text
    assert "3 pages kept by the prefix cache" in fig.layout.title.text
    assert PoolSnapshot.from_json(pool.to_json()) == pool


def test_large_pools_are_aggregated() -> None:
    pool = PoolSnapshot(
        1, 1025, 133, 128, 200_000, 256, 512, 2, (0, 4, 128) * 20,
        (PoolRequest(1, 1, 256 * 100_000, tuple(range(1, 100_001))),),
        tuple(range(100_001, 200_000)), tuple(range(2, 1025)),
    )  # fmt: skip
    cells = pool_cells.page_cells(pool)
    assert cells.group == 64
    assert np.isfinite(cells.z).sum() <= pool_cells.MOST_CELLS
    assert "64 in use, 0 free" in cells.hover.ravel()[5]
    fig = page_layout_figure(pool)
    assert sum(np.size(t.z) for t in fig.data if t.type == "heatmap") < 3 * pool_cells.MOST_CELLS
    assert "64 pages a cell" in fig.layout.annotations[1].text


@settings(max_examples=25)
@given(st.integers(16, 1200), st.sampled_from(RATIOS), st.data())
def test_overlay_marks_exactly_the_rows_read(tokens: int, ratio: int, data: st.DataObject) -> None:
    pool = snapshot([tokens, 40])
    visible = tokens // ratio if ratio else 0
    chosen = data.draw(st.lists(st.integers(0, visible - 1), unique=True, max_size=20)) if visible else []
    reads = reads_of(pool, pool.requests[0], ratio, chosen)
    fig = page_layout_figure(pool, reads)
    rings, pages = (t for t in fig.data if t.name == "reads")
    assert set(rings.x) == set(range(16))
    assert set(rings.y) == {1}
    numbers, counts = pages_read(pool, reads)
    assert counts.sum() == len(chosen)
    assert set(numbers) <= set(pool.requests[0].pages)
    assert len(pages.x) == len(numbers)
    grid = entry_grid(pool, reads)
    assert (grid is None) == (ratio == 0)
    if grid is not None:
        assert grid.read == len(chosen)
        assert sorted(np.flatnonzero(grid.z.ravel() == 2.0)) == sorted(chosen)
        assert np.nansum(grid.z.ravel() >= 1.0) == visible


def test_long_contexts_group_their_entries() -> None:
    pool = snapshot([256 * 200], pages=300)
    request = pool.requests[0]
    grid = entry_grid(pool, reads_of(pool, request, 4, list(range(0, 12_000, 100))))
    assert grid is not None
    assert (grid.entries, grid.group, grid.read) == (12_800, 4, 120)
    assert np.isfinite(grid.z).sum() == 3200


def test_title_counts_pages_slots_and_bytes() -> None:
    fig = page_layout_figure(snapshot([300, 20]))
    text = fig.layout.title.text
    assert "3 of 23 pages in use" in text
    assert "2 of 5 slots" in text
    assert "MiB in 3 layers" in text
    assert page_layout_figure(snapshot([])).layout.title.text.count("0 of 23 pages") == 1
