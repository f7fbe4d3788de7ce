"""What if: the ops of a baseline trace on other streams, with the durations that the trace itself shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from dsv4lab.errors import TraceError
from dsv4lab.overlap.plan import OverlapPlan
from dsv4lab.predict.recognise import recognise
from dsv4lab.queues.costs import Machine, doubtful, with_values
from dsv4lab.queues.sensitivity import Lean, sensitivity
from dsv4lab.queues.simulate import Simulated, simulate
from dsv4lab.queues.values import assumed
from dsv4lab.queues.workload import Cost, Workload
from dsv4lab.timeline.program import MAIN
from dsv4lab.timeline.timeline import Timeline

CONSUMERS = {"compressor.*": ("attention",), "indexer.compressor.*": ("indexer.topk", "attention")}
"""What reads the results of ops that presets move: the join is in front of it."""

SHARES = Cost(0.0, occupancy=1.0, bandwidth=0.4)
"""Shares of the device that a traced kernel is taken to use, for want of its shape: assumed."""

_TRACED = {
    "traced_occupancy": assumed(SHARES.occupancy, "", "share of CUs that a traced kernel touches"),
    "traced_bandwidth": assumed(SHARES.bandwidth, "", "share of the memory rate that a traced kernel draws"),
}
_PER_OP = ("names", "layers", "streams", "waits", "costs", "kinds", "steps", "lead_us")
LEAN_KERNELS = 1500
SMALL_GAP_US = 20.0


@dataclass(frozen=True, slots=True)
class Baseline:
    """The busy rows of one rank in order of start: a serial program with its measured costs.

    ``ops`` are recognised names, ``kernels`` the trace's own. ``gap_us``: median of the short gaps between rows.
    ``wall_us``: first start to last end.
    """

    workload: Workload
    ops: tuple[str, ...]
    gap_us: float
    wall_us: float
    warnings: tuple[str, ...]
    kernels: tuple[str, ...] = ()


def baseline_of(timeline: Timeline, rank: int | None = None, shares: Cost = SHARES) -> Baseline:
    """Read a baseline from a trace.

    Raises:
        TraceError: the timeline has no kernels.

    """
    mask = timeline.busy_mask
    if not mask.any():
        raise TraceError("the trace has no kernels: there is nothing to move")
    chosen = int(timeline.rank[mask].min()) if rank is None else rank
    rows = np.flatnonzero(mask & (timeline.rank == chosen))
    if not len(rows):
        raise TraceError(f"the trace has no kernels of rank {chosen}")
    rows = rows[np.argsort(timeline.start_ns[rows], kind="stable")]
    start, end = timeline.start_ns[rows], timeline.end_ns[rows]
    reach = np.maximum.accumulate(end)
    lead = np.concatenate([[0], np.maximum(0, start[1:] - reach[:-1])]) / 1e3
    short = lead[1:][(lead[1:] > 0) & (lead[1:] < SMALL_GAP_US)]
    gap = float(np.median(short)) if len(short) else 0.0
    ops = recognise(timeline, rows.tolist())
    us = ((end - start) / 1e3).tolist()
    work = Workload(
        names=tuple(op or timeline.names[int(timeline.name[r])] for op, r in zip(ops, rows, strict=True)),
        layers=tuple(timeline.layer[rows].tolist()),
        streams=(MAIN,) * len(rows),
        waits=((),) * len(rows),
        costs=tuple(replace(shares, us=u) for u in us),
        kinds=tuple("collective" if op == "all_reduce" else "kernel" for op in ops),
        steps=(0,) * len(rows),
        lead_us=tuple(np.maximum(0.0, lead - gap).tolist()),
    )
    wall = float(reach[-1] - start[0]) / 1e3
    kernels = tuple(timeline.names[int(k)] for k in timeline.name[rows])
    return Baseline(work, tuple(ops), gap, wall, _doubts(timeline, rows), kernels)


def _doubts(timeline: Timeline, rows: Any) -> tuple[str, ...]:
    out = []
    streams = {int(s) for s in timeline.stream[rows]}
    busy = int(timeline.dur_ns[rows].sum())
    side = busy - max(int(timeline.dur_ns[rows][timeline.stream[rows] == s].sum()) for s in streams)
    if side > 0.02 * busy:
        out.append(f"{side / busy:.0%} of the busy time is on side streams already: this is no serial baseline")
    if timeline.meta.get("simulated"):
        out.append("the baseline is itself simulated")
    return tuple(out)


def moved(
    base: Baseline, plan: OverlapPlan, tokens: int = 1, move: Mapping[str, str] | None = None, join: Sequence[str] = ()
) -> Workload:
    """``base`` with the ops of ``plan`` (and those whose op or kernel name matches a pattern of ``move``) on side
    streams.

    A moved op forks behind the op in front of it that stays. Its stream is joined in front of the first later op that
    reads its result (``CONSUMERS``, or the patterns ``join``), in front of its next fork at the latest.
    """
    names = [op or name for op, name in zip(base.ops, base.workload.names, strict=True)]
    kernels = base.kernels or base.workload.names
    streams = [_stream((name, k), plan, tokens, move or {}) for name, k in zip(names, kernels, strict=True)]
    waits: list[tuple[int, ...]] = []
    pending: dict[str, tuple[int, tuple[str, ...]]] = {}
    last_main, tail = -1, dict[str, int]()
    for i, (name, stream) in enumerate(zip(names, streams, strict=True)):
        if stream == MAIN:
            due = [s for s, (_, readers) in pending.items() if _matches((name, kernels[i]), readers)]
            waits.append(tuple(sorted(pending.pop(s)[0] for s in due)))
            last_main = i
            continue
        new = tail.get(stream, -2) < last_main and last_main >= 0
        if new and stream in pending:
            waits[last_main] = tuple(sorted({*waits[last_main], pending[stream][0]}))
        waits.append((last_main,) if new else ())
        tail[stream] = i
        pending[stream] = (i, _readers(name, join))
    rest = tuple(sorted(i for i, _ in pending.values()))
    if rest and streams[-1] == MAIN and last_main > rest[-1]:
        waits[-1] = tuple(sorted({*waits[-1], *rest}))
    return replace(base.workload.with_streams(streams, waits), label=plan.name)


def _matches(names: Sequence[str], patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _stream(names: tuple[str, str], plan: OverlapPlan, tokens: int, move: Mapping[str, str]) -> str:
    for pattern, stream in move.items():
        if _matches(names, (pattern,)):
            return stream
    return plan.stream_of(names[:1], "", tokens)


def _readers(name: str, join: Sequence[str]) -> tuple[str, ...]:
    known = next((readers for pattern, readers in reversed(CONSUMERS.items()) if fnmatchcase(name, pattern)), ())
    return (*join, *known)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a plan would do. ``gain`` is the fraction of the measured wall that it saves; below 0 it costs time.

    ``residual``: simulated baseline over measured wall, less 1: how well the model explains the trace itself.
    """

    plan: str
    hw_queues: int
    moved_ops: int
    baseline_us: float
    residual: float
    predicted_us: float
    run: Simulated

    @property
    def gain(self) -> float:
        """Fraction of the wall saved."""
        return 1.0 - self.predicted_us / self.baseline_us if self.baseline_us else 0.0


