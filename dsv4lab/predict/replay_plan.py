"""A replayed step under another plan: hazards from its op list, costs from a trace of the baseline, shape by shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from dsv4lab.config.model import LayerKind, ModelConfig
from dsv4lab.errors import TraceError
from dsv4lab.overlap.plan import OFF, SIDE_GEMM, OverlapPlan
from dsv4lab.overlap.recording import recording_order
from dsv4lab.overlap.scoreboard import cross_stream_waits, hazards
from dsv4lab.predict.kernel_rows import Replays
from dsv4lab.predict.layer_ops import StepShape, kind_ops
from dsv4lab.predict.op_kernels import op_kernels
from dsv4lab.predict.recognise import ENGINE_ONLY
from dsv4lab.predict.replan import SPLITS, split_op
from dsv4lab.predict.whatif import Answer
from dsv4lab.queues.costs import Machine, with_values
from dsv4lab.queues.policies import HIGH
from dsv4lab.queues.simulate import Simulated, simulate
from dsv4lab.queues.workload import Cost, Workload
from dsv4lab.timeline.program import MAIN, ProgramOp, StreamProgram

PARTS = {**SPLITS, SIDE_GEMM: ("compressor.gemm", "indexer.compressor.gemm", "indexer.weights_gemm")}
"""Fused ops and their parts. Those of :data:`SPLITS` have a kernel each, the others one for all."""
FUSED_BEFORE = {"indexer.weights_gemm": (SIDE_GEMM,)}
"""Ops that only exist because a plan takes a fused op apart: the engine places them by that one's name too."""

