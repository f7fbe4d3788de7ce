"""Kernels on few SMs, all others being held by workgroups that take their shared memory: what crowding costs.

Rows are of a run on an H200 (docs/measurements/h200-places/crowd.json): an op of this project behind a tick that spans
``held`` such workgroups, with each of its kernels' number, name, workgroups, the share and the KiB of shared memory
that one takes, start and end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from dsv4lab.predict.kernel_rows import Asked, asked
from dsv4lab.queues.costs import Machine, with_values
from dsv4lab.queues.simulate import simulate
from dsv4lab.queues.workload import Cost, Workload
from dsv4lab.timeline.program import MAIN

VALUES = tuple(n / 10 for n in range(11))
SM_KIB = 228
HOLD_US = 1e4
FREE = ("gap_us", "graph_us", "graph_submit_us", "signal_device_us", "dispatch_us")


def crowd_slow(
    rows: Sequence[Mapping[str, Any]], carveouts: Asked, moved: Mapping[str, float], on: Machine
) -> dict[float, float]:
    """By value of ``crowd_slow``: mean error of the last kernel's time on few SMs, as a share of what it took there.
    ``moved``: bytes by op and tokens.
    """
    free = with_values(on, dict.fromkeys(FREE, 0.0))
    found: dict[float, float] = {}
    for value in VALUES:
        machine = with_values(free, {"crowd_slow": value})
        errors: list[float] = []
        for op in dict.fromkeys(f"{row['op']} {row['tokens']}" for row in rows):
            own = {row["held"]: row["kernels"][-1] for row in rows if f"{row['op']} {row['tokens']}" == op}
            cost = _cost(own[0], carveouts, moved[op], machine)
            errors += [abs(_beside(held, cost, machine) / _took(k) - 1.0) for held, k in own.items() if held]
        found[value] = fmean(errors)
    return found


def _took(kernel: Sequence[Any]) -> float:
    start, end = kernel[5:7]
    return float(end - max(0.0, start))


def _cost(kernel: Sequence[Any], carveouts: Asked, moved: float, on: Machine) -> Cost:
    _, name, blocks, footprint, shared_kib, *_ = kernel
    us, rate = _took(kernel), on["bandwidth_gbps"] * on["roof_share"] * 1e3
    return Cost(
        us, min(1.0, blocks / on["cus"]), min(1.0, moved / (us * rate)), blocks=blocks, footprint=footprint,
        shared=shared_kib / SM_KIB, prefers=asked(carveouts, name, shared_kib * 1024),
    )  # fmt: skip


def _beside(held: int, cost: Cost, on: Machine) -> float:
    """What a kernel takes on the CUs that ``held`` workgroups leave."""
    work = Workload(
        ("hold", "kernel"), (-1, -1), ("side0", MAIN), ((), ()), (Cost(HOLD_US, 1.0, blocks=held, footprint=1.0), cost),
        ("kernel",) * 2, (0,) * 2,
    )  # fmt: skip
    times = simulate(work, on, torch=True).times
    return (times.end[1] - times.start[1]) / 1e3
