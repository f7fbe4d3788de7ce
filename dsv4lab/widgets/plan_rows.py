"""One layer of a stream program as rows of the plan editor: ops in issue order, their streams, waits and freedom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dsv4lab.overlap.edit import Vocabulary
from dsv4lab.overlap.plan import OverlapPlan
from dsv4lab.overlap.scoreboard import cross_stream_waits, hazards
from dsv4lab.predict.oplist import placed
from dsv4lab.predict.roofline import Scenario, step_ops
from dsv4lab.timeline.program import MAIN, ProgramOp, StreamProgram

KIND_NAMES = {"swa": "SWA, window only", "csa": "CSA, ratio 4", "hca": "HCA, ratio 128"}


class PlanSource(Protocol):
    """Where programs come from: an engine, or the op list that is simulated."""

    @property
    def table(self) -> Sequence[Mapping[str, Any]]:
        """Ops as of ``EngineClient.ops()``."""
        ...

    def program(self, plan: OverlapPlan) -> StreamProgram:
        """A decode forward under ``plan``. Raises ``PlanError`` if it does not fit."""
        ...


@dataclass(frozen=True, slots=True)
class EngineSource:
    """Programs that an engine's worker compiles."""

    table: Sequence[Mapping[str, Any]]
    compile: Callable[[OverlapPlan], StreamProgram]

    def program(self, plan: OverlapPlan) -> StreamProgram:
        """See :class:`PlanSource`."""
        return self.compile(plan)


class ListedSource:
    """Programs of the op list of ``scenario``, which the simulator runs."""

    def __init__(self, scenario: Scenario) -> None:
        self._ops = step_ops(scenario)
        self._tokens = scenario.tokens
        self.table: Sequence[Mapping[str, Any]] = [
            {"name": o.name, "layer": o.layer, "kind": o.kind, "parts": [p.name for p in o.parts]} for o in self._ops
        ]

    def program(self, plan: OverlapPlan) -> StreamProgram:
        """See :class:`PlanSource`."""
        plan.check(dict.fromkeys(n for o in self._ops for n in (o.name, *(p.name for p in o.parts))))
        found = placed(self._ops, plan, self._tokens)
        streams = [stream for _, stream in found]
        deps = hazards([(op.reads, op.writes) for op, _ in found])
        waits = cross_stream_waits(streams, deps, range(len(found)))
        ops = tuple(
            ProgramOp(i, op.name, op.layer, stream, waits[i], deps[i], op.reads, op.writes)
            for i, (op, stream) in enumerate(found)
        )
        names = (MAIN, *sorted({s for s in streams if s != MAIN}))
        return StreamProgram(ops, names, plan.name, "decode", self._tokens)


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait for ``producer``, row ``row`` of the same layer, or of an earlier layer (-1)."""

    producer: str
    row: int


@dataclass(frozen=True, slots=True)
class Row:
    """One op, or a part of a fused one that runs as one (``joined``).

    ``needs``: rows whose results it uses or replaces.
    ``beside``: for an op off main, ops on main in this layer that neither need it nor are needed by it.
    """

    name: str
    fused: str
    joined: bool
    stream: str
    waits: tuple[Wait, ...]
    needs: tuple[int, ...]
    beside: int


def representative(table: Iterable[Mapping[str, Any]], kind: str) -> int:
    """The layer that stands for ``kind``: its second, which has waits for layers before it, else its first."""
    layers: list[int] = list(dict.fromkeys(op["layer"] for op in table if op["kind"] == kind))
    return layers[min(1, len(layers) - 1)]


def layer_rows(program: StreamProgram, table: Sequence[Mapping[str, Any]], layer: int) -> list[Row]:
    """The rows of ``layer``, with fused ops as their parts whether they run fused or not."""
    own = [op for op in program.ops if op.layer == layer]
    rows_of: dict[int, list[int]] = {}
    named: list[tuple[str, str, bool, ProgramOp]] = []
    at = 0
    for entry in (e for e in table if e["layer"] == layer):
        fused = own[at].name == entry["name"]
        for place, name in enumerate(entry["parts"] or [entry["name"]]):
            op = own[at if fused else at + place]
            rows_of.setdefault(op.index, []).append(len(named))
            named.append((name, entry["name"] if entry["parts"] else "", fused and bool(entry["parts"]), op))
        at += 1 if fused else len(entry["parts"])
    needs = [tuple(sorted({r for d in op.deps for r in rows_of.get(d, ())[-1:]})) for *_, op in named]
    free = _freedom(own)
    rows = []
    for i, (name, whole, joined, op) in enumerate(named):
        first = rows_of[op.index][0] == i
        waits = tuple(_wait(program, rows_of, w) for w in op.waits) if first else ()
        rows.append(Row(name, whole, joined, op.stream, waits, needs[i], free[op.index]))
    return rows


def _wait(program: StreamProgram, rows_of: Mapping[int, list[int]], producer: int) -> Wait:
    row = rows_of.get(producer, [-1])[-1]
    op = program.ops[producer]
    return Wait(op.name if row >= 0 else op.label, row)


def _freedom(own: Sequence[ProgramOp]) -> dict[int, int]:
    """By op of one layer: how many ops on the other side (main, or off it) are unordered with it."""
    before: dict[int, set[int]] = {}
    for op in own:
        before[op.index] = set().union(*({d} | before[d] for d in op.deps if d in before))
    return {
        op.index: sum(
            other.stream == MAIN and other.index not in before[op.index] and op.index not in before[other.index]
            for other in own
        )
        if op.stream != MAIN
        else 0
        for op in own
    }


def remarks(program: StreamProgram, rows: Sequence[Row], layer: int) -> list[str]:
    """What one should know of a plan at this layer."""
    waits = sum(len(op.waits) for op in program.ops)
    here = sum(len(row.waits) for row in rows)
    out = [
        f"{len(program.streams)} streams, {waits} waits in a forward of {len(program.ops)} ops; {here} in layer {layer}"
    ]
    if len(program.streams) == 1:
        out[0] = f"one stream: no waits in a forward of {len(program.ops)} ops"
    stuck = [row.name for row in rows if row.stream != MAIN and not row.beside]
    if stuck:
        out.append(f"nothing on main can run beside {', '.join(stuck)} in this layer")
    return out


def shared_queues(queue_of: Mapping[str, int]) -> list[str]:
    """Which streams run one after the other because they share a hardware queue."""
    users: dict[int, list[str]] = {}
    for stream, queue in queue_of.items():
        users.setdefault(queue, []).append(stream)
    return [
        f"{' and '.join(streams)} share queue {queue}: they run one after the other"
        for queue, streams in users.items()
        if len(streams) > 1
    ]


def vocabulary(source: PlanSource) -> Vocabulary:
    """What plans may place in ``source``."""
    return Vocabulary.of_table(source.table)
