"""Runtimes as data: which queue a stream gets, where signals live, and how a captured graph is laid out."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dsv4lab.errors import UsageError


@dataclass(frozen=True, slots=True)
class Runtime:
    """A generation of HIP, CUDA, or the CPU device's threads.

    ``policy``: how streams get queues. ``default_queues``: without ``GPU_MAX_HW_QUEUES``. ``device_signals``: words
    of cross-queue edges live in device memory (ordering edges). ``graph``: ``hip_segments`` (with ``graph_exclusive``:
    internal streams avoid the launch stream's queue; ``graph_shared``: in a PyTorch process they sit on it;
    ``graph_hybrid``: many short segments are placed depth first;
    ``graph_collapse``: small graphs fold onto one queue),
    ``cuda_lanes``, or ``streams`` (a graph keeps the streams it was written with). ``graph_queues``: cap on a graph's
    internal streams. ``torch_pool``: side streams that the PyTorch of that time makes per priority (0: from the queue
    count). ``barrier_elision``: packets of other streams in a ring do not wait for each other (rocm-systems#9895).
    ``barrier_signals``: signals to a barrier packet. ``run_to_block``: a queue is a thread of one core (the first has
    one to itself) and keeps it until it has to wait; others of that core queue up. ``sources`` holds
    ``(status, source)`` by field.
    """

    name: str
    family: str
    policy: str
    default_queues: int
    device_signals: bool
    graph: str
    sources: MappingProxyType[str, tuple[str, str]]
    graph_exclusive: bool = False
    graph_shared: bool = False
    graph_collapse: bool = False
    graph_hybrid: bool = False
    graph_queues: int = 4
    torch_pool: int = 0
    barrier_elision: bool = False
    barrier_signals: int = 5
    run_to_block: bool = False

    def facts(self) -> list[dict[str, Any]]:
        """The fields with their status and source, as plain rows."""
        return [
            {"name": f"{self.name}.{field}", "value": getattr(self, field), "unit": "", "status": s, "source": text}
            for field, (s, text) in self.sources.items()
        ]


def _sources(**rows: tuple[str, str]) -> MappingProxyType[str, tuple[str, str]]:
    return MappingProxyType(rows)


_CAP = ("known", "GPU_MAX_HW_QUEUES defaults to 4 (clr flags.hpp)")
_HOST = ("known", "signal words live in host memory without rocm-systems#11212")
_POOL_32 = (
    "assumed",
    "PyTorch of that time: 32 streams per priority, made at first use; no record says which was used",
)
_POOL_Q = ("known", "PyTorch main, mid-2026: max(1, Q-1) streams (c10/cuda/CUDAStream.cpp)")
_SEEN = (
    "seen on 7.2.4 (rocm-systems#11212: the dependent stream sat on its parent's queue); queues are bound at creation, "
    "so the streams that a process made before decide, and they may be apart in another"
)
_SHARED = ("assumed", _SEEN)
_DYNAMIC = ("known", "dynamic queues since 7.14 (rocm-systems#11212, #5244); weights from clr rocdevice.cpp")
_EXCLUSIVE = ("assumed", "graph streams ask for distinct queues (rocm-systems#4954, #5031); release not stated")

_ROCM_10: dict[str, Any] = {
    "family": "hip",
    "policy": "dynamic1",
    "default_queues": 4,
    "graph": "hip_segments",
    "graph_exclusive": True,
    "graph_collapse": True,
}
_ROCM_10_SOURCES = {
    "policy": _DYNAMIC,
    "default_queues": _CAP,
    "graph_exclusive": _EXCLUSIVE,
    "graph_collapse": ("known", "collapse test up to level 4 (rocm-systems#6799, #9363)"),
    "torch_pool": _POOL_Q,
}

RUNTIMES: dict[str, Runtime] = {
    r.name: r
    for r in (
        Runtime(
            "rocm-7.2",
            "hip",
            "refcount",
            4,
            device_signals=False,
            graph="hip_segments",
            graph_shared=True,
            torch_pool=32,
            sources=_sources(
                policy=("known", "bound at creation by reference count (ROCm/clr@f9f995c6)"),
                default_queues=_CAP,
                device_signals=_HOST,
                graph_exclusive=("known", "four branches got three queues on 7.2.4 (section 1.5)"),
                graph_shared=_SHARED,
                graph_hybrid=("assumed", "segments of 7.2.4 are a port (rocm-systems#5520); their order is not stated"),
                torch_pool=_POOL_32,
            ),
        ),
        Runtime(
            "rocm-7.14",
            "hip",
            "dynamic1",
            4,
            device_signals=False,
            graph="hip_segments",
            graph_exclusive=True,
            graph_hybrid=True,
            sources=_sources(
                policy=_DYNAMIC,
                graph_hybrid=(
                    "known",
                    "before rocm-systems#9363: depth first from 16 segments of under 8 nodes on average",
                ),
                default_queues=_CAP,
                device_signals=_HOST,
                graph_exclusive=_EXCLUSIVE,
                torch_pool=_POOL_Q,
            ),
        ),
        Runtime(
            "rocm-10", device_signals=False, sources=_sources(**_ROCM_10_SOURCES, device_signals=_HOST), **_ROCM_10
        ),
        Runtime(
            "rocm-10+ordering-edges",
            device_signals=True,
            sources=_sources(
                **_ROCM_10_SOURCES,
                device_signals=("known", "cross-queue words in device memory (rocm-systems#11212, sglang#39282)"),
            ),
            **_ROCM_10,
        ),
        Runtime(
            "cuda-13",
            "cuda",
            "round_robin",
            32,
            device_signals=True,
            graph="cuda_lanes",
            torch_pool=32,
            barrier_signals=64,
            sources=_sources(
                policy=("assumed", "streams are dealt out to connections in turn"),
                default_queues=(
                    "calibrated",
                    "dsv4lab probe on an H200: 30 streams at once; CUDA_DEVICE_MAX_CONNECTIONS was not set",
                ),
                graph=("known", "a join continues its first-recorded parent's lane (sglang#39420)"),
            ),
        ),
        Runtime(
            "threads",
            "cpu",
            "round_robin",
            4,
            device_signals=True,
            graph="streams",
            barrier_signals=1 << 20,
            run_to_block=True,
            sources=_sources(
                policy=("known", "dsv4lab.overlap.streams_cpu"),
                run_to_block=("assumed", "ops are shorter than a time slice, and than what it takes to move a thread"),
            ),
        ),
    )
}


def runtime(name: str) -> Runtime:
    """The runtime called ``name``; :class:`UsageError` lists the names when there is none."""
    if name not in RUNTIMES:
        raise UsageError(f"runtime {name!r} is unknown; it takes one of {', '.join(RUNTIMES)}")
    return RUNTIMES[name]
