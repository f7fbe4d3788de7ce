"""Kernels of graph replays in a Kineto file of CUDA, with the shapes that say how much of a device each takes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from dsv4lab.errors import TraceError

BUSY = {"kernel", "gpu_memcpy", "gpu_memset"}
REGISTER_UNIT = 256
"""Registers are handed to a warp in units of this many (CUDA's occupancy tables, since 3.x)."""
RESERVED_BYTES = 1024
"""Shared memory of a workgroup that the system keeps (since 8.0)."""
PLACES = 32
"""Workgroups that one SM can hold, however small."""
ASK_WITH_BYTES: Mapping[str, tuple[int, ...]] = {
    "_few_dot_kernel": (8 * 1024, 16 * 1024),
    "_block_fp8_gemm_kernel": (24 * 1024,),
}
"""Kernels of records that tell ``BESIDE_PERCENT`` by name alone, of which only functions with so much shared memory
asked: those of a shared expert in a shard of eight."""
BESIDE_PERCENT = 25
NEAR_BYTES = 128

Asked = Mapping[str, float | Mapping[str, float]]
"""Percent of an SM's memory that kernels, by name, prefer as shared memory; or by the bytes of it that a workgroup has,
where functions of a name differ."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One row: times in microseconds, ``blocks`` workgroups, each taking the share ``footprint`` of an SM
    and ``shared`` of its shared memory; ``prefers``: what share an SM should have as such (0: it does not ask).
    """

    name: str
    start_us: float
    end_us: float
    blocks: int
    footprint: float
    shared: float
    prefers: float = 0.0


NOTHING: Asked = {}

Replay = tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class Replays:
    """Replays of one graph, in order of time, their rows in order of start. ``device`` and ``sms`` of the first GPU."""

    rows: tuple[Replay, ...]
    device: str
    sms: int


def replays_of(path: Path, carveouts: Asked = NOTHING) -> Replays:
    """The graph replays in ``path``: rows that one launch of the host has in common.

    ``carveouts``: what kernels prefer as shared memory. No trace tells it.

    Raises:
        TraceError: no JSON, no replay of two or more rows, or replays that differ in their kernels.

    """
    found, gpu = launches_of(path, carveouts)
    if not found:
        raise TraceError(f"{path}: no graph replay in it: every kernel was launched by itself")
    names = {tuple(row.name for row in rows) for rows in found}
    if len(names) > 1:
        sizes = ", ".join(str(len(rows)) for rows in found)
        raise TraceError(f"{path}: its replays are not of one serial graph (kernels in each: {sizes})")
    return Replays(found, str(gpu.get("name", "")), int(gpu["numSms"]))


def launches_of(path: Path, carveouts: Asked = NOTHING) -> tuple[tuple[Replay, ...], Mapping[str, Any]]:
    """Launches of two or more rows in ``path``, of whatever graphs, in order of time; and what it says of its GPU.

    ``carveouts`` as for :func:`replays_of`.

    Raises:
        TraceError: no JSON, or nothing about the GPU.

    """
    data = _document(path)
    gpu = next(iter(data.get("deviceProperties") or ()), None)
    if not isinstance(gpu, Mapping) or "numSms" not in gpu:
        raise TraceError(f"{path}: it does not describe its GPU (deviceProperties)")
    by_launch: dict[int, list[Launch]] = {}
    for event in data.get("traceEvents", ()):
        if isinstance(event, Mapping) and event.get("cat") in BUSY:
            key = int(event.get("args", {}).get("correlation", -1))
            by_launch.setdefault(key, []).append(_launch(event, gpu, carveouts))
    found = [tuple(sorted(rows, key=lambda r: (r.start_us, r.end_us))) for rows in by_launch.values() if len(rows) > 1]
    return tuple(sorted(found, key=lambda rows: rows[0].start_us)), gpu


def _document(path: Path) -> Mapping[str, Any]:
    try:
        raw = path.read_bytes()
        data = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except (OSError, EOFError, ValueError) as error:
        raise TraceError(f"{path}: {error}") from None
    if not isinstance(data, Mapping):
        raise TraceError(f"{path}: no Kineto trace: it holds no object")
    return data


def _launch(event: Mapping[str, Any], gpu: Mapping[str, Any], carveouts: Asked) -> Launch:
    args, start = event.get("args", {}), float(event["ts"])
    shape = (1, 0.0, 0.0) if event["cat"] != "kernel" or "grid" not in args else _shape(args, gpu)
    name = str(event["name"])
    prefers = asked(carveouts, name, shape[2] * gpu["sharedMemPerMultiprocessor"])
    return Launch(name, start, start + float(event["dur"]), *shape, prefers)


def asked(carveouts: Asked, name: str, shared_bytes: float) -> float:
    """The share of an SM's memory that kernel ``name`` prefers as shared memory if a workgroup takes ``shared_bytes``
    with what the system keeps of them; 0 if it does not ask.
    """
    found, own = carveouts.get(name, 0.0), round(shared_bytes) - RESERVED_BYTES
    if isinstance(found, Mapping):
        return next((percent / 100 for size, percent in found.items() if abs(own - int(size)) < NEAR_BYTES), 0.0)
    sizes = ASK_WITH_BYTES.get(name, (own,)) if found == BESIDE_PERCENT else (own,)
    return found / 100 if any(abs(own - size) < NEAR_BYTES for size in sizes) else 0.0


def _shape(args: Mapping[str, Any], gpu: Mapping[str, Any]) -> tuple[int, float, float]:
    """Workgroups, what one takes of an SM's registers, warps or places, and of its memory."""
    warps = -(-prod(args["block"]) // int(gpu["warpSize"]))
    registers = -(-int(args["registers per thread"]) * int(gpu["warpSize"]) // REGISTER_UNIT) * REGISTER_UNIT
    shares = (
        registers * warps / gpu["regsPerMultiprocessor"],
        warps * gpu["warpSize"] / gpu["maxThreadsPerMultiprocessor"],
        1 / PLACES,
    )
    shared = (int(args["shared memory"]) + RESERVED_BYTES) / gpu["sharedMemPerMultiprocessor"]
    return prod(args["grid"]), min(1.0, max(shares)), min(1.0, shared)