def ask(
    base: Baseline,
    plan: OverlapPlan,
    on: Machine,
    *,
    tokens: int = 1,
    move: Mapping[str, str] | None = None,
    join: Sequence[str] = (),
    graphs: bool = True,
) -> Answer:
    """Predict ``plan`` on ``on``. The gap between packets is the trace's own; so is every kernel's duration.

    The model gives the difference that the plan makes; it is taken off the measured wall.
    """
    own = with_values(on, {"gap_us": base.gap_us, "graph_us": 0.0})
    serial = simulate(replace(base.workload, graphs=graphs), own, torch=True)
    changed = replace(moved(base, plan, tokens, move, join), graphs=graphs)
    run = simulate(changed, own, torch=True)
    predicted = base.wall_us - (serial.wall_ns - run.wall_ns) / 1e3
    side = sum(s != MAIN for s in changed.streams)
    residual = serial.wall_ns / 1e3 / base.wall_us - 1.0
    return Answer(plan.name, on.hw_queues, side, base.wall_us, residual, predicted, run)


def leans(
    base: Baseline,
    plan: OverlapPlan,
    on: Machine,
    *,
    tokens: int = 1,
    move: Mapping[str, str] | None = None,
    join: Sequence[str] = (),
    graphs: bool = True,
) -> list[Lean]:
    """Which assumed values the gain of ``plan`` leans on, what a trace does not say about its kernels among them."""
    sample = first_kernels(base, LEAN_KERNELS)

    def gain(changes: dict[str, float]) -> float:
        numbers = {k: v for k, v in changes.items() if k not in _TRACED}
        changed = with_values(on, numbers)
        shares: dict[str, Any] = {k.removeprefix("traced_"): min(1.0, v) for k, v in changes.items() if k in _TRACED}
        work = replace(sample.workload, costs=tuple(replace(c, **shares) for c in sample.workload.costs))
        answer = ask(replace(sample, workload=work), plan, changed, tokens=tokens, move=move, join=join, graphs=graphs)
        return answer.gain

    return sensitivity(gain, {**doubtful(on), **_TRACED})


def first_kernels(base: Baseline, count: int) -> Baseline:
    """The first ``count`` kernels of ``base``."""
    work = base.workload
    if len(work) <= count:
        return base
    cut = {name: getattr(work, name)[:count] for name in _PER_OP}
    lead = sum(cut["lead_us"]) + base.gap_us * (count - 1)
    wall = sum(cost.us for cost in cut["costs"]) + lead
    cut_base = replace(base, workload=replace(work, **cut), ops=base.ops[:count], wall_us=wall)
    return replace(cut_base, kernels=base.kernels[:count])
