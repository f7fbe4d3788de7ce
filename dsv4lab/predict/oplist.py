"""Op lists without tensors: names, resources and kernels, placed on a plan's streams like the engine's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4lab.overlap.plan import OverlapPlan
from dsv4lab.overlap.scoreboard import cross_stream_waits, hazards
from dsv4lab.queues.costs import Machine
from dsv4lab.queues.roof import duration_us, shares
from dsv4lab.queues.workload import Cost, Workload
from dsv4lab.timeline.program import MAIN


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch: bytes moved, operations, workgroups, and KiB of local memory that one workgroup takes of its CU."""

    size: float
    flops: float = 0.0
    workgroups: float = 256.0
    precision: str = "bf16"
    lds_kib: float = 0.0


@dataclass(frozen=True, slots=True)
class ListedOp:
    """One op of a step: its kernels run one after the other. ``parts`` replace it where a plan separates them."""

    name: str
    kernels: tuple[Kernel, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    layer: int = -1
    kind: str = ""
    parts: tuple[ListedOp, ...] = ()
    collective: bool = False

    def at(self, layer: int, kind: str) -> ListedOp:
        """The same op in a layer."""
        parts = tuple(p.at(layer, kind) for p in self.parts)
        return ListedOp(self.name, self.kernels, self.reads, self.writes, layer, kind, parts, self.collective)


def kernel_cost(kernel: Kernel, machine: Machine, scale: float = 1.0) -> Cost:
    """What ``kernel`` asks of ``machine``; its duration times ``scale``."""
    us = duration_us(machine, kernel.size, kernel.flops, kernel.workgroups, kernel.precision)
    occupancy, bandwidth, compute = shares(machine, us, kernel.size, kernel.flops, kernel.workgroups, kernel.precision)
    footprint = min(1.0, kernel.lds_kib / machine["lds_kib"]) if kernel.lds_kib else 0.0
    return Cost(us * scale, occupancy, bandwidth, max(compute, occupancy * footprint))


def placed(ops: Sequence[ListedOp], plan: OverlapPlan, tokens: int) -> list[tuple[ListedOp, str]]:
    """``ops`` with their streams; a fused op whose parts the plan separates is split."""
    out: list[tuple[ListedOp, str]] = []
    known: dict[tuple[tuple[str, ...], str], str] = {}

    def stream_of(names: tuple[str, ...], kind: str) -> str:
        stream = known.get((names, kind))
        if stream is None:
            stream = known[names, kind] = plan.stream_of(names, kind, tokens)
        return stream

    for op in ops:
        if not op.parts:
            out.append((op, stream_of((op.name,), op.kind)))
            continue
        streams = [stream_of((p.name, op.name), p.kind) for p in op.parts]
        out += [(op, streams[0])] if len(set(streams)) == 1 else list(zip(op.parts, streams, strict=True))
    return out


def workload_of(ops: Sequence[ListedOp], plan: OverlapPlan, tokens: int, machine: Machine) -> Workload:
    """One step of ``ops`` under ``plan``, each op's kernels in a row on its stream, waits from the hazards."""
    found = placed(ops, plan, tokens)
    op_streams = [stream for _, stream in found]
    deps = hazards([(op.reads, op.writes) for op, _ in found])
    op_waits = cross_stream_waits(op_streams, deps, range(len(found)))
    last: list[int] = []
    names: list[str] = []
    costs: dict[tuple[bool, Kernel], Cost] = {}
    rows: list[tuple[int, str, tuple[int, ...], Cost, str]] = []
    for (op, stream), waits in zip(found, op_waits, strict=True):
        for k, kernel in enumerate(op.kernels):
            names.append(op.name if len(op.kernels) == 1 else f"{op.name}.{k}")
            before = tuple(last[w] for w in waits) if k == 0 else ()
            kind = "collective" if op.collective else "kernel"
            cost = costs.get((op.collective, kernel))
            if cost is None:
                cost = costs[op.collective, kernel] = _cost(op, kernel, machine)
            rows.append((op.layer, stream, before, cost, kind))
        last.append(len(rows) - 1)
    return Workload(
        names=tuple(names),
        layers=tuple(r[0] for r in rows),
        streams=tuple(r[1] for r in rows),
        waits=tuple(r[2] for r in rows),
        costs=tuple(r[3] for r in rows),
        kinds=tuple(r[4] for r in rows),
        steps=(0,) * len(rows),
        label=plan.name,
    )


def _cost(op: ListedOp, kernel: Kernel, machine: Machine) -> Cost:
    if not op.collective:
        return kernel_cost(kernel, machine)
    return Cost(machine["collective_us"] + kernel.size / (machine["link_gbps"] * 1e3), occupancy=0.1)


def side_share(workload: Workload) -> float:
    """Kernel time off ``main`` over all kernel time, each kernel alone."""
    total = sum(c.us for c in workload.costs)
    return sum(c.us for c, s in zip(workload.costs, workload.streams, strict=True) if s != MAIN) / total if total else 0
