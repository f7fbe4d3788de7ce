"""The actions of ``dsv4lab trace``: each loads, asks, prints and returns the exit code."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4lab.cli import trace_overview as more
from dsv4lab.cli import trace_tables as tables
from dsv4lab.cli.output import emit_json, note
from dsv4lab.cli.trace_load import exit_code, load, show_warnings
from dsv4lab.errors import UsageError

if TYPE_CHECKING:
    from dsv4lab.timeline.records import BusySummary
    from dsv4lab.trace.analyse.roofline import RooflinePoint
    from dsv4lab.trace.api import Trace

DAMAGED = 1
_SUFFIXES = {
    ".json": "kineto",
    ".gz": "kineto",
    ".pftrace": "pftrace",
    ".parquet": "parquet",
    ".csv": "csv",
    ".html": "html",
}


def summary(args: argparse.Namespace) -> int:
    """Busy table and what goes with it."""
    trace = load(args.file, args)
    if args.clip_overlong:
        from dsv4lab.trace.analyse.suspect import clip_overlong
        from dsv4lab.trace.api import Trace

        trace = Trace.of(clip_overlong(trace), trace.path, trace.report)
    busy = trace.stream_busy(args.main)
    if args.json:
        emit_json(summary_json(trace, busy, args.main, _listed(args.expect)))
    else:
        tables.busy(trace, busy)
        found = more.overview_json(trace, args.main, more.rank_rows(trace, busy, args.main), _listed(args.expect))
        more.overview(found, trace)
        show_warnings(busy.warnings)
    return exit_code(trace, args.file)


def _listed(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())


def summary_json(trace: Trace, busy: BusySummary, main: str | None, expected: tuple[str, ...] = ()) -> dict[str, Any]:
    """The documented object of ``trace summary --json``; ``expected`` are the streams of the plan."""
    from dsv4lab.timeline.occupancy import queue_depth

    out = busy.to_json()
    depth = {d.queue: dataclasses.asdict(d) for d in queue_depth(trace)}
    for queue in out["queues"]:
        queue["occupancy"] = {k: v for k, v in depth[queue["queue"]].items() if k != "queue"}
    out |= more.overview_json(trace, main, more.rank_rows(trace, busy, main), expected)
    out["steps"] = trace.steps(main).to_json()
    out["load_report"] = trace.report.to_json() if trace.report else None
    return out


def steps(args: argparse.Namespace) -> int:
    """Busy time by step."""
    from dsv4lab.trace.analyse.steps import find_steps, step_times

    trace = load(args.file, args)
    found = find_steps(trace)
    rows = step_times(trace, found, args.main)
    if args.json:
        listed = [dataclasses.asdict(row) for row in rows]
        replays = trace.graphs().to_json()
        emit_json({"source": found.source, "unattributed": found.unattributed, "steps": listed, "replays": replays})
    else:
        tables.steps(rows, args.top)
        if found.unattributed:
            note(f"note: {found.unattributed} rows belong to no known step", style="lab.warn")
        show_warnings(trace.warnings)
    return exit_code(trace, args.file)


def ops(args: argparse.Namespace) -> int:
    """Work by a key."""
    from dsv4lab.trace.analyse.ops import work

    points = _roofline(args)
    trace = load(args.file, args)
    rows = work(trace, args.by)
    placed = points(trace) if points else []
    if args.json:
        roof = {"roofline": [dataclasses.asdict(p) for p in placed]} if points else {}
        emit_json({"by": args.by, "rows": [dataclasses.asdict(row) for row in rows], **roof})
    else:
        tables.work(rows, args.by, args.top)
        if points:
            more.roofline(placed, args.top)
        show_warnings(trace.warnings)
    return exit_code(trace, args.file)


def _roofline(args: argparse.Namespace) -> Callable[[Trace], list[RooflinePoint]] | None:
    """What places rows under the roofline; ``None`` if it was not asked for."""
    peaks = (args.peak_flops, args.peak_bytes)
    if args.costs is None and peaks == (None, None):
        return None
    if args.costs is None or None in peaks:
        raise UsageError("a roofline takes --costs FILE, --peak-flops and --peak-bytes together")
    known = more.read_costs(args.costs)
    return lambda trace: trace.roofline(known, peak_flops=args.peak_flops, peak_bytes=args.peak_bytes)


def idle(args: argparse.Namespace) -> int:
    """Idle time by cause, by stream, and the largest gaps."""
    from dsv4lab.trace.analyse.idle import idle_causes, idle_gaps, stream_idle

    trace = load(args.file, args)
    gaps = idle_gaps(trace)
    causes, streams = idle_causes(trace, gaps), stream_idle(trace)
    largest = sorted(gaps, key=lambda g: -g.dur_ns)[: args.top]
    if args.json:
        parts: dict[str, list[Any]] = {"causes": list(causes), "streams": list(streams), "largest": largest}
        listed = {key: [dataclasses.asdict(row) for row in rows] for key, rows in parts.items()}
        emit_json(
            {"idle_ns": sum(g.dur_ns for g in gaps), **listed, "launches": dataclasses.asdict(trace.launch_boundness())}
        )
    else:
        tables.idle(causes, largest)
        more.launches(trace.launch_boundness())
        show_warnings(trace.warnings)
    return exit_code(trace, args.file)


def compare_traces(args: argparse.Namespace) -> int:
    """The first file against each of the others."""
    if len(args.file) < 2:
        raise UsageError("trace compare takes at least two traces: FILE FILE ...")
    from dsv4lab.trace.compare import compare

    traces = [load(name, args) for name in args.file]
    labels = _labels(args.file)
    found = [
        compare(traces[0], other, labels=(labels[0], label), main=args.main)
        for other, label in zip(traces[1:], labels[1:], strict=True)
    ]
    if args.json:
        emit_json({"comparisons": [comparison.to_json() for comparison in found]})
    else:
        for comparison in found:
            tables.comparison(comparison, args.top)
            show_warnings(comparison.notes)
    return max(exit_code(trace, name) for trace, name in zip(traces, args.file, strict=True))


def _labels(names: list[str]) -> list[str]:
    """File names, or whole paths where names repeat."""
    short = [Path(name).name.split(".pt.trace")[0] for name in names]
    return short if len(set(short)) == len(short) else names


def critical(args: argparse.Namespace) -> int:
    """The critical path."""
    trace = load(args.file, args)
    path = trace.critical_path(args.rank)
    if args.json:
        emit_json(
            {
                "wall_ns": path.wall_ns,
                "by_category": path.by("category"),
                "by_stream": path.by("stream"),
                "segments": [dataclasses.asdict(segment) for segment in path.segments],
            }
        )
    else:
        tables.critical(path, args.top)
        show_warnings(trace.warnings)
    return exit_code(trace, args.file)


def convert(args: argparse.Namespace) -> int:
    """Write the trace in another format."""
    kind = args.to or _SUFFIXES.get(args.out.suffix.lower())
    if kind is None:
        raise UsageError(f"--out {args.out}: unknown kind of file: give --to, one of {', '.join(_SUFFIXES.values())}")
    trace = load(args.file, args)
    written = write(trace, args.out, kind)
    if args.json:
        emit_json({"written": str(written), "format": kind, "rows": len(trace)})
    else:
        note(f"wrote {written}")
    return exit_code(trace, args.file)


def write(trace: Trace, out: Path, kind: str) -> Path:
    """Write ``trace`` to ``out`` as ``kind``."""
    if kind == "kineto":
        from dsv4lab.trace.export import export_kineto

        return export_kineto(trace, out)
    if kind == "pftrace":
        from dsv4lab.trace.pftrace import export_pftrace

        return export_pftrace(trace, out)
    if kind == "html":
        from dsv4lab.cli.trace_page import write_page

        return write_page(trace, out)
    from dsv4lab.trace.rows import export_csv, export_parquet

    return export_parquet(trace, out) if kind == "parquet" else export_csv(trace, out)


def validate(args: argparse.Namespace) -> int:
    """What the load report says; 1 if anything was repaired or lost."""
    trace = load(args.file, args)
    report = trace.report
    assert report is not None
    damaged = bool(report.repairs or report.lost_events or report.truncated)
    if args.json:
        emit_json({"ok": not damaged, "load_report": report.to_json(), "warnings": list(trace.warnings)})
    else:
        tables.report(report)
        show_warnings(trace.warnings)
    return exit_code(trace, args.file) or (DAMAGED if damaged else 0)


def tensorboard(args: argparse.Namespace) -> int:
    """Write a run folder and open it."""
    from dsv4lab.cli.trace_tensorboard import command, serve
    from dsv4lab.trace.export import export_run, safe_file_part

    trace = load(args.file, args)
    worker = Path(args.file[0]).name.split(".")[0] or "trace"
    run = args.logdir / safe_file_part(worker)
    written = export_run(trace, run, worker=worker)
    words = command(args.logdir, args.port)
    if args.json:
        emit_json({"run": str(run), "written": str(written), "command": words})
    else:
        note(f"wrote {written}")
    return exit_code(trace, args.file) if args.write_only else serve(words)
