"""Loaders: any trace into a :class:`~dsv4lab.timeline.timeline.Timeline` and a load report."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dsv4lab.errors import TraceError
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.trace.load.report import LoadReport
from dsv4lab.trace.text import clean

Progress = Callable[[int], None]

__all__ = ["LoadReport", "Progress", "find_files", "load_any", "load_file"]


def load_file(path: Path, progress: Progress | None = None) -> tuple[Timeline, LoadReport]:
    """Load one trace file of any known format.

    ``progress`` is called now and then with the number of file bytes read so far. Raises ``TraceError``, in one line
    that names the file, if it is missing, of no known format, or damaged beyond repair.
    """
    try:
        return _load(path, progress)
    except TraceError as error:
        raise TraceError(clean(str(error))) from None


def _load(path: Path, progress: Progress | None) -> tuple[Timeline, LoadReport]:
    from dsv4lab.trace.load.detect import detect

    kind = detect(path)
    if kind == "kineto":
        from dsv4lab.trace.load.kineto import read_kineto

        return read_kineto(path, progress)
    if kind == "rocprofv3 json":
        from dsv4lab.trace.load.rocprof_json import read_rocprof_json

        return read_rocprof_json(path, progress)
    if kind == "rocprofv3 csv":
        from dsv4lab.trace.load.rocprof_csv import read_rocprof_csv

        return read_rocprof_csv(path)
    if kind == "pftrace":
        from dsv4lab.trace.load.pftrace import read_pftrace

        return read_pftrace(path, progress)
    from dsv4lab.trace.load.sqlite import read_sqlite

    return read_sqlite(path)


Where = str | Path | Sequence[str | Path]


def find_files(where: Where) -> tuple[list[Path], list[str]]:
    """The files that ``where`` names (files, a directory of ranks, or a glob) and warnings about them.

    Raises ``TraceError`` if there is none.
    """
    if not isinstance(where, str | Path):
        found = [find_files(one) for one in where]
        return [path for paths, _ in found for path in paths], [text for _, said in found for text in said]
    from dsv4lab.trace.load.ranks import trace_files

    path = Path(where).expanduser()
    warnings: list[str] = []
    if path.is_dir():
        files, warnings = trace_files(path)
        if not files:
            raise TraceError(f"{path}: no trace file in this directory")
    elif not path.exists() and glob.has_magic(str(where)):
        files = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
        if not files:
            raise TraceError(f"{where}: no file matches")
    else:
        files = [path]
    return files, warnings


def load_cached(path: Path, progress: Progress | None = None) -> tuple[Timeline, LoadReport]:
    """:func:`load_file`, remembering large files in the user's cache folder. A warning tells of a damaged cache."""
    from dsv4lab.trace.cache import DamagedCacheError, is_worth_it, recall, remember

    if not path.is_file() or not is_worth_it(path):
        return load_file(path, progress)
    note: tuple[str, ...] = ()
    try:
        found = recall(path)
    except DamagedCacheError:
        found, note = None, (f"{clean(path.name)}: its cache was damaged: the file was read again",)
    if found is None:
        found = load_file(path, progress)
        remember(path, *found)
    timeline, report = found
    return (replace(timeline, warnings=(*timeline.warnings, *note)) if note else timeline), report


def load_any(
    where: Where, progress: Progress | None = None, *, align: bool = True, cache: bool = True
) -> tuple[Timeline, LoadReport]:
    """Load a file, or a directory or glob of ranks as one aligned timeline (``align``: at collective ends).

    ``progress`` counts file bytes over all files; ``cache`` off reads and writes no cache. Raises ``TraceError`` as
    :func:`load_file` does.
    """
    from dsv4lab.trace.load.ranks import load_ranks

    files, warnings = find_files(where)
    done = 0

    def load(path: Path) -> tuple[Timeline, LoadReport]:
        nonlocal done
        before = done
        tell = None if progress is None else lambda read: progress(before + read)
        loaded = load_cached(path, tell) if cache else load_file(path, tell)
        done += path.stat().st_size
        return loaded

    timeline, report = load(files[0]) if len(files) == 1 else load_ranks(files, load, align=align)
    return replace(timeline, warnings=(*timeline.warnings, *warnings)), report
