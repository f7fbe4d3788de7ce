"""Batch invariance: within :func:`batch_invariant` the bits of a row do not depend on what else is in the batch.

Every sum of a row is then made in one order. Kernels sum a row in an order that follows from the kernel taken, its
tiles and its splits alone, so it is enough that these are the same for all batches: sizes that grow with a batch count
as one fixed number wherever something is chosen by them (launch tables, switches between kernels), lists are cut into
a fixed number of splits, and no program shares what it reads between neighbours. This module is the one place that
knows the numbers; it is asked when an op is launched, so a captured graph keeps what was in force at its capture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

MANY = 1 << 30
COUNTS_AS: Mapping[str, int] = {"tokens": 64, "rows": 512, "requests": 8, "keys": MANY, "prefix": MANY}
"""What sizes of a batch count as. 64 tokens: matrix tiles of at most 64 rows, which one token can afford, no splits
of K that need memory per token, and no kernel that is only there for few tokens."""

SPLITS = 8
"""Programs that share the list of one token in decode attention, where the list has as many blocks."""

_active: ContextVar[bool] = ContextVar("batch_invariant", default=False)


@contextmanager
def batch_invariant() -> Iterator[None]:
    """Within the block, in this thread, kernels are launched batch-invariantly."""
    token = _active.set(True)
    try:
        yield
    finally:
        _active.reset(token)


def active() -> bool:
    """Whether this is a :func:`batch_invariant` block."""
    return _active.get()


def counted(size: str, value: int) -> int:
    """``value``, or in a :func:`batch_invariant` block what every batch's ``size`` counts as."""
    return COUNTS_AS.get(size, value) if _active.get() else value


def counted_sizes(sizes: Mapping[str, int]) -> Mapping[str, int]:
    """:func:`counted` of every size."""
    return {name: counted(name, value) for name, value in sizes.items()} if _active.get() else sizes
