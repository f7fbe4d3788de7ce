"""Where rows stand under the roofline, for work whose floating-point operations and bytes are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dsv4lab.errors import UsageError
from dsv4lab.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Work:
    """What one row of a name does: floating-point operations and bytes moved."""

    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """A name under the roofline. ``intensity`` is in operations per byte, rates are per second.

    ``roof`` is what the device allows at that intensity, ``share`` the part of it that was reached, ``bound`` is
    ``memory`` or ``compute``.
    """

    name: str
    rows: int
    mean_ns: float
    intensity: float
    flops_rate: float
    bytes_rate: float
    roof: float
    share: float
    bound: str


def roofline(
    timeline: Timeline, known: Mapping[str, Work], *, peak_flops: float, peak_bytes: float
) -> list[RooflinePoint]:
    """Points of all names in ``known`` that have busy rows, longest total time first.

    ``peak_flops`` and ``peak_bytes`` are the device's, per second. For work without operations the roof is the
    bandwidth, and ``share`` is of that. Raises ``UsageError`` unless both peaks are above zero.
    """
    if peak_flops <= 0 or peak_bytes <= 0:
        raise UsageError("roofline: peak_flops and peak_bytes must be above zero (per second)")
    out: list[tuple[int, RooflinePoint]] = []
    for at, name in enumerate(timeline.names):
        work = known.get(name)
        rows = np.flatnonzero(timeline.busy_mask & (timeline.name == at) & (timeline.dur_ns > 0)) if work else ()
        if work is None or not len(rows):
            continue
        total = int(timeline.dur_ns[rows].sum())
        out.append((total, _point(name, work, len(rows), total / len(rows), peak_flops, peak_bytes)))
    return [point for _, point in sorted(out, key=lambda pair: -pair[0])]


def _point(name: str, work: Work, rows: int, mean_ns: float, peak_flops: float, peak_bytes: float) -> RooflinePoint:
    flops_rate, bytes_rate = work.flops / mean_ns * 1e9, work.bytes / mean_ns * 1e9
    intensity = work.flops / work.bytes if work.bytes else float("inf")
    memory_bound = intensity < peak_flops / peak_bytes
    roof = min(peak_flops, intensity * peak_bytes) if work.flops else 0.0
    share = bytes_rate / peak_bytes if memory_bound else flops_rate / peak_flops
    bound = "memory" if memory_bound else "compute"
    return RooflinePoint(name, rows, mean_ns, intensity, flops_rate, bytes_rate, roof, share, bound)
