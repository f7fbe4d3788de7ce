"""``dsv4lab trace``: what is in a trace file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4lab.cli.base import Command, add_common_options
from dsv4lab.cli.output import emit_json, note, progress, table
from dsv4lab.cli.safe import clean, clip
from dsv4lab.units import ns_text

if TYPE_CHECKING:
    from dsv4lab.timeline.records import BusySummary
    from dsv4lab.trace.api import Trace

TRUNCATED = 2
_MIB = 1 << 20
_STREAMS_SHOWN = 20


class TraceCommand(Command):
    """Subcommands of ``dsv4lab trace``."""

    name = "trace"
    help = "load a trace file and tell what it holds"
    examples = (
        "dsv4lab trace summary traces/run/dsv4lab.1700000000000000000.pt.trace.json.gz",
        "dsv4lab trace summary decode.pt.trace.json.gz --main 7 --json",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Add the subcommands."""
        commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        summary = commands.add_parser("summary", help="busy time by stream and queue", allow_abbrev=False)
        add_common_options(summary, nested=True)
        summary.add_argument("file", type=Path, metavar="FILE", help="the trace, plain or gzipped")
        summary.add_argument("--main", metavar="STREAM", help="the main stream (default: the busiest)")

    def run(self, args: argparse.Namespace) -> int:
        """Carry out the subcommand; 2 if the file was truncated."""
        trace = load_with_progress(args.file)
        summary = trace.stream_busy(args.main)
        report = trace.report
        if args.json:
            emit_json({**summary.to_json(), "load_report": report.to_json() if report else None})
        else:
            print_summary(trace, summary)
        if report is not None and report.truncated:
            note(f"dsv4lab: error: {args.file}: truncated: figures cover its {report.events} complete events")
            return TRUNCATED
        return 0


def load_with_progress(path: Path) -> Trace:
    """Load ``path``, with a progress bar if it is large."""
    from dsv4lab.trace.api import load_trace

    size = path.stat().st_size if path.is_file() else 0
    if size < _MIB:
        return load_trace(path)
    with progress(size // _MIB, f"loading {clip(path.name, 40)} (MiB)") as advance:
        done = 0

        def report(read: int) -> None:
            nonlocal done
            advance(read // _MIB - done)
            done = read // _MIB

        return load_trace(path, progress=report)


def print_summary(trace: Trace, summary: BusySummary) -> None:
    """The busy table for a reader."""
    rows: list[list[str]] = []
    for stream in summary.streams[:_STREAMS_SHOWN]:
        name = f"{clip(stream.stream, 18)}" + (
            "" if stream.queue in (None, stream.stream) else f" (queue {clip(str(stream.queue), 12)})"
        )
        rows.append(
            [
                name,
                stream.role,
                ns_text(stream.busy_ns),
                _share(stream.busy_ns, summary.wall_ns),
                ns_text(stream.hidden_ns) if stream.role == "side" else "",
                str(stream.events),
            ]
        )
    if rows:
        table(["stream", "role", "busy", "of wall", "hidden", "events"], rows, left=2)
    if len(summary.streams) > _STREAMS_SHOWN:
        rest = summary.streams[_STREAMS_SHOWN:]
        note(f"{len(rest)} more streams with {ns_text(sum(s.busy_ns for s in rest))} busy: --json lists them all")
    if summary.queues and not _same_lanes(summary):
        queues = [
            [clip(q.queue, 24), ns_text(q.busy_ns), _share(q.busy_ns, summary.wall_ns), str(q.events)]
            for q in summary.queues
        ]
        table(["queue", "busy", "of wall", "events"], queues)
    table(
        ["wall", "union busy", "sum busy", "concurrency", "hidden"],
        [
            [
                ns_text(summary.wall_ns),
                ns_text(summary.union_busy_ns),
                ns_text(summary.sum_busy_ns),
                f"{summary.concurrency:.3f}×",
                ns_text(summary.hidden_ns),
            ]
        ],
        left=0,
    )
    for warning in summary.warnings:
        note(f"note: {clean(warning)}", style="lab.warn")


def _same_lanes(summary: BusySummary) -> bool:
    return {(s.stream, s.busy_ns) for s in summary.streams} == {(q.queue, q.busy_ns) for q in summary.queues}


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""
