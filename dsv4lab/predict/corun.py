"""What kernels lose beside each other, read from the rows of ``kernels/bench/corun.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

LEAST_DRAWN = 0.15
"""Rows whose reads draw less than this share of the memory rate say little about it."""

HOPS, READS = "hop", "read"


def latency_load(rows: Sequence[Mapping[str, Any]], rate_gbps: float) -> float:
    """How much later memory answers while others draw all of ``rate_gbps``: median over rows of a chain of dependent
    loads (``hop``) beside reads.

    While the reads last, the chain falls behind by what both take together beyond the chain alone.
    """
    found: list[float] = []
    for row in rows:
        ops = row["program"]["ops"]
        if {op["name"] for op in ops} != {HOPS, READS}:
            continue
        told = row["told"]
        drawn = told["gbps"] / rate_gbps
        lost = row["measured_us"] - told["hops_alone_us"]
        if drawn >= LEAST_DRAWN:
            found.append(lost / (told["reads_alone_us"] - lost) / drawn)
    return median(found)
