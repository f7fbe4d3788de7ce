"""Devices as data: how much work one does at a time, and what its command processor charges for packets.

Sources: ``P<n>`` and section numbers are rows of the facts sheet that docs/queue-model.md condenses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dsv4lab.errors import UsageError
from dsv4lab.queues.values import SWITCH, Value, Values, assumed, calibrated, known


@dataclass(frozen=True, slots=True)
class Device:
    """``name``, the runtime it is used with by default, and its values by name."""

    name: str
    runtime: str
    values: Values


_PAIR = "P21 of MI355X: two projections side by side, +13 % and +21 %; the mean of their slow-downs"

_MI355X: dict[str, Value] = {
    "cus": known(256, "CUs", "8 XCDs of 32 (rocm-systems#10286)"),
    "bandwidth_gbps": known(8000, "GB/s", "data sheet of MI355X, 8 TB/s of HBM3E"),
    "bf16_tflops": known(2500, "TFLOP/s", "data sheet of MI355X, dense"),
    "fp8_tflops": known(5000, "TFLOP/s", "data sheet of MI355X, dense"),
    "fp4_tflops": known(10000, "TFLOP/s", "data sheet of MI355X, dense"),
    "fp32_tflops": known(157, "TFLOP/s", "data sheet of MI355X, matrix units"),
    "lds_kib": known(160, "KiB", "local memory of a CU of gfx950"),
    "roof_share": assumed(0.8, "", "share of the data sheet's rates that a good kernel reaches"),
    "cu_bandwidth_gbps": calibrated(37, "GB/s", "P21: 24 CTAs read 1.57 MB in 3.40 us less the floor"),
    "kernel_floor_us": calibrated(1.6, "us", "P21: 3.73 us for 16.8 MB at the full rate leave 1.6 us"),
    "gap_us": calibrated(
        0.97, "us", "4.7: one projection 50 times in a graph, 4.65 and 4.42 us, less 3.73 and 3.40 (P21)"
    ),
    "barrier_us": assumed(0.97, "us", "a satisfied barrier costs one packet (6.1), taken as a kernel's gap"),
    "signal_host_us": calibrated(4.6, "us", "P16: 10.05 us a pair on two streams; P10 and P11 give 4.2 to 5.0"),
    "signal_device_us": calibrated(2.2, "us", "P13: 7.22 us a pair on two streams with signals in device memory"),
    "poll_tax_us": calibrated(1.02, "us", "P2: each dispatch while another queue is blocked on a host signal"),
    "poll_scope_pipe": assumed(0, SWITCH, "whether the poll tax is per pipe; no public measurement"),
    "pipes": known(4, "pipes", "section 1.1: queue id modulo 4 on gfx94x and gfx950"),
    "queue_slots": assumed(24, "queues", "compute queues that the kernel driver can map at once"),
    "oversubscription_us": assumed(
        8.0, "us", "a dispatch's cost per queue_slots mapped beyond them; torchtitan#4032's order"
    ),
    "corun_loss": calibrated(0.145, "", _PAIR),
    "corun_slow": assumed(0.0, "", "what a kernel takes longer by others' share of its CUs: not measured"),
    "crowd_slow": assumed(0.0, "", "what workgroups take longer with more of their own on a CU: not measured"),
    "latency_load": assumed(0.0, "", "how much later memory answers while others draw all of its rate: not measured"),
    "dispatch_us": assumed(0.0, "us", "between the starts of two kernels: not measured"),
    "early_us": known(0, "us", "no programmatic launch"),
    "ahead_us": known(0, "us", "no programmatic launch"),
    "graph_us": calibrated(4.8, "us", "P15: a graph of one pair against 50 pairs, one queue"),
    "submit_us": assumed(2.0, "us", "host time of one eager launch"),
    "graph_submit_us": calibrated(2.4, "us", "P17: host time of one graph launch"),
    "segment_submit_us": calibrated(2.6, "us", "P20: 5.36 us a pair of segments"),
    "stream_sync_us": calibrated(24, "us", "2.3: 16 streams against 1, gfx1100 (RDNA; used for want of a CDNA figure)"),
    "link_gbps": assumed(300, "GB/s", "all-reduce rate of eight GPUs"),
    "collective_us": assumed(8.0, "us", "floor of a small all-reduce inside a node"),
}

_MI300X: dict[str, Value] = _MI355X | {
    "cus": known(304, "CUs", "data sheet of MI300X"),
    "bandwidth_gbps": known(5300, "GB/s", "data sheet of MI300X"),
    "bf16_tflops": known(1307, "TFLOP/s", "data sheet of MI300X, dense"),
    "fp8_tflops": known(2615, "TFLOP/s", "data sheet of MI300X, dense"),
    "fp4_tflops": assumed(2615, "TFLOP/s", "no fp4 units: fp8 rate"),
    "fp32_tflops": known(163, "TFLOP/s", "data sheet of MI300X, matrix units"),
    "lds_kib": known(64, "KiB", "local memory of a CU of gfx942"),
    **{
        name: assumed(_MI355X[name].value, _MI355X[name].unit, f"as on MI355X ({_MI355X[name].source})")
        for name in (
            "cu_bandwidth_gbps", "kernel_floor_us", "gap_us", "signal_host_us", "signal_device_us",
            "poll_tax_us", "corun_loss", "graph_us", "graph_submit_us", "segment_submit_us",
        )
    },
}  # fmt: skip

_UNPROBED = "no figure for H100 or H200, public or of our own"
_PROBED = "dsv4lab probe on an H200, 2026-11-30"
_CORUN = "kernels/bench/corun.py on an H200, 2026-11-30"
_PAIRS = "kernels/bench/pairs.py on an H200, 2026-11-30"

_H200: dict[str, Value] = {
    "cus": known(132, "SMs", "data sheet of H200"),
    "bandwidth_gbps": known(4800, "GB/s", "data sheet of H200"),
    "bf16_tflops": known(989, "TFLOP/s", "data sheet of H200, dense"),
    "fp8_tflops": known(1979, "TFLOP/s", "data sheet of H200, dense"),
    "fp4_tflops": assumed(1979, "TFLOP/s", "no fp4 units: fp8 rate"),
    "fp32_tflops": known(67, "TFLOP/s", "data sheet of H200, without TF32"),
    "lds_kib": known(228, "KiB", "shared memory of an SM of sm_90"),
    "roof_share": calibrated(0.88, "", "4.24 TB/s copy on the H200 that we can borrow, of 4.8"),
    "cu_bandwidth_gbps": calibrated(26, "GB/s", f"{_CORUN}: 528 workgroups of four warps read 3.38 TB/s"),
    "kernel_floor_us": assumed(1.5, "us", _UNPROBED),
    "gap_us": calibrated(0.65, "us", f"{_PROBED}: 1.65 us from kernel to kernel of 1 us in a graph"),
    "barrier_us": assumed(0.0, "us", "a graph's edges are no packets of their own"),
    "signal_host_us": assumed(1.0, "us", _UNPROBED),
    "signal_device_us": calibrated(0.09, "us", f"{_PROBED}: 0.28 us a pair on two streams, less dispatch_us"),
    "poll_tax_us": known(0, "us", "no host signals on CUDA"),
    "poll_scope_pipe": known(0, SWITCH, "no poll tax"),
    "pipes": assumed(1, "pipes", "not used by the CUDA model"),
    "queue_slots": known(32, "queues", "Hyper-Q: 32 hardware work queues"),
    "oversubscription_us": assumed(0, "us", _UNPROBED),
    "corun_slow": calibrated(0.4, "", f"{_PAIRS}: least mean error over pairs; a shape and a level were held out"),
    "crowd_slow": calibrated(0.5, "", "products on 132 to 8 SMs of an H200, 2026-11-30: least mean error"),
    "corun_loss": calibrated(
        0.10, "", "33 pairs of an earlier run of kernels/bench/pairs.py; only where workgroups are not known"
    ),
    "latency_load": calibrated(0.34, "", f"{_CORUN}: dependent loads beside reads, median of three rates"),
    "dispatch_us": calibrated(0.19, "us", f"{_PAIRS}: between the starts of two kernels that are forked at once"),
    "early_us": calibrated(1.0, "us", "traces of plan off on an H200: from a small kernel's start to that of the next"),
    "ahead_us": calibrated(0.36, "us", f"{_PAIRS}: what it takes more behind another stream, median of 140 ops"),
    "graph_us": calibrated(2.0, "us", f"{_PROBED}: 2.2 and 1.8 us a replay, on two machines"),
    "submit_us": calibrated(16.3, "us", f"{_PROBED}: a launch through PyTorch"),
    "graph_submit_us": calibrated(13.3, "us", f"{_PROBED}: a replay through PyTorch"),
    "segment_submit_us": assumed(0.0, "us", "graphs of a straight line launch in nearly constant time since 12.6"),
    "stream_sync_us": assumed(3.0, "us", "two streams, RTX 3080 (velox#6096)"),
    "link_gbps": assumed(350, "GB/s", "all-reduce rate of eight GPUs on NVLink"),
    "collective_us": assumed(6.0, "us", _UNPROBED),
}

_UNCALIBRATED = "placeholder for a laptop: calibrate on a baseline profile (dsv4lab.predict.replan)"

_CPU: dict[str, Value] = {
    "cus": assumed(2, "cores", _UNCALIBRATED),
    "bandwidth_gbps": assumed(20, "GB/s", _UNCALIBRATED),
    "bf16_tflops": assumed(0.1, "TFLOP/s", _UNCALIBRATED),
    "fp8_tflops": assumed(0.1, "TFLOP/s", _UNCALIBRATED),
    "fp4_tflops": assumed(0.1, "TFLOP/s", _UNCALIBRATED),
    "fp32_tflops": assumed(0.1, "TFLOP/s", _UNCALIBRATED),
    "lds_kib": known(1024, "KiB", "a core runs one op at a time: nothing is shared within it"),
    "roof_share": assumed(0.6, "", _UNCALIBRATED),
    "cu_bandwidth_gbps": assumed(12, "GB/s", _UNCALIBRATED),
    "kernel_floor_us": assumed(10, "us", _UNCALIBRATED),
    "gap_us": assumed(2, "us", _UNCALIBRATED),
    "barrier_us": known(0, "us", "a wait is a lock, not a packet"),
    "signal_host_us": assumed(30, "us", _UNCALIBRATED),
    "signal_device_us": assumed(30, "us", _UNCALIBRATED),
    "poll_tax_us": known(0, "us", "threads sleep on a lock"),
    "poll_scope_pipe": known(0, SWITCH, "no poll tax"),
    "pipes": known(1, "pipes", "none"),
    "queue_slots": known(1024, "queues", "threads"),
    "oversubscription_us": known(0, "us", "none"),
    "corun_loss": assumed(0.0, "", _UNCALIBRATED),
    "corun_slow": known(0, "", "threads, no workgroups"),
    "crowd_slow": known(0, "", "threads, no workgroups"),
    "latency_load": known(0, "", "part of the slow-down that a probe measures"),
    "dispatch_us": known(0, "us", "threads start by themselves"),
    "early_us": known(0, "us", "no programmatic launch"),
    "ahead_us": known(0, "us", "no programmatic launch"),
    "graph_us": assumed(20, "us", _UNCALIBRATED),
    "submit_us": known(0, "us", "a replay hands over all packets at once"),
    "graph_submit_us": assumed(10, "us", _UNCALIBRATED),
    "segment_submit_us": known(0, "us", "none"),
    "stream_sync_us": assumed(10, "us", _UNCALIBRATED),
    "link_gbps": assumed(10, "GB/s", _UNCALIBRATED),
    "collective_us": assumed(20, "us", _UNCALIBRATED),
}

DEVICES: dict[str, Device] = {
    "mi355x": Device("mi355x", "rocm-10+ordering-edges", MappingProxyType(_MI355X)),
    "mi300x": Device("mi300x", "rocm-7.2", MappingProxyType(_MI300X)),
    "h200": Device("h200", "cuda-13", MappingProxyType(_H200)),
    "cpu": Device("cpu", "threads", MappingProxyType(_CPU)),
}


def device(name: str, devices: Mapping[str, Device] = DEVICES) -> Device:
    """The device called ``name``; :class:`UsageError` lists the names when there is none."""
    if name not in devices:
        raise UsageError(f"device {name!r} is unknown; it takes one of {', '.join(devices)}")
    return devices[name]
