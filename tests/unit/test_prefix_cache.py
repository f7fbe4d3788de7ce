"""The prefix cache alone: what is found, what is given up, and that a collision is never a hit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from dsv4lab.errors import PoolError
from dsv4lab.kv.allocator import Allocator, Lease
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.prefix_cache import PrefixCache

PAGE = 128


@dataclass(frozen=True)
class Saved:
    slot: int
    length: int
    nbytes: int = 100


def cache_of(pages: int = 12, max_bytes: int = 10_000, **more: Any) -> PrefixCache:
    geometry = Geometry(16, 16, 7, pages + 1, 8, 8, (0, 4, 128), page_size=PAGE)
    return PrefixCache(Allocator(geometry), Saved, max_bytes, **more)


def text(*pages: int) -> list[int]:
    """One page of equal tokens per number."""
    return [page for page in pages for _ in range(PAGE)]


def fill(cache: PrefixCache, number: int, *pages: int) -> Lease:
    """A request that computes these pages one after the other, and runs on."""
    hit = cache.match(text(*pages), len(pages) * PAGE - 1)
    lease = cache.allocator.admit(number, len(pages) * PAGE, hit.pages if hit else ())
    cache.count(text(*pages), hit)
    for count in range(len(hit.pages) + 1 if hit else 1, len(pages) + 1):
        cache.keep(text(*pages[:count]), lease)
    cache.check()
    cache.allocator.check()
    return lease


def found(cache: PrefixCache, *pages: int, extra: int = 1) -> int:
    hit = cache.match([*text(*pages), *[7] * extra], len(pages) * PAGE + extra - 1)
    return 0 if hit is None else hit.length // PAGE


def test_a_hit_is_the_longest_prefix_of_whole_pages() -> None:
    cache = cache_of()
    lease = fill(cache, 1, 1, 2, 3)
    hit = cache.match(text(1, 2, 3, 4), 4 * PAGE - 1)
    assert hit is not None
    assert (hit.length, hit.pages) == (3 * PAGE, lease.pages)
    assert hit.snapshot == Saved(lease.slot, 3 * PAGE)
    assert [found(cache, *pages) for pages in ((1,), (1, 2), (1, 9), (9, 2), (1, 2, 9, 4))] == [1, 2, 1, 0, 2]


def test_a_hit_leaves_a_token_to_compute() -> None:
    cache = cache_of()
    fill(cache, 1, 1, 2)
    assert found(cache, 1, 2, extra=0) == 1
    assert found(cache, 1, 2, extra=1) == 2
    assert cache.match(text(1)[:-1], PAGE - 2) is None


def test_pages_are_shared_and_come_back_when_the_last_reader_has_gone() -> None:
    cache = cache_of()
    first = fill(cache, 1, 1, 2)
    second = fill(cache, 2, 1, 2, 3)
    assert second.pages[:2] == first.pages
    assert second.pages[2] not in first.pages
    assert cache.allocator.release(first).pages == ()
    cache.evict(9)
    assert cache.pages == 3, "request 2 holds all of them"
    assert cache.allocator.release(second).pages == ()
    assert cache.allocator.idle_pages == 3
    cache.evict(2)
    assert found(cache, 1, 2, 3) == 1, "children go before their parents"
    assert sorted(cache.take_freed()) == sorted(second.pages[1:])
    assert cache.take_freed() == ()


def test_the_least_recently_used_leaf_goes_first() -> None:
    cache = cache_of()
    for number, pages in enumerate(((1, 2), (1, 3), (4,))):
        cache.allocator.release(fill(cache, number, *pages))
    hit = cache.match(text(1, 2, 9), 3 * PAGE - 1)
    cache.count(text(1, 2, 9), hit)
    cache.evict(1)
    assert [found(cache, *p) for p in ((1, 2), (1, 3), (4,))] == [2, 1, 1]
    cache.evict(1)
    assert [found(cache, *p) for p in ((1, 2), (4,))] == [2, 0]


def test_what_a_hit_needs_is_spared() -> None:
    cache = cache_of()
    cache.allocator.release(fill(cache, 1, 1, 2))
    hit = cache.match(text(1, 2, 3), 3 * PAGE - 1)
    assert hit is not None
    cache.evict(5, hit.pages)
    assert cache.pages == 2


def test_snapshots_are_bounded_and_pages_without_any_below_them_go_too() -> None:
    cache = cache_of(max_bytes=200)
    cache.allocator.release(fill(cache, 1, 1, 2, 3))
    assert (cache.snapshots, cache.snapshot_bytes, cache.pages) == (2, 200, 3)
    assert [found(cache, *p) for p in ((1,), (1, 2), (1, 2, 3))] == [0, 2, 3]
    cache.allocator.release(fill(cache, 2, 5, 6))
    assert (cache.snapshots, cache.pages) == (2, 2), "the old branch has no snapshot left, so its pages are free"
    assert cache.stats.evicted_snapshots == 3
    assert cache.allocator.free_pages == 10


def test_pages_are_bounded() -> None:
    cache = cache_of(max_pages=2)
    first = fill(cache, 1, 1, 2, 3)
    assert (cache.pages, found(cache, 1, 2, 3)) == (2, 2)
    fill(cache, 2, 4)
    assert cache.pages == 2, "request 1 still reads both"
    cache.allocator.release(first)
    fill(cache, 3, 5)
    assert (cache.pages, found(cache, 5), found(cache, 1, 2)) == (2, 1, 1)


def test_a_collision_is_a_miss_and_keeps_nothing() -> None:
    cache = cache_of(digest=lambda parent, tokens: b"the same")
    fill(cache, 1, 1)
    assert found(cache, 1) == 1
    assert found(cache, 2) == 0
    fill(cache, 2, 2)
    assert (cache.pages, found(cache, 1), found(cache, 2)) == (1, 1, 0)


def test_the_same_page_after_another_beginning_is_another_page() -> None:
    cache = cache_of()
    fill(cache, 1, 1, 3)
    fill(cache, 2, 2, 3)
    assert cache.pages == 4
    assert found(cache, 3) == 0


def test_nothing_is_kept_below_pages_of_somebody_else() -> None:
    """Two requests that began together both computed page 1; the second one's page 2 was made from its own page 1."""
    cache = cache_of()
    a = cache.allocator.admit(1, 2 * PAGE)
    b = cache.allocator.admit(2, 2 * PAGE)
    cache.keep(text(1), a)
    cache.keep(text(1), b)
    cache.keep(text(1, 2), b)
    assert (cache.pages, found(cache, 1, 2)) == (1, 1)
    cache.keep(text(1, 2), a)
    assert found(cache, 1, 2) == 2
    cache.check()


