"""Work on parts of a timeline side by side: numpy computes on whole columns outside the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dsv4lab.host import usable_cores

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

WORTH_ROWS = 200_000
"""Rows from which threads pay for their start."""
_MOST_THREADS = 4


def each(function: Callable[[_Item], _Result], items: Sequence[_Item], rows: int) -> list[_Result]:
    """``function`` of every item, in order; on several threads where the items stand for many ``rows``."""
    threads = min(usable_cores(), _MOST_THREADS, len(items))
    if rows < WORTH_ROWS or threads < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads, "timeline") as pool:
        return list(pool.map(function, items))