LEAST_US = 0.05
"""What a kernel takes at least beyond the end of the one before it."""
TURNS = 2
"""So often costs are set to what makes the simulated baseline the traced one."""
FLOOR_US = 1.5
"""What of a kernel's time is not spent on memory: weights are told apart from the rest of an op by it."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of the step by itself: ``lead_us`` from the end of the one before it, then its cost.

    One that is launched before that end (programmatic launch: ``early``) has no lead, and only what it adds behind it
    counts; ``ahead_us`` is what it does before, and has to do behind it elsewhere.
    """

    lead_us: float
    cost: Cost
    early: bool = False
    ahead_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the baseline: ``kernels[i]`` of op ``i``. ``gap_us``: median lead; ``wall_us``: median replay."""

    program: StreamProgram
    kernels: tuple[tuple[Kernel, ...], ...]
    gap_us: float
    wall_us: float


def step_of(program: StreamProgram, replays: Replays, on: Machine, bytes_of: Sequence[float] = ()) -> Step:
    """Costs of ``program``, which ran under plan ``off``, from its replays: medians over them.

    ``bytes_of[i]``: memory that op ``i`` moves, so that kernels side by side share the memory rate; empty: not known,
    and nothing is shared but CUs.

    Raises:
        TraceError: the program is not serial, or the replays are not of it.

    """
    if program.streams != (MAIN,):
        raise TraceError(f"the baseline must be traced under plan off, this program is of plan {program.plan}")
    names = [row.name for row in replays.rows[0]]
    spans = op_kernels(program.ops, names)
    times = _times(replays)
    sizes = bytes_of or [0.0] * len(spans)
    kernels = tuple(_kernels(span, size, replays, times, on) for span, size in zip(spans, sizes, strict=True))
    wall = median(max(row.end_us for row in rows) - rows[0].start_us for rows in replays.rows)
    return Step(program, kernels, median(when.lead_us for when in times if when.lead_us > 0), wall)


@dataclass(frozen=True, slots=True)
class _When:
    """When a kernel runs: ``lead_us`` from the end of all before it to its start, 0 if it starts sooner; ``us``: what
    it adds behind both; ``early_us``: how long before that end it starts.
    """

    lead_us: float
    us: float
    early_us: float


def _times(replays: Replays) -> list[_When]:
    """By kernel, medians over the replays."""
    found: list[list[tuple[float, float, float]]] = []
    for rows in replays.rows:
        reach = rows[0].start_us
        found.append([])
        for row in rows:
            lead = max(0.0, row.start_us - reach)
            found[-1].append((lead, max(LEAST_US, row.end_us - reach - lead), max(0.0, reach - row.start_us)))
            reach = max(reach, row.end_us)
    return [_When(*map(median, zip(*each, strict=True))) for each in zip(*found, strict=True)]


def _kernels(span: range, size: float, replays: Replays, times: Sequence[_When], on: Machine) -> tuple[Kernel, ...]:
    """The kernels of one op; its bytes go to them by their time beyond a floor."""
    rows = replays.rows[0]
    beyond = [max(0.0, times[i].us - FLOOR_US) for i in span]
    rate = on["bandwidth_gbps"] * on["roof_share"] * 1e3
    found = []
    for i, more in zip(span, beyond, strict=True):
        moved = size * more / (sum(beyond) or 1.0)
        cost = Cost(
            times[i].us,
            occupancy=min(1.0, rows[i].blocks / on["cus"]),
            bandwidth=min(1.0, moved / (times[i].us * rate)),
            blocks=rows[i].blocks,
            footprint=rows[i].footprint,
            shared=rows[i].shared,
            prefers=rows[i].prefers,
        )
        early = times[i].early_us
        found.append(Kernel(times[i].lead_us, cost, early > LEAST_US, min(early, on["ahead_us"])))
    return tuple(found)


def step_bytes(program: StreamProgram, model: ModelConfig, shape: StepShape, gate_bytes: int = 2) -> list[float]:
    """Bytes that each op of ``program`` moves, as the cost model of ``model`` has them; 0 for ops that it lacks.

    ``gate_bytes``: of one weight of a compressor, or of the index weights.
    """
    kinds, known = kinds_of(program), dict[tuple[str, str], float]()
    for kind in LayerKind:
        known |= {(kind.label, op.name): sum(k.size for k in op.kernels) for op in kind_ops(model, kind, shape)}
        columns = {
            "compressor.gemm": model.head_dim * (4 if kind is LayerKind.CSA else 2),
            "indexer.compressor.gemm": 4 * model.index_head_dim,
            "indexer.weights_gemm": model.index_n_heads,
        }
        sizes = {name: float(model.hidden_size * width * gate_bytes) for name, width in columns.items()}
        known |= {(kind.label, name): size for name, size in (*sizes.items(), (SIDE_GEMM, sum(sizes.values())))}
    if {op.name for op in program.ops} & set(ENGINE_ONLY):  # then what is called indexer.weights is a scale alone
        known = {key: size for key, size in known.items() if key[1] != "indexer.weights"}
    return [known.get((kinds.get(op.layer, ""), op.name), 0.0) for op in program.ops]


def kinds_of(program: StreamProgram) -> dict[int, str]:
    """The kind of each layer, by the ops in it."""
    names: dict[int, set[str]] = {}
    for op in program.ops:
        if op.layer >= 0:
            names.setdefault(op.layer, set()).add(op.name)
    return {
        layer: "csa" if "indexer.topk" in ops else "hca" if "compressor.gemm" in ops else "swa"
        for layer, ops in names.items()
    }


def planned(step: Step, plan: OverlapPlan) -> Workload:
    """The kernels of ``step`` on the streams of ``plan``, recorded in the order in which the engine records them."""
    kinds = kinds_of(step.program)
    ops: list[ProgramOp] = []
    streams: list[str] = []
    kernels: list[tuple[Kernel, ...]] = []
    for op, own in zip(step.program.ops, step.kernels, strict=True):
        for part, stream, some in _placed(op, own, plan, kinds.get(op.layer, ""), step.program.tokens):
            ops.append(part)
            streams.append(stream)
            kernels.append(some)
    deps = hazards([(op.reads, op.writes) for op in ops])
    order = recording_order(streams, deps)
    waits = cross_stream_waits(streams, deps, order)
    return _workload(step, plan, order, ops, streams, waits, kernels)


def _placed(
    op: ProgramOp, own: tuple[Kernel, ...], plan: OverlapPlan, kind: str, tokens: int
) -> list[tuple[ProgramOp, str, tuple[Kernel, ...]]]:
    """``op`` with its stream and kernels; its parts with theirs if the plan takes it apart."""
    parts = PARTS.get(op.name)
    if parts is None:
        return [(op, plan.stream_of((op.name, *FUSED_BEFORE.get(op.name, ())), kind, tokens), own)]
    streams = [plan.stream_of((part, op.name), kind, tokens) for part in parts]
    if len(set(streams)) == 1 and not plan.splits(op.name):
        return [(op, streams[0], own)]
    if op.name not in SPLITS or len(own) != len(parts):
        raise TraceError(
            f"plan {plan.name} takes {op.label} apart, and its parts never ran in this trace: "
            "it takes a trace of a serial plan that has them apart (unfused)"
        )
    return [(part, to, (k,)) for part, to, k in zip(split_op(op, parts), streams, own, strict=True)]


def longer(cost: Cost, us: float) -> Cost:
    """``cost`` over ``us`` more, with the same bytes."""
    return replace(cost, us=cost.us + us, bandwidth=cost.bandwidth * cost.us / (cost.us + us)) if us else cost


@dataclass(frozen=True, slots=True)
class _Row:
    """A packet: see :class:`Workload`."""

    op: ProgramOp
    stream: str
    waits: tuple[int, ...]
    cost: Cost
    lead_us: float
    early: bool
    ahead_us: float


def _workload(
    step: Step,
    plan: OverlapPlan,
    order: Sequence[int],
    ops: Sequence[ProgramOp],
    streams: Sequence[str],
    waits: Sequence[tuple[int, ...]],
    kernels: Sequence[tuple[Kernel, ...]],
) -> Workload:
    """One packet per kernel. One that begins a stream, or waits for another, has the usual lead and is not early unless
    what it waits for has ended in time; no lead is longer, as what comes before a kernel may be another than in the
    baseline.
    """
    last_row: dict[int, int] = {}
    begun: set[str] = set()
    rows: list[_Row] = []
    for i in order:
        after = tuple(sorted(last_row[w] for w in waits[i]))
        for kernel in kernels[i]:
            first = streams[i] not in begun
            early = kernel.early and not first
            lead = step.gap_us if after or first else min(kernel.lead_us, step.gap_us)
            cost = longer(kernel.cost, kernel.ahead_us) if kernel.early and first else kernel.cost
            rows.append(_Row(ops[i], streams[i], after, cost, 0.0 if early else lead, early, kernel.ahead_us))
            begun.add(streams[i])
            after = ()
        last_row[i] = len(rows) - 1
    return Workload(
        names=tuple(row.op.name for row in rows),
        layers=tuple(row.op.layer for row in rows),
        streams=tuple(row.stream for row in rows),
        waits=tuple(row.waits for row in rows),
        costs=tuple(row.cost for row in rows),
        kinds=("kernel",) * len(rows),
        steps=(0,) * len(rows),
        priorities=dict.fromkeys(plan.high, HIGH),
        label=plan.name,
        lead_us=tuple(row.lead_us for row in rows),
        early=tuple(row.early for row in rows),
        late_us=(step.gap_us,) * len(rows),
        ahead_us=tuple(row.ahead_us for row in rows),
    )


def replay_under(step: Step, plan: OverlapPlan, on: Machine) -> Simulated:
    """One replay of ``step`` under ``plan``: gaps between kernels are the trace's own."""
    return simulate(planned(step, plan), with_values(on, {"gap_us": 0.0, "graph_us": 0.0}), torch=True)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A step as it was traced; with costs of kernels by themselves, as :func:`baseline` finds them; and what it then
    takes under plan off, in the simulation.
    """

    step: Step
    settled: Step
    off_us: float


def baseline(step: Step, on: Machine) -> Baseline:
    """What kernels of ``step`` take by themselves, if what they took in the trace is what they take in its simulation.

    The two differ where a kernel was launched early and found no room until the one before it left: that waiting is in
    the trace, and is no part of its work.
    """
    wanted = [kernel.cost.us for own in step.kernels for kernel in own]
    found = step
    for _ in range(TURNS):
        took = _added_us(replay_under(found, OFF, on))
        kernels = [kernel for own in found.kernels for kernel in own]
        rows = iter(
            replace(kernel, cost=_scaled(kernel.cost, was / max(now, LEAST_US)))
            for kernel, was, now in zip(kernels, wanted, took, strict=True)
        )
        found = replace(found, kernels=tuple(tuple(next(rows) for _ in own) for own in found.kernels))
    return Baseline(step, found, replay_under(found, OFF, on).wall_ns / 1e3)


def _added_us(run: Simulated) -> list[float]:
    """What each packet of a run on one stream adds behind those before it."""
    reach, found = 0.0, []
    for start, end in zip(run.times.start, run.times.end, strict=True):
        found.append((end - max(reach, start)) / 1e3)
        reach = max(reach, end)
    return found


def _scaled(cost: Cost, by: float) -> Cost:
    """``cost`` over ``by`` times as long, with the same bytes; never less than half or more than twice as long."""
    us = max(LEAST_US / 2, cost.us * min(2.0, max(0.5, by)))
    return replace(cost, us=us, bandwidth=min(1.0, cost.bandwidth * cost.us / us))


def ask_step(base: Baseline, plan: OverlapPlan, on: Machine) -> Answer:
    """Predict ``plan`` from a serial step alone; the model's difference is taken off its measured wall."""
    run, wall = replay_under(base.settled, plan, on), base.step.wall_us
    side = sum(stream != MAIN for stream in run.workload.streams)
    return Answer(
        plan.name, on.hw_queues, side, wall, base.off_us / wall - 1.0, wall - base.off_us + run.wall_ns / 1e3, run
    )


def perfect(step: Step, plan: OverlapPlan) -> float:
    """The gain if kernels side by side cost each other nothing and edges cost nothing: the guess to beat."""
    work = planned(step, plan)
    free = replace(work, costs=tuple(Cost(cost.us) for cost in work.costs))
    times: list[float] = []
    last: dict[str, float] = {}
    for i, cost in enumerate(free.costs):
        ready = max([last.get(free.streams[i], 0.0), *(times[w] for w in free.waits[i])])
        last[free.streams[i]] = ready + free.lead_us[i] + cost.us
        times.append(last[free.streams[i]])
    serial = sum(kernel.lead_us + kernel.cost.us for own in step.kernels for kernel in own)
    return 1.0 - max(times) / serial
