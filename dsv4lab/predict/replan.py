"""A recorded program under another plan: exact hazards from its ops' own resources, costs from its own profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsv4lab.errors import TraceError
from dsv4lab.overlap.plan import OverlapPlan
from dsv4lab.overlap.scoreboard import cross_stream_waits, hazards
from dsv4lab.predict.cpu_probe import CpuProbe
from dsv4lab.queues.costs import Machine, machine
from dsv4lab.queues.simulate import simulate
from dsv4lab.queues.workload import Cost, Workload
from dsv4lab.timeline.program import MAIN, ProgramOp, StreamProgram
from dsv4lab.timeline.timeline import Kind, Timeline

SPLITS = {
    "qk_norm_rope_store": ("q_norm_rope", "kv_norm_rope_store"),
    "qk_norm_rope": ("q_norm_rope", "kv_norm_rope"),
}
"""Fused ops that a plan may separate, and their parts: queries, keys."""

QUERY_PART = 0.8
"""Share of a fused op's time that its query part takes: assumed."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """A serial program with measured costs. ``us[i]``: median time of op ``i`` over the steps; ``gap_us``: median from
    the end of an op to the start of the next; ``wall_us``: median step.
    """

    program: StreamProgram
    us: tuple[float, ...]
    gap_us: float
    wall_us: float


def profiled(program: StreamProgram, timeline: Timeline) -> Profiled:
    """Costs of ``program`` from a profile of its runs under plan ``off`` (rows numbered by op, as the engine's are).

    Raises:
        TraceError: no step of the timeline has a row for every op, or the program is not serial.

    """
    if program.streams != (MAIN,):
        raise TraceError(f"the baseline must be profiled under plan off, this one ran under {program.plan}")
    n, spans = len(program.ops), []
    for step in np.unique(timeline.step):
        rows = np.flatnonzero((timeline.step == step) & (timeline.kind == int(Kind.KERNEL)))
        if len(rows) == n:
            spans.append(rows[np.argsort(timeline.correlation[rows], kind="stable")])
    if not spans:
        raise TraceError(f"no step of the timeline has a row for each of the {n} ops")
    picked = np.array(spans)
    start, end = timeline.start_ns[picked], timeline.end_ns[picked]
    us = np.median((end - start) / 1e3, axis=0)
    gap = float(np.median((start[:, 1:] - end[:, :-1]) / 1e3)) if n > 1 else 0.0
    wall = float(np.median((end[:, -1] - start[:, 0]) / 1e3))
    return Profiled(program, tuple(us.tolist()), max(0.0, gap), wall)


def cpu_machine(cores: int, hw_queues: int, probe: CpuProbe, gap_us: float, policy: str | None = None) -> Machine:
    """The CPU device with what ``probe`` and a baseline say about it; ``policy`` maps streams to queues."""
    changes = {"cus": float(cores), "gap_us": gap_us, "signal_device_us": probe.handoff_us, "graph_us": 0.0}
    return machine("cpu", None, hw_queues, changes, policy=policy)


def replan(base: Profiled, plan: OverlapPlan, cores: int, probe: CpuProbe) -> Workload:
    """``base`` under ``plan``; every op keeps one core busy and draws on the memory rate as the probe's reading did."""
    ops = [part for op, us in zip(base.program.ops, base.us, strict=True) for part in _placed(op, us, plan, base)]
    streams = [stream for _, _, stream in ops]
    deps = hazards([(op.reads, op.writes) for op, _, _ in ops])
    compute = min(1.0, probe.compute_slowdown / cores)
    share = Cost(0.0, 0.0, bandwidth=probe.slowdown / 2, compute=compute, blocks=1, footprint=1.0)
    return Workload(
        names=tuple(op.name for op, _, _ in ops),
        layers=tuple(op.layer for op, _, _ in ops),
        streams=tuple(streams),
        waits=tuple(cross_stream_waits(streams, deps, range(len(ops)))),
        costs=tuple(replace(share, us=us) for _, us, _ in ops),
        kinds=("kernel",) * len(ops),
        steps=(0,) * len(ops),
        label=plan.name,
    )


def _placed(op: ProgramOp, us: float, plan: OverlapPlan, base: Profiled) -> list[tuple[ProgramOp, float, str]]:
    tokens = base.program.tokens
    parts = SPLITS.get(op.name)
    if parts is None:
        return [(op, us, plan.stream_of((op.name,), "", tokens))]
    streams = [plan.stream_of((part, op.name), "", tokens) for part in parts]
    if streams[0] == streams[1]:
        return [(op, us, streams[0])]
    query, key = split_op(op, parts)
    return [(query, us * QUERY_PART, streams[0]), (key, us * (1 - QUERY_PART), streams[1])]


def split_op(op: ProgramOp, names: Sequence[str]) -> tuple[ProgramOp, ProgramOp]:
    """The parts of a fused op: the query part has ``q`` in place; the key part reads the rest and writes the rest."""
    query = replace(op, name=names[0], reads=tuple(r for r in op.reads if r != "qkv_a"), writes=("q",))
    key = replace(
        op, name=names[1], reads=tuple(r for r in op.reads if r != "q"), writes=tuple(w for w in op.writes if w != "q")
    )
    return query, key


def predicted_gain(base: Profiled, plan: OverlapPlan, cores: int, hw_queues: int, probe: CpuProbe) -> float:
    """Fraction of a step's time that ``plan`` saves on the CPU device, from the baseline alone."""
    on = cpu_machine(cores, hw_queues, probe, base.gap_us)
    off = simulate(replan(base, OverlapPlan("off"), cores, probe), on)
    return 1.0 - simulate(replan(base, plan, cores, probe), on).wall_ns / off.wall_ns
