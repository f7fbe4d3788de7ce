"""Loaded timelines remembered on disk, so that a large trace opens at once the second time.

One Parquet file a trace in the user's cache folder, named by a hash of the trace's path: the columns as they are, and
as metadata the labels, the load report and what the trace file looked like. It counts only while size, time of change
and reader version are those it was made from. Columns carry checksums, labels a digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import TraceError
from dsv4lab.timeline.timeline import COLUMNS, Timeline
from dsv4lab.trace.load.report import LoadReport

READER = 2
"""Raise when a loader would give another timeline for the same file."""
SMALLEST = 4 << 20
MOST_BYTES = 4 << 30
_FACTS, _DIGEST = b"dsv4lab", b"dsv4lab.digest"
_LABELS = ("names", "streams", "queues", "main_stream", "warnings")
_DTYPES = {name: getattr(Timeline.empty(), name).dtype for name in COLUMNS}
_AS_IT_IS: dict[str, Any] = {
    "compression": "none",
    "use_dictionary": [name for name, dtype in _DTYPES.items() if dtype.itemsize < 8],
    "write_statistics": False,
    "write_page_checksum": True,
    "store_schema": False,
}
"""How the file is written: what reads back fastest. Only ids repeat enough for a dictionary."""


class DamagedCacheError(TraceError):
    """A cache file that cannot be what was written."""


def cache_folder() -> Path:
    """Where caches go."""
    return Path.home() / ".cache" / "dsv4lab" / "traces"


def is_worth_it(path: Path) -> bool:
    """Whether ``path`` is large enough to be remembered."""
    return path.stat().st_size >= SMALLEST


def _place(path: Path, folder: Path) -> Path:
    digest = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return folder / f"{digest[:32]}.parquet"


def _key(path: Path) -> list[int]:
    stat = path.stat()
    return [READER, stat.st_size, stat.st_mtime_ns]


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest().encode()


def recall(path: Path, folder: Path | None = None) -> tuple[Timeline, LoadReport] | None:
    """The remembered timeline of ``path``, its columns read-only; ``None`` if there is none or the trace has changed.

    Raises ``DamagedCacheError`` if there is a file that does not read back.
    """
    place = _place(path, folder or cache_folder())
    if not place.is_file():
        return None
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(place, memory_map=True, page_checksum_verification=True) as file:
            text = file.metadata.metadata[_FACTS]
            if file.metadata.metadata[_DIGEST] != _digest(text):
                raise ValueError("labels are not those that were written")
            facts = msgspec.json.decode(text)
            if facts["key"] != _key(path):
                return None
            table = file.read(use_threads=False)
        columns: dict[str, Any] = {name: _column(table.column(name), dtype) for name, dtype in _DTYPES.items()}
        timeline = Timeline.build(**columns, meta=facts["meta"], **{name: facts[name] for name in _LABELS})
        timeline.check()
        report = LoadReport.from_json({**facts["report"], "cached": True})
    except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException, msgspec.DecodeError) as error:
        raise DamagedCacheError(f"{place}: damaged cache: {error}") from None
    with contextlib.suppress(OSError):
        os.utime(place)
    return timeline, report


def _column(column: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values of a column that is one chunk, without a copy (and without pandas, which ``to_numpy`` imports).

    Raises ``ValueError`` if they are of another type or some are missing.
    """
    (values,) = column.chunks
    if str(values.type) != str(dtype) or values.null_count:
        raise ValueError(f"a column of {values.type}, expected {dtype}")
    data = values.buffers()[1]
    if data is None:
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, len(values), values.offset * dtype.itemsize)


def remember(path: Path, timeline: Timeline, report: LoadReport, folder: Path | None = None) -> None:
    """Store the timeline of ``path``; a folder that cannot be written is no error. Old caches make room."""
    import pyarrow
    from pyarrow import parquet

    folder = folder or cache_folder()
    place = _place(path, folder)
    half = place.with_name(f"{place.name}.{os.getpid()}.tmp")
    try:
        labels = {name: getattr(timeline, name) for name in _LABELS}
        facts = {"key": _key(path), "meta": dict(timeline.meta), "report": report.to_json(), **labels}
        text = msgspec.json.encode(facts)
        types = {name: pyarrow.type_for_alias(str(dtype)) for name, dtype in _DTYPES.items()}
        schema = pyarrow.schema([pyarrow.field(name, kind, nullable=False) for name, kind in types.items()])
        columns = [
            pyarrow.Array.from_buffers(types[name], len(timeline), [None, pyarrow.py_buffer(getattr(timeline, name))])
            for name in COLUMNS
        ]
        folder.mkdir(parents=True, exist_ok=True)
        with parquet.ParquetWriter(half, schema, **_AS_IT_IS) as file:
            file.write_table(pyarrow.Table.from_arrays(columns, schema=schema), max(len(timeline), 1))
            file.add_key_value_metadata({_FACTS: text, _DIGEST: _digest(text)})
        os.replace(half, place)
        _make_room(folder)
    except (OSError, pyarrow.ArrowException, msgspec.EncodeError, UnicodeEncodeError):
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)


def _make_room(folder: Path) -> None:
    """Delete the files that were not used for longest while all together exceed ``MOST_BYTES``."""
    files = sorted(((p.stat().st_mtime_ns, p.stat().st_size, p) for p in folder.iterdir()), reverse=True)
    total = 0
    for _, size, path in files:
        total += size
        if total > MOST_BYTES:
            path.unlink(missing_ok=True)
