"""A capture as a file: torch's own events, device rows on the program's streams and named by op, and our labels.

What was run to learn names is left out. ``stream`` of a device row is the position of its stream's label, ``lane`` the
number that the profiler gave. Eager attention gets the operator row and the frame by which TraceLens knows DeepSeek-V4.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dsv4lab.errors import TraceError
from dsv4lab.timeline.program import MAIN, ProgramOp, StreamProgram
from dsv4lab.timeline.timeline import UNKNOWN
from dsv4lab.trace.attribute import Attribution, Row, attribute
from dsv4lab.trace.export import HOST_PID, micros_text
from dsv4lab.trace.load.events import KINDS
from dsv4lab.trace.marks import CapturedRun, op_index
from dsv4lab.trace.raw_events import DEVICE, RANGE, RawEvent, RawTrace, Span

V4_OPERATOR = "aiter::v4_attention_with_output"
V4_FRAME = "paged_decode.py(1): sparse_attn_v4_paged_decode"
_BEFORE_ATTENTION, _ATTENTION = "mhc_", "attention"
_DROPPED = ("gpu_user_annotation", "Trace")
_OPS_PID = 4_000_000


@dataclass(frozen=True, slots=True)
class NamedCapture:
    """What became of the device rows of a capture; ``how`` replays were matched. ``problems`` say what has no ops."""

    path: Path
    runs: int
    rows: int
    named: int
    how: tuple[str, ...]
    problems: tuple[str, ...]


def write_named(
    raw: Path,
    path: Path,
    programs: Sequence[StreamProgram],
    runs: Sequence[CapturedRun],
    meta: Mapping[str, Any],
    *,
    platform: str,
    cost: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
    rank: int = 0,
) -> NamedCapture:
    """Read the capture at ``raw`` and write it, named, to ``path`` (gzip); only a whole file gets that name.

    ``meta`` is what a timeline has beside its rows (``manifest``, ``step_modes``). Under ``capture`` the file says what
    is returned, the ``cost`` of profiling, and ``warnings`` behind those of the names. On ``platform`` ``cpu`` the
    ranges of ops become the device rows.

    Raises :class:`TraceError` if it is not one of ours, a GPU's rows are missing, or the file cannot be written.
    """
    trace = RawTrace.read(raw)
    found = attribute(trace, programs, runs)
    if platform != "cpu" and runs and not found.rows:
        raise TraceError(
            "torch's profiler told of no kernel: the GPU's counters may be taken by another profiler, or not allowed "
            "here; capture='ops' records without it"
        )
    file = _File(trace, found, programs, runs, platform, rank)
    events = list(file.events())
    rows = file.device_rows
    named = sum(row.op != UNKNOWN for row in found.rows) if platform != "cpu" else rows
    told = NamedCapture(path, len(runs), rows, named, tuple(sorted(found.how)), tuple(found.problems))
    capture = {
        **{name: getattr(told, name) for name in ("runs", "rows", "named", "how")},
        "cost": cost,
        "warnings": [*found.problems, *warnings],
    }
    document = {
        **{key: value for key, value in trace.header.items() if key != "traceName"},
        "dsv4lab": {**file.labels(), **meta, "capture": capture},
        "traceEvents": events,
        "traceName": path.name,
    }
    _write(path, msgspec.json.encode(document))
    return told


def _write(path: Path, text: bytes) -> None:
    """A ``.json`` that is left beside no ``.gz`` tells of a write that died."""
    plain, half = path.with_name(path.name.removesuffix(".gz")), path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        plain.write_bytes(text)
        half.write_bytes(gzip.compress(text, 5, mtime=0))
        os.replace(half, path)
        plain.unlink()
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror or error}") from None


class _File:
    def __init__(
        self,
        trace: RawTrace,
        found: Attribution,
        programs: Sequence[StreamProgram],
        runs: Sequence[CapturedRun],
        platform: str,
        rank: int,
    ) -> None:
        self._trace = trace
        self._rank = rank
        self._found = found
        self._programs = programs
        self._runs = runs
        self._platform = platform
        self._names: dict[str, int] = {}
        self._streams: dict[str, int] = {MAIN: 0}
        self._devices: dict[str, int] = {}
        self._of: dict[int, Row] = {id(row.span.event): row for row in found.rows}
        self._pids = {row.span.event.pid for row in found.rows}
        self.device_rows = 0

    def labels(self) -> dict[str, Any]:
        """What our loader reads ids by; after :meth:`events`."""
        return {
            "version": 1,
            "platform": self._platform,
            "streams": list(self._streams),
            "queues": [],
            "names": list(self._names),
            "main_stream": MAIN,
            "devices": list(self._devices),
        }

    def events(self) -> Iterator[RawEvent]:
        """The events of the file."""
        kept = set()
        for event in self._trace.events:
            if event.cat in DEVICE:
                if id(event) in self._of:
                    kept.add(event.arg("correlation"))
                    yield self._row(event)
            elif event.cat not in _DROPPED and event.cat != "ac2g" and not self._is_elsewhere(event):
                yield self._plain(event)
        for event in self._trace.events:
            if event.cat == "ac2g" and event.id in kept:
                yield event
        if self._platform == "cpu":
            yield from self._cpu_rows()
        yield from self._steps()
        yield from self._op_ranges()
        yield from self._attention()
        yield from self._metadata()

    def _is_elsewhere(self, event: RawEvent) -> bool:
        """Whether ``event`` belongs to the setup, or names a lane that has another number here."""
        if event.ph == "M":
            return event.name.startswith("thread_") and event.pid in self._pids
        if event.ph != "X" or event.cat is None or isinstance(event.ts, msgspec.UnsetType):
            return False
        return self._found.setup.at(event.start) is not None

    def _plain(self, event: RawEvent) -> RawEvent:
        """What is no device row, as it was; rows that our loader takes say which rank they are of."""
        if event.ph == "X" and event.cat in KINDS:
            args = {("lane" if key == "stream" else key): value for key, value in (event.args or {}).items()}
            event.args = {**args, "rank": self._rank}
        return event

    def _row(self, event: RawEvent) -> RawEvent:
        row = self._of[id(event)]
        lane, device = event.arg("stream"), str(event.arg("device"))
        op = self._op_of(row)
        stream = self._stream(f"stream {lane}" if op is None else op.stream)
        told = {
            "stream": stream,
            "lane": lane,
            "at": self._devices.setdefault(device, len(self._devices)),
            "rank": self._rank,
        }
        step = self._runs[row.run].step if row.run != UNKNOWN else UNKNOWN
        event.args = {**(event.args or {}), **told, **({"step": step} if step >= 0 else {}), **self._of_op(op)}
        event.tid = stream
        self.device_rows += 1
        return event

    def _op_of(self, row: Row) -> ProgramOp | None:
        return None if row.op == UNKNOWN else self._programs[self._runs[row.run].program].ops[row.op]

    def _of_op(self, op: ProgramOp | None) -> dict[str, Any]:
        if op is None:
            return {}
        name = self._names.setdefault(op.name, len(self._names))
        layer = {"layer": op.layer} if op.layer >= 0 else {}
        return {"op": name, **layer, "op name": op.label, "stream name": op.stream}

    def _stream(self, label: str) -> int:
        return self._streams.setdefault(label, len(self._streams))

    def _ranges(self) -> Iterator[tuple[int, ProgramOp, Span]]:
        """Run, op and host range of every op that ran eagerly."""
        spans = sorted(self._found.runs.items(), key=lambda item: item[1].start)
        at = 0
        for span in self._trace.spans(RANGE):
            index = op_index(span.event.name)
            if index is None or self._found.setup.at(span.start) is not None:
                continue
            while at + 1 < len(spans) and spans[at + 1][1].start <= span.start:
                at += 1
            if spans and spans[at][1].start <= span.start < spans[at][1].end:
                number = spans[at][0]
                yield number, self._programs[self._runs[number].program].ops[index], span

    def _cpu_rows(self) -> Iterator[RawEvent]:
        """On the CPU device an op is what a queue runs: its range is its row."""
        self._devices.setdefault("0", 0)
        for number, op, span in list(self._ranges()):
            step = self._runs[number].step
            stream = self._stream(op.stream)
            args = {
                "device": 0,
                "at": 0,
                "rank": self._rank,
                "stream": stream,
                "thread": span.event.tid,
                **self._of_op(op),
            }
            self.device_rows += 1
            yield _slice(
                "kernel", op.name, 0, stream, span.start, span.end, args | ({"step": step} if step >= 0 else {})
            )

    def _steps(self) -> Iterator[RawEvent]:
        """A ``ProfilerStep#`` range over each step, for step views of other tools; our loader leaves it out."""
        ends: dict[int, int] = {}
        for row in self._found.rows:
            if row.run != UNKNOWN:
                ends[row.run] = max(ends.get(row.run, 0), row.span.end)
        whole: dict[int, tuple[int, int]] = {}
        for number, span in self._found.runs.items():
            step = self._runs[number].step
            first, last = whole.get(step, (span.start, span.end))
            whole[step] = (min(first, span.start), max(last, span.end, ends.get(number, 0)))
        for step, (first, last) in whole.items():
            if step >= 0:
                yield _slice(RANGE, f"ProfilerStep#{step}", HOST_PID, 0, first, last, {"derived": 1})

    def _op_ranges(self) -> Iterator[RawEvent]:
        """Above the kernels of a stream, a range per op, cut where the next one begins."""
        lanes: dict[str, list[list[Any]]] = {}
        for row in self._found.rows:
            if (op := self._op_of(row)) is None:
                continue
            lane = lanes.setdefault(op.stream, [])
            if not lane or lane[-1][:2] != [row.run, row.op]:
                if lane:
                    lane[-1][4] = min(lane[-1][4], row.span.start)
                lane.append([row.run, row.op, op, row.span.start, row.span.end])
            else:
                lane[-1][4] = max(lane[-1][4], row.span.end)
        for stream, found in lanes.items():
            for _, _, op, start, end in found:
                tid = self._streams[stream]
                yield _slice("gpu_user_annotation", op.label, _OPS_PID, tid, start, end, {"derived": 1})

    def _attention(self) -> Iterator[RawEvent]:
        """Around each eager attention of a decode forward, TraceLens' operator, and its frame around the kernel."""
        begun: dict[tuple[int, int], Span] = {}
        for number, op, span in list(self._ranges()):
            if self._platform == "cpu" or self._programs[self._runs[number].program].mode != "decode":
                continue
            if not op.name.startswith(_BEFORE_ATTENTION):
                begun.setdefault((number, op.layer), span)
            if op.name == _ATTENTION and (first := begun.get((number, op.layer))) is not None:
                pid, tid = span.event.pid, span.event.tid
                yield _slice("cpu_op", V4_OPERATOR, pid, tid, first.start, span.end, {"derived": 1})
                yield _slice("python_function", V4_FRAME, pid, tid, span.start, span.end, {"derived": 1})

    def _metadata(self) -> Iterator[RawEvent]:
        for label, tid in self._streams.items():
            for pid in (*sorted(self._pids or {0}, key=str), _OPS_PID):
                yield RawEvent(ph="M", name="thread_name", pid=pid, tid=tid, args={"name": label})
                yield RawEvent(ph="M", name="thread_sort_index", pid=pid, tid=tid, args={"sort_index": tid})
        yield RawEvent(ph="M", name="process_name", pid=_OPS_PID, tid=0, args={"name": "ops by stream"})


def _slice(category: str, name: str, pid: Any, tid: Any, start: int, end: int, args: dict[str, Any]) -> RawEvent:
    times = (msgspec.Raw(micros_text(ns).encode()) for ns in (start, end - start))
    ts, dur = times
    return RawEvent(ph="X", cat=category, name=name, pid=pid, tid=tid, ts=ts, dur=dur, args=args)
