"""The allocator: nothing is owned twice, nothing is lost, and damage is found."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dsv4lab.errors import PoolError
from dsv4lab.kv.allocator import Allocator, Lease
from dsv4lab.kv.geometry import Geometry

SMALL = Geometry(window=8, ring_rows=8, slots=4, pages=9, head_dim=4, index_head_dim=4, compress_ratios=(0, 4, 128))
TOKENS = st.integers(1, 9 * 256)


class Machine(RuleBasedStateMachine):
    """A model of the allocator that only counts."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = Allocator(SMALL)
        self.held: dict[int, Lease] = {}
        self.next_id = 0

    def used_pages(self) -> int:
        return sum(-(-lease.tokens // 256) for lease in self.held.values())

    @rule(tokens=TOKENS)
    def admit(self, tokens: int) -> None:
        need = -(-tokens // 256)
        fits = len(self.held) < 3 and need <= 8 - self.used_pages()
        assert self.allocator.can_admit(tokens) == fits
        self.next_id += 1
        if not fits:
            with pytest.raises(PoolError):
                self.allocator.admit(self.next_id, tokens)
            return
        lease = self.allocator.admit(self.next_id, tokens)
        assert (lease.request_id, lease.tokens, len(lease.pages)) == (self.next_id, tokens, need)
        self.held[self.next_id] = lease

    @rule(pick=st.integers(0, 2), tokens=TOKENS)
    def grow(self, pick: int, tokens: int) -> None:
        if not self.held:
            return
        lease = list(self.held.values())[pick % len(self.held)]
        before, slot = lease.pages, lease.slot
        fits = -(-tokens // 256) - len(before) <= 8 - self.used_pages()
        assert self.allocator.can_grow(lease, tokens) == fits
        if not fits:
            with pytest.raises(PoolError):
                self.allocator.grow(lease, tokens)
            assert lease.pages == before
            return
        assert self.allocator.grow(lease, tokens) is lease
        assert lease.pages[: len(before)] == before
        assert lease.slot == slot

    @rule(pick=st.integers(0, 2))
    def release(self, pick: int) -> None:
        if not self.held:
            return
        lease = self.held.pop(list(self.held)[pick % len(self.held)])
        self.allocator.release(lease)
        with pytest.raises(PoolError, match="already released"):
            self.allocator.release(lease)
        with pytest.raises(PoolError, match="already released"):
            self.allocator.grow(lease, 1)

    @invariant()
    def every_number_has_one_owner(self) -> None:
        self.allocator.check()
        pages = [p for lease in self.held.values() for p in lease.pages]
        slots = [lease.slot for lease in self.held.values()]
        assert sorted([*pages, *self.allocator.free_page_ids]) == list(range(1, 9))
        assert sorted([*slots, *self.allocator.free_slot_ids]) == list(range(1, 4))
        assert self.allocator.free_pages == len(self.allocator.free_page_ids)
        assert self.allocator.free_slots == len(self.allocator.free_slot_ids)
        assert self.allocator.leases == tuple(self.held.values())

    def teardown(self) -> None:
        for lease in self.held.values():
            self.allocator.release(lease)
        assert self.allocator.free_page_ids == tuple(range(1, 9))
        assert self.allocator.free_slot_ids == (1, 2, 3)
        self.allocator.check()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_errors_say_what_would_fit() -> None:
    allocator = Allocator(SMALL)
    first = allocator.admit(1, 6 * 256)
    for call, text in (
        (lambda: allocator.admit(1, 1), "request 1 already holds slot 1"),
        (lambda: allocator.admit(2, 0), "request 2 asks for 0 tokens: takes at least 1"),
        (lambda: allocator.admit(2, 2049), "request 2 needs 2049 tokens; the whole pool holds 2048"),
        (lambda: allocator.admit(2, 513), "needs 3 more pages for 513 tokens but 2 are free: at most 512 tokens of it"),
        (lambda: allocator.grow(first, 2049), "request 1 needs 2049 tokens; the whole pool holds 2048"),
    ):
        with pytest.raises(PoolError, match=re.escape(text)):
            call()
    allocator.admit(2, 1)
    with pytest.raises(PoolError, match="but 1 are free: at most 1792 tokens of it fit now"):
        allocator.grow(first, 8 * 256)
    allocator.admit(3, 1)
    with pytest.raises(PoolError, match="request 4 finds all 3 slots taken"):
        allocator.admit(4, 1)
    assert not allocator.can_admit(1)
    allocator.check()


def test_growing_to_less_changes_nothing() -> None:
    allocator = Allocator(SMALL)
    lease = allocator.admit(1, 600)
    assert allocator.grow(lease, 1).pages == (1, 2, 3)
    assert lease.tokens == 600


def test_a_copy_of_a_lease_is_no_lease() -> None:
    allocator = Allocator(SMALL)
    lease = allocator.admit(1, 5)
    with pytest.raises(PoolError, match="no such lease"):
        allocator.release(Lease(1, lease.slot, lease.pages, 5))


def _steal_page(allocator: Allocator, lease: Lease) -> None:
    lease.pages += allocator.leases[1].pages


def _free_owned_page(allocator: Allocator, lease: Lease) -> None:
    allocator._pages.append(lease.pages[0])


def _lose_page(allocator: Allocator, _: Lease) -> None:
    allocator._pages.pop()


def _free_reserved_page(allocator: Allocator, _: Lease) -> None:
    allocator._pages.append(0)


def _own_reserved_slot(_: Allocator, lease: Lease) -> None:
    lease.slot = 0


def _share_slot(allocator: Allocator, lease: Lease) -> None:
    lease.slot = allocator.leases[1].slot


def _drop_page(allocator: Allocator, lease: Lease) -> None:
    allocator._pages.append(lease.pages[-1])
    lease.pages = lease.pages[:-1]


def _rename(_: Allocator, lease: Lease) -> None:
    lease.request_id = 77


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (_steal_page, "page 3 has 2 owners: request 10, request 11"),
        (_free_owned_page, "page 1 has 2 owners: free, request 10"),
        (_lose_page, "has no owner and is not free (1 lost in all)"),
        (_free_reserved_page, "page 0 cannot be handed out, but is held by: free"),
        (_own_reserved_slot, "slot 0 cannot be handed out, but is held by: request 10"),
        (_share_slot, "slot 2 has 2 owners: request 10, request 11"),
        (_drop_page, "request 10 has 1 pages; 300 tokens take 2"),
        (_rename, "request 10 is filed with the lease of request 77"),
    ],
)
def test_check_finds_planted_damage(damage: Callable[[Allocator, Lease], None], text: str) -> None:
    allocator = Allocator(SMALL)
    lease = allocator.admit(10, 300)
    allocator.admit(11, 200)
    allocator.check()
    damage(allocator, lease)
    with pytest.raises(PoolError, match=re.escape(text)):
        allocator.check()
