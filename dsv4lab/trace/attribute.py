"""From a raw capture to ops: which run, op and stream of the program each device row belongs to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dsv4lab.timeline.program import StreamProgram
from dsv4lab.timeline.timeline import UNKNOWN
from dsv4lab.trace.marks import SETUP, CapturedRun, learnt_program, op_index, run_number
from dsv4lab.trace.raw_events import DEVICE, LAUNCHES, RANGE, RawTrace, Span, Spans
from dsv4lab.trace.replays import GraphKernels, Key, Matched, ReplayRow, kernel_key

_GRAPH_LAUNCH = "GraphLaunch"


@dataclass(slots=True)
class Row:
    """A device row: the number of its run and of its op there, ``UNKNOWN`` where that is not known.

    ``under`` is what the profiler says ran on the host when it was launched: an operator or a range.
    """

    span: Span
    launch: Span | None
    under: Span | None
    run: int = UNKNOWN
    op: int = UNKNOWN

    @property
    def issued(self) -> int | None:
        """When the host launched it, where the trace tells."""
        at = self.launch or self.under
        return None if at is None else at.start

    @property
    def key(self) -> Key:
        """See :func:`kernel_key`."""
        event = self.span.event
        return kernel_key(event.name, event.arg("grid"), event.arg("block"))


@dataclass(slots=True)
class Attribution:
    """All device rows of the steps, in order of start, and what could not be told."""

    rows: list[Row] = field(default_factory=list)
    runs: dict[int, Span] = field(default_factory=dict)
    """The host's range of each run."""
    setup: Spans = field(default_factory=lambda: Spans(()))
    problems: list[str] = field(default_factory=list)
    how: set[str] = field(default_factory=set)


def attribute(trace: RawTrace, programs: Sequence[StreamProgram], runs: Sequence[CapturedRun]) -> Attribution:
    """Find the op of every device row of ``runs``; rows of the setup are left out."""
    ranges = trace.spans(RANGE)
    out = Attribution(setup=Spans(_outer(span for span in ranges if span.event.name == SETUP)))
    out.runs = {n: span for span in ranges if (n := run_number(span.event.name)) is not None}
    ops = Spans(span for span in ranges if op_index(span.event.name) is not None)
    rows = _rows(trace)
    learnt = _learn(rows, ops, Spans(s for s in ranges if learnt_program(s.event.name) is not None), programs, out)
    spans = Spans(out.runs.values())
    by_run: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if (when := row.issued) is not None and out.setup.at(when) is not None:
            continue
        out.rows.append(row)
        run = spans.at(when) if when is not None else spans.last(row.span.start)
        if run is not None:
            row.run = run_number(run.event.name) or 0
            by_run[row.run].append(row)
    _eager(by_run, runs, ops, out)
    _replays(by_run, runs, programs, learnt, out)
    return out


def _rows(trace: RawTrace) -> list[Row]:
    launches = {span.event.arg("correlation"): span for span in trace.spans(*LAUNCHES)}
    hosts = {span.event.arg("External id"): span for span in trace.spans("cpu_op", RANGE)}
    hosts.pop(None, None)
    return [
        Row(span, launches.get(span.event.arg("correlation")), hosts.get(span.event.arg("External id")))
        for span in trace.spans(*DEVICE)
    ]


def _outer(spans: Iterable[Span]) -> list[Span]:
    """Those of ``spans``, in order of start, that lie in no other."""
    out: list[Span] = []
    for span in spans:
        if not out or span.start >= out[-1].end:
            out.append(span)
    return out


def _learn(
    rows: Sequence[Row], ops: Spans, ranges: Spans, programs: Sequence[StreamProgram], out: Attribution
) -> dict[int, list[list[Key]]]:
    """By program, the kernels of each op in an eager run, in order of start."""
    learnt: dict[int, list[list[Key]]] = {}
    for span in ranges.all:
        program = learnt_program(span.event.name) or 0
        learnt[program] = [[] for _ in programs[program].ops]
    lost: list[Row] = []
    for row in rows:
        if row.issued is None or (learning := ranges.at(row.issued)) is None:
            continue
        if (op := _op_of(row, ops)) is None:
            lost.append(row)
        else:
            learnt[learnt_program(learning.event.name) or 0][op].append(row.key)
    if lost:
        out.problems.append(f"{_count(lost)} of the eager runs that replays are named by: {_WHICH}")
    return learnt


def _eager(by_run: dict[int, list[Row]], runs: Sequence[CapturedRun], ops: Spans, out: Attribution) -> None:
    lost: list[Row] = []
    for number, rows in by_run.items():
        if not runs[number].graph:
            for row in rows:
                op = _op_of(row, ops)
                row.op = UNKNOWN if op is None else op
                lost += [row] if op is None else []
    if lost:
        out.problems.append(f"{_count(lost)} of eager runs have no op: {_WHICH}")


_WHICH = "launched outside of every op's range, or in another's than the profiler's own link says"


def _op_of(row: Row, ops: Spans) -> int | None:
    """The op in whose range it was launched; None if there is none, or if the profiler's link leads to another."""
    if row.issued is None or (span := ops.at(row.issued)) is None:
        return None
    linked = None if row.under is None else ops.at(row.under.start)
    return op_index(span.event.name) if linked is None or linked is span else None


def _count(rows: Sequence[Row]) -> str:
    return f"{len(rows)} kernels ({rows[0].span.event.name[:40]}, ...)"


def _replays(
    by_run: dict[int, list[Row]],
    runs: Sequence[CapturedRun],
    programs: Sequence[StreamProgram],
    learnt: dict[int, list[list[Key]]],
    out: Attribution,
) -> None:
    numbers: dict[int, list[int]] = defaultdict(list)
    for number, run in enumerate(runs):
        if run.graph:
            numbers[run.program].append(number)
    for program, members in numbers.items():
        parts = [[row for row in by_run.get(number, ()) if _of_graph(row)] for number in members]
        what = programs[program]
        name = f"graph of {what.mode} of {what.tokens} tokens under plan {what.plan}"
        if not any(learnt.get(program, ())):
            out.problems.append(f"{name}: no eager run tells its kernels")
            continue
        found = GraphKernels(what, learnt[program]).match([_replay_rows(rows) for rows in parts])
        for rows, matched in zip(parts, found, strict=True):
            for row, op in zip(rows, matched.ops, strict=True):
                row.op = op
            out.how.update({matched.how} - {""})
        out.problems += _said(name, found)


def _of_graph(row: Row) -> bool:
    return row.launch is None or _GRAPH_LAUNCH in row.launch.event.name


def _replay_rows(rows: Sequence[Row]) -> list[ReplayRow]:
    out = []
    for row in rows:
        event = row.span.event
        node = event.arg("graph node id")
        out.append(ReplayRow(row.key, event.arg("stream"), node if isinstance(node, int) and node else None))
    return out


def _said(name: str, found: Sequence[Matched]) -> list[str]:
    out = []
    bad = [matched for matched in found if matched.problem]
    if bad:
        out.append(f"{name}: {len(bad)} of {len(found)} replays not named: {bad[0].problem}")
    unsure = max((matched.unsure for matched in found if not matched.problem), default=0)
    if unsure:
        out.append(f"{name}: {unsure} of {len(found[0].ops)} kernels fit several ops, and have none")
    return out
