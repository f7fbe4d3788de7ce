"""Which hardware queue a stream gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.errors import UsageError
from dsv4lab.queues.policies import POLICIES, QueuePool


@pytest.mark.parametrize("policy", POLICIES)
def test_streams_that_live_on_are_dealt_out_in_turn(policy: str) -> None:
    pool = QueuePool(4, policy)
    assert [pool.acquire(f"s{i}") for i in range(9)] == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_the_two_policies_differ_once_streams_are_destroyed() -> None:
    picks = {}
    for policy in POLICIES:
        pool = QueuePool(3, policy)
        for name in "abc":
            pool.acquire(name)
        pool.release("b")
        picks[policy] = pool.acquire("d")
    assert picks == {"round_robin": 0, "refcount": 1}


def test_a_stream_keeps_its_queue() -> None:
    pool = QueuePool(2)
    first = [pool.acquire(s) for s in ("main", "side0", "side1")]
    assert [pool.acquire(s) for s in ("side1", "side0", "main")] == first[::-1]


@given(st.integers(1, 6), st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40))
def test_refcount_spreads_streams_evenly(limit: int, moves: list[tuple[bool, int]]) -> None:
    pool = QueuePool(limit, "refcount")
    for create, stream in moves:
        users = [list(pool.mapping.values()).count(q) for q in range(limit)]
        if not create:
            pool.release(f"s{stream}")
        elif f"s{stream}" not in pool.mapping:
            assert users[pool.acquire(f"s{stream}")] == min(users)


@pytest.mark.parametrize(("limit", "policy", "text"), [(0, "refcount", "1 or more, got 0"), (2, "lru", "'lru' is not")])
def test_bad_pools_are_refused(limit: int, policy: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        QueuePool(limit, policy)
