"""The cost of one kernel by itself: a floor of latency, then the slowest of its roofs."""

from __future__ import annotations

from dsv4lab.errors import UsageError
from dsv4lab.queues.costs import Machine

PRECISIONS = ("fp32", "bf16", "fp8", "fp4")


def duration_us(machine: Machine, size: float, flops: float, workgroups: float, precision: str = "bf16") -> float:
    """Microseconds of a kernel that moves ``size`` bytes and does ``flops`` operations in ``workgroups`` workgroups.

    The memory rate is the device's, or that of the CUs it occupies if they cannot draw all of it.
    """
    used = min(1.0, workgroups / machine["cus"])
    memory = min(
        machine["bandwidth_gbps"] * machine["roof_share"], used * machine["cus"] * machine["cu_bandwidth_gbps"]
    )
    arithmetic = _flops_rate(machine, precision) * used
    return machine["kernel_floor_us"] + max(size / (memory * 1e3), flops / (arithmetic * 1e6))


def shares(
    machine: Machine, us: float, size: float, flops: float, workgroups: float, precision: str = "bf16"
) -> tuple[float, float, float]:
    """``(occupancy, bandwidth, compute)`` of a kernel that takes ``us`` alone, each 0 to 1."""
    if us <= 0:
        return min(1.0, workgroups / machine["cus"]), 0.0, 0.0
    bandwidth = size / (us * 1e3) / (machine["bandwidth_gbps"] * machine["roof_share"])
    compute = flops / (us * 1e6) / _flops_rate(machine, precision)
    return min(1.0, workgroups / machine["cus"]), min(1.0, bandwidth), min(1.0, compute)


def _flops_rate(machine: Machine, precision: str) -> float:
    if precision not in PRECISIONS:
        raise UsageError(f"precision {precision!r} is not one of {', '.join(PRECISIONS)}")
    return machine[f"{precision}_tflops"] * machine["roof_share"]
