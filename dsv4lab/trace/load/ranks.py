"""A directory of ranks as one timeline on one clock."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import TraceError
from dsv4lab.timeline.timeline import COLUMNS, UNKNOWN, Timeline
from dsv4lab.trace.collectives import ClockEstimate, clock_of
from dsv4lab.trace.load.labels import Labels
from dsv4lab.trace.load.report import LoadReport

_TRACE = re.compile(
    r"(?:\.trace\.json|_results\.json|\.json)(?:\.gz)?$|_kernel_trace\.csv$|\.(?:db|rpd|sqlite|pftrace)$", re.IGNORECASE
)
_KINETO = re.compile(r"\.trace\.json(?:\.gz)?$", re.IGNORECASE)
_NOT_TRACES = re.compile(r"^(?:manifest|expected|config|results)\.json$", re.IGNORECASE)
_CAPTURES = "capture_traces"
_CORRELATION_BITS = 48
Loaded = tuple[Path, Timeline, LoadReport]


def trace_files(folder: Path) -> tuple[list[Path], list[str]]:
    """The trace files under ``folder`` and warnings about exports that died.

    Kineto names win over other kinds; graph-capture traces (``capture_traces``) are no steps and left out.
    """
    found = [p for p in sorted(folder.rglob("*")) if p.is_file() and _TRACE.search(p.name) and _CAPTURES not in p.parts]
    found = [p for p in found if not _NOT_TRACES.match(p.name) and not p.name.startswith(".")]
    kineto = [p for p in found if _KINETO.search(p.name)]
    warnings = []
    chosen = []
    for path in kineto or found:
        if path.suffix == ".json" and path.with_name(path.name + ".gz") in found:
            warnings.append(f"{path.name}: left beside its .gz by an export that died: not read")
        else:
            chosen.append(path)
    return chosen, warnings


def pick_ranks(loaded: Sequence[Loaded]) -> tuple[dict[int, Loaded], list[str]]:
    """One file for every rank. Files that name no rank of their own are numbered; of several, the last is taken."""
    ranks = [int(t.rank[0]) if len(t) else int(t.meta.get("rank") or 0) for _, t, _ in loaded]
    if len(set(ranks)) == 1 and len(ranks) > 1:
        return dict(enumerate(loaded)), [
            f"all {len(ranks)} files say rank {ranks[0]}: numbered in order of their names"
        ]
    warnings = [f"rank {rank} has {n} files: the last is taken" for rank, n in sorted(Counter(ranks).items()) if n > 1]
    last = dict(zip(ranks, loaded, strict=True))
    return dict(sorted(last.items())), warnings


def estimate_clocks(timelines: dict[int, Timeline]) -> dict[int, ClockEstimate | None]:
    """Each rank's clock against the lowest rank's."""
    first = next(iter(timelines.values()))
    return {rank: clock_of(first, t) if t is not first else ClockEstimate(0, 0, 0) for rank, t in timelines.items()}


def join_ranks(loaded: dict[int, Loaded], warnings: Sequence[str], *, align: bool = True) -> Timeline:
    """One timeline of all ranks: lanes read ``rank0/7``, names are shared, clocks aligned at collective ends.

    ``meta["clocks"]`` tells each rank's estimated offset, residual and matches, and what was subtracted: nothing with
    ``align`` off, or where the offset does not stand out of the residual.
    """
    timelines = {rank: _on_one_base(t) for rank, (_, t, _) in loaded.items()}
    clocks = estimate_clocks(timelines)
    said = [*warnings, *(w for t in timelines.values() for w in t.warnings)]
    missing = [rank for rank, clock in clocks.items() if clock is None]
    if missing and align:
        said.append(
            f"ranks {', '.join(map(str, missing))}: too few shared collectives to align: the wall clock is used"
        )
    names, streams, queues, devices = Labels(), Labels(), Labels(), Labels()
    parts: dict[str, list[NDArray[Any]]] = {column: [] for column in COLUMNS}
    told: dict[str, dict[str, int] | None] = {}
    for rank, t in timelines.items():
        clock = clocks[rank]
        shift = clock.offset_ns if align and clock is not None and clock.significant else 0
        told[str(rank)] = None if clock is None else {**asdict(clock), "subtracted_ns": shift}
        moved = {
            "start_ns": t.start_ns - shift,
            "queued_ns": np.where(t.queued_ns == UNKNOWN, UNKNOWN, t.queued_ns - shift),
            "name": _mapped(names.column(t.names), t.name),
            "op": _mapped(names.column(t.names), t.op),
            "stream": _mapped(streams.column([f"rank{rank}/{s}" for s in t.streams]), t.stream),
            "queue": _mapped(queues.column([f"rank{rank}/{q}" for q in t.queues]), t.queue),
            "device": _mapped(devices.column([(rank, d) for d in t.meta.get("devices", ())]), t.device),
            "rank": np.full(len(t), rank, np.int32),
            "correlation": np.where(t.correlation == UNKNOWN, UNKNOWN, t.correlation + (rank << _CORRELATION_BITS)),
        }
        for column in COLUMNS:
            parts[column].append(moved.get(column, getattr(t, column)))
    first = next(iter(timelines.values()))
    meta = {
        **first.meta,
        "ranks": list(timelines),
        "devices": [str(d) for _, d in devices.keys],
        "clocks": told,
        "load_reports": [report.to_json() for _, _, report in loaded.values()],
    }
    columns: dict[str, Any] = {column: np.concatenate(values) for column, values in parts.items()}
    return Timeline.build(
        **columns,
        names=names.texts(),
        streams=streams.texts(),
        queues=queues.texts(),
        meta=meta,
        warnings=tuple(dict.fromkeys(said)),
    )


def _mapped(table: list[int], ids: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.asarray(np.array([*table, UNKNOWN], np.int32)[ids])


def _on_one_base(t: Timeline) -> Timeline:
    """Times since the epoch, where the file says what they count from."""
    base = t.meta.get("base_time_ns")
    if not isinstance(base, int) or not base or not 0 < base < 2**62:
        return t
    limit = 2**62 - base
    if len(t) and int(np.abs(t.start_ns).max()) >= limit:
        return t
    queued = np.where(t.queued_ns == UNKNOWN, UNKNOWN, t.queued_ns + base)
    return replace(t, start_ns=t.start_ns + base, queued_ns=queued)


def load_ranks(
    paths: Sequence[Path], load: Callable[[Path], tuple[Timeline, LoadReport]], *, align: bool = True
) -> tuple[Timeline, LoadReport]:
    """Load ``paths`` as ranks of one run. Files that hold no trace are named in a warning.

    Raises ``TraceError`` if none of them can be loaded.
    """
    loaded: list[Loaded] = []
    warnings = []
    for path in paths:
        try:
            timeline, report = load(path)
        except TraceError as error:
            warnings.append(f"skipped: {error}")
            continue
        loaded.append((path, timeline, report))
    if not loaded:
        raise TraceError(f"{paths[0].parent}: none of its {len(paths)} files could be loaded; first: {warnings[0]}")
    if len(loaded) == 1:
        _, timeline, report = loaded[0]
        return replace(timeline, warnings=(*timeline.warnings, *warnings)), report
    chosen, notes = pick_ranks(loaded)
    timeline = join_ranks(chosen, [*warnings, *notes], align=align)
    return timeline, _sum_reports([report for _, _, report in chosen.values()])


def _sum_reports(reports: Sequence[LoadReport]) -> LoadReport:
    total = LoadReport(file=f"{len(reports)} files", format=reports[0].format, exporter=reports[0].exporter)
    for report in reports:
        total.plain_bytes += report.plain_bytes
        total.events += report.events
        total.rows += report.rows
        total.lost_events += report.lost_events
        total.lost_bytes += report.lost_bytes
        total.truncated |= report.truncated
        total.repairs += report.repairs
        total.findings += report.findings
    return total
