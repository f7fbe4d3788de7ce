"""Loaders: any trace file into a :class:`~dsv4lab.timeline.timeline.Timeline` and a load report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dsv4lab.timeline.timeline import Timeline
from dsv4lab.trace.load.report import LoadReport

Progress = Callable[[int], None]

__all__ = ["LoadReport", "Progress", "load_file"]


def load_file(path: Path, progress: Progress | None = None) -> tuple[Timeline, LoadReport]:
    """Load one trace file of any known format.

    ``progress`` is called now and then with the number of file bytes read so far. Raises ``TraceError``, in one line
    that names the file, if it is missing, of no known format, or damaged beyond repair.
    """
    from dsv4lab.errors import TraceError
    from dsv4lab.trace.load.detect import detect
    from dsv4lab.trace.load.kineto import read_kineto

    kind = detect(path)
    if kind == "kineto":
        return read_kineto(path, progress)
    raise TraceError(f"{path}: {kind} files are not read yet")
