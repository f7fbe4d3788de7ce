"""Programs of published micro-benchmarks, as documents that ``simulate --program`` and the calibration take.

Durations are the isolated kernels of the same publication; what a program is compared with is in
docs/queue-model.md.
"""

from __future__ import annotations

from typing import Any

Q_US, K_US = 3.73, 3.40
Q_BYTES, K_BYTES = 16.8e6, 1.57e6
TINY_US = 0.57
SPIN_US = 31.2


def op(name: str, stream: str, after: list[str] | None = None, **cost: Any) -> dict[str, Any]:
    """One op of a program."""
    return {"name": name, "stream": stream, "after": after or [], **cost}


def projection_pairs(pairs: int, *, two_streams: bool) -> dict[str, Any]:
    """Two projections a pair; each pair follows both of the one before (4.7 of the facts sheet)."""
    ops = []
    for i in range(pairs):
        before = [f"q{i - 1}", f"k{i - 1}"] if i else []
        ops.append(op(f"q{i}", "s0", before, duration_us=Q_US, bytes=Q_BYTES, workgroups=256))
        ops.append(op(f"k{i}", "s1" if two_streams else "s0", before, duration_us=K_US, bytes=K_BYTES, workgroups=24))
    return {"name": "projection pairs", "ops": ops}


def one_projection(count: int, us: float) -> dict[str, Any]:
    """The same projection over and over in one graph."""
    return {"name": "projection", "ops": [op("q", "s0", duration_us=us, count=count)]}


def chain_with_waiter(length: int, *, waiter: bool) -> dict[str, Any]:
    """Tiny kernels in one queue, with or without another queue that waits for the last of them (P1, P2)."""
    ops = [op("p", "s0", duration_us=TINY_US, count=length)]
    ops += [op("w", "s1", ["p"], duration_us=TINY_US)] if waiter else []
    return {"name": "waiter", "launch": "eager", "ops": ops}


def stream_count(streams: int, launches: int = 256) -> dict[str, Any]:
    """Spin kernels launched round robin over streams, the host waiting for every stream (2.3)."""
    ops = [op(f"k{i}", f"s{i % streams}", duration_us=SPIN_US, workgroups=1) for i in range(launches)]
    return {"name": "streams", "launch": "eager", "synchronise": True, "ops": ops}


def expert_chains(streams: int, total_us: float, kernels: int, **cost: Any) -> dict[str, Any]:
    """Equal experts dealt out over streams and joined; ``total_us`` is the time of all of them on one stream."""
    each = total_us / kernels - 1.0
    ops = [op(f"e{i}", f"s{i % streams}", duration_us=each, **cost) for i in range(kernels)]
    ops.append(op("join", "s0", [f"e{i}" for i in range(kernels - streams, kernels)], duration_us=1.0))
    return {"name": "experts", "ops": ops}


def pair_of_scans(*, parallel: bool, us: float = 159.0) -> dict[str, Any]:
    """Two memory scans side by side or in a row (4.7 ``mixed kv-kv``)."""
    cost: dict[str, Any] = {"duration_us": us, "occupancy": 1.0, "bandwidth": 0.9, "compute": 0.66}
    return {"name": "scans", "ops": [op("a", "s0", **cost), op("b", "s1" if parallel else "s0", **cost)]}


def matrix_and_scan(*, parallel: bool) -> dict[str, Any]:
    """A matrix product that fills the device beside a memory scan (P22, 4.7 ``mixed matrix-kv``)."""
    matrix = op("matrix", "s0", duration_us=102.0, occupancy=0.5, bandwidth=0.1, compute=1.0)
    scan = op("scan", "s1" if parallel else "s0", duration_us=160.0, occupancy=0.5, bandwidth=0.9, compute=0.66)
    return {"name": "matrix and scan", "ops": [matrix, scan]}


def training_layers(layers: int) -> dict[str, Any]:
    """Five lanes of a PyTorch trainer: compute, weight gather, expert dispatch, expert combine, gradient scatter (4.2).

    The durations are ours; torchtitan#4032 publishes tokens per second only. Queue counts are compared by order.
    """
    ops = []
    for i in range(layers):
        ops += [
            op(f"gather{i}", "side0", [f"b{i - 2}"] if i > 1 else [], duration_us=300.0),
            op(f"a{i}", "main", [f"gather{i}"], duration_us=350.0),
            op(f"dispatch{i}", "side1", [f"a{i}"], duration_us=120.0),
            op(f"shared{i}", "main", duration_us=150.0),
            op(f"b{i}", "main", [f"dispatch{i}"], duration_us=400.0),
            op(f"combine{i}", "side2", [f"b{i}"], duration_us=120.0),
            op(f"scatter{i}", "side3", [f"b{i}"], duration_us=250.0),
            op(f"small{i}", "main", [f"combine{i}"], duration_us=4.0, count=60),
        ]
    return {"name": "training", "launch": "eager", "process": "torch", "ops": ops}
