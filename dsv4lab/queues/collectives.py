"""Collectives: a rank waits for the slowest one (hw-queues 4.12, C7 to C9)."""

from __future__ import annotations

from dsv4lab.queues.simulate import Simulated


def arrival_floors(baseline: Simulated, skew_us: float) -> dict[int, float]:
    """How long after the collective before it each collective ends at the soonest, in nanoseconds, by its rank in
    order; see :func:`floors_for`.

    The slowest rank comes ``skew_us`` after this one in the baseline, for reasons that no plan of ours changes (a late
    host, another chip): it takes the baseline's time between two collectives plus the skew. A gain below the skew
    therefore does not show.
    """
    ends = [
        end
        for end, kind in sorted(zip(baseline.times.end, baseline.workload.kinds, strict=True))
        if kind == "collective"
    ]
    return {k: end - before + skew_us * 1e3 for k, (before, end) in enumerate(zip([0.0, *ends], ends, strict=False))}


def floors_for(kinds: tuple[str, ...], floors: dict[int, float]) -> dict[int, float]:
    """``floors`` by op: the ``k``-th collective of ``kinds`` gets the ``k``-th floor."""
    numbers = [i for i, kind in enumerate(kinds) if kind == "collective"]
    return {i: floors[k] for k, i in enumerate(numbers) if k in floors}
