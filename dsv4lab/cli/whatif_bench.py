"""``dsv4lab whatif --bench``: predicted gains beside measured ones."""

from __future__ import annotations

import argparse
import textwrap

from dsv4lab.cli.machine_args import machine_of
from dsv4lab.cli.output import console, emit_json, table
from dsv4lab.cli.trace_load import as_path
from dsv4lab.errors import TraceError, UsageError

COVERED = (
    "Gains are against off. Predicted from traces of serial plans alone (base); perfect: side work would cost nothing. "
    "Plans that take a fused op apart need a trace of unfused: bench overlap --trace unfused."
)


def run_bench(args: argparse.Namespace) -> int:
    """Print the rows: ``level``, ``plan``, ``base``, ``measured``, ``predicted``, ``perfect``, ``error``."""
    from dsv4lab.predict.bench_check import BenchFolder, check

    if len(args.file) != 1:
        raise UsageError(f"--bench takes one folder, got {len(args.file)} files")
    on = machine_of(args)
    rows = check(BenchFolder(as_path(args.file[0])), on)
    if not rows:
        raise TraceError(f"{args.file[0]}: no level has a trace of off and a plan to predict from it")
    worst = max(abs(row.error) for row in rows)
    if args.json:
        emit_json({"device": on.device.name, "rows": [row.to_json() for row in rows], "worst_error": worst})
        return 0
    cells = [
        [
            str(row.level),
            row.plan,
            row.base,
            f"{row.measured:+.1%}",
            f"{row.predicted:+.1%}",
            f"{round(100 * row.error, 1) + 0.0:+.1f}",
            f"{row.perfect:+.1%}",
        ]
        for row in rows
    ]
    table(["level", "plan", "base", "measured", "predicted", "points off", "perfect"], cells, left=3)
    out = console()
    out.print("\n".join(textwrap.wrap(COVERED, 80)))
    out.print(f"largest error: {100 * worst:.1f} points")
    return 0
