"""Loading for ``dsv4lab trace``: options, progress, and what a truncated file does to the exit code."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4lab.cli.output import note, progress
from dsv4lab.cli.safe import clean, clip

if TYPE_CHECKING:
    from dsv4lab.trace.api import Trace

TRUNCATED = 2
_MIB = 1 << 20


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Files and how to load them."""
    parser.add_argument("file", nargs="+", metavar="FILE", help="a trace, a glob, or a directory of ranks")
    parser.add_argument("--no-cache", action="store_true", help="read and write no cache")
    parser.add_argument("--no-align", action="store_true", help="keep the clocks of ranks as they are")


def load(where: str | Sequence[str], args: argparse.Namespace) -> Trace:
    """Load ``where``, with a progress bar if it is large."""
    from dsv4lab.trace.api import load_trace
    from dsv4lab.trace.load import find_files

    one = where if isinstance(where, str) else where[0] if len(where) == 1 else list(where)
    files, _ = find_files(one)
    size = sum(path.stat().st_size for path in files if path.is_file())
    align, cache = not args.no_align, not args.no_cache
    if size < _MIB:
        return load_trace(one, align=align, cache=cache)
    what = files[0].name if len(files) == 1 else f"{len(files)} files"
    with progress(max(size // _MIB, 1), f"loading {clip(what, 40)} (MiB)") as advance:
        done = 0

        def report(read: int) -> None:
            nonlocal done
            if read // _MIB > done:
                advance(read // _MIB - done)
                done = read // _MIB

        return load_trace(one, progress=report, align=align, cache=cache)


def exit_code(trace: Trace, where: str | Sequence[str]) -> int:
    """2, with one line that names the file, if the file was truncated; else 0."""
    if trace.report is None or not trace.report.truncated:
        return 0
    name = where if isinstance(where, str) else " ".join(where)
    note(f"dsv4lab: error: {clean(name)}: truncated: figures cover its {trace.report.events} complete events")
    return TRUNCATED


def show_warnings(warnings: Sequence[str]) -> None:
    """Warnings on standard error; truncation has its own line there."""
    for warning in warnings:
        if ": truncated: " not in warning:
            note(f"note: {clean(warning)}", style="lab.warn")


def as_path(name: str) -> Path:
    """A path as typed."""
    return Path(name).expanduser()