def test_misuse_is_refused() -> None:
    cache = cache_of()
    lease = fill(cache, 1, 1)
    allocator = cache.allocator
    with pytest.raises(PoolError, match="129 tokens are no whole pages of 128"):
        cache.keep([1] * 129, lease)
    with pytest.raises(PoolError, match="request 2 cannot share page 5: the prefix cache does not hold it"):
        allocator.admit(2, 300, (5,))
    with pytest.raises(PoolError, match="2 shared pages hold more"):
        allocator.admit(2, 1, (lease.pages[0], lease.pages[0]))
    with pytest.raises(PoolError, match=f"page {lease.pages[0]} is not the prefix cache's alone"):
        allocator.uncache(lease.pages[0])
    with pytest.raises(PoolError, match=f"page {lease.pages[0]} cannot be cached: cached already"):
        allocator.cache(lease.pages[0])
    with pytest.raises(PoolError, match="page 9 cannot be cached: unowned"):
        allocator.cache(9)


def test_damage_between_cache_and_allocator_is_found() -> None:
    cache = cache_of()
    lease = fill(cache, 1, 1)
    cache.allocator._cached.clear()
    with pytest.raises(PoolError, match="the prefix cache has pages"):
        cache.check()
    cache.allocator._cached.add(lease.pages[0])
    cache._bytes += 1
    with pytest.raises(PoolError, match="counts 101 bytes of snapshots, it has 100"):
        cache.check()
