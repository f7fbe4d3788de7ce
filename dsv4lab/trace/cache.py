"""Loaded timelines remembered on disk, so that a large trace opens at once the second time.

One file a trace in the user's cache folder, named by a hash of the trace's path: a JSON head with labels and load
report, then the columns as they are in memory, mapped on reading. It counts only while size, time of change and reader
version are those it was made from.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dsv4lab.timeline.timeline import COLUMNS, Timeline
from dsv4lab.trace.load.report import LoadReport

READER = 1
"""Raise when a loader would give another timeline for the same file."""
SMALLEST = 4 << 20
MOST_BYTES = 4 << 30
_MAGIC = b"dsv4lab trace\n"
_MOST_HEAD = 1 << 30
_DTYPES = {name: values.dtype for name, values in ((c, getattr(Timeline.empty(), c)) for c in COLUMNS)}
_LABELS = ("names", "streams", "queues", "main_stream", "warnings")


def cache_folder() -> Path:
    """Where caches go."""
    return Path.home() / ".cache" / "dsv4lab" / "traces"


def is_worth_it(path: Path) -> bool:
    """Whether ``path`` is large enough to be remembered."""
    return path.stat().st_size >= SMALLEST


def _place(path: Path, folder: Path) -> Path:
    digest = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return folder / f"{digest[:32]}.columns"


def _key(path: Path) -> list[int]:
    stat = path.stat()
    return [READER, stat.st_size, stat.st_mtime_ns]


def recall(path: Path, folder: Path | None = None) -> tuple[Timeline, LoadReport] | None:
    """The remembered timeline of ``path``; ``None`` if there is none or it is stale or damaged.

    Its columns are read-only.
    """
    place = _place(path, folder or cache_folder())
    try:
        with place.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return None
            size = int.from_bytes(file.read(8), "little")
            facts = msgspec.json.decode(file.read(min(size, _MOST_HEAD)))
        if facts["key"] != _key(path):
            return None
        columns = _map_columns(place, _aligned(len(_MAGIC) + 8 + size), facts["rows"])
        os.utime(place)
        report = LoadReport.from_json({**facts["report"], "cached": True})
        timeline = Timeline.build(**columns, meta=facts["meta"], **{name: facts[name] for name in _LABELS})
        timeline.check()
    except (OSError, ValueError, KeyError, TypeError, msgspec.DecodeError):
        return None
    return timeline, report


def _map_columns(place: Path, offset: int, rows: int) -> dict[str, Any]:
    """Raises ``ValueError`` if the file is not exactly as long as its columns."""
    out: dict[str, Any] = {}
    for name, dtype in _DTYPES.items():
        length = rows * np.dtype(dtype).itemsize
        out[name] = np.memmap(place, dtype, "r", offset, rows).view(np.ndarray) if rows else np.empty(0, dtype)
        offset = _aligned(offset + length)
    if place.stat().st_size != offset:
        raise ValueError("cache of another length")
    return out


def _aligned(offset: int) -> int:
    return -(-offset // 64) * 64


def remember(path: Path, timeline: Timeline, report: LoadReport, folder: Path | None = None) -> None:
    """Store the timeline of ``path``; a folder that cannot be written is no error. Old caches make room."""
    folder = folder or cache_folder()
    place = _place(path, folder)
    half = place.with_name(f"{place.name}.{os.getpid()}.tmp")
    facts = {
        "key": _key(path),
        "rows": len(timeline),
        "meta": dict(timeline.meta),
        "report": report.to_json(),
        **{name: getattr(timeline, name) for name in _LABELS},
    }
    try:
        head = msgspec.json.encode(facts)
        folder.mkdir(parents=True, exist_ok=True)
        with half.open("wb") as file:
            file.write(_MAGIC + len(head).to_bytes(8, "little") + head)
            for name, dtype in _DTYPES.items():
                file.write(bytes(_aligned(file.tell()) - file.tell()))
                file.write(np.ascontiguousarray(getattr(timeline, name), dtype).data)
            file.write(bytes(_aligned(file.tell()) - file.tell()))
        os.replace(half, place)
        _make_room(folder)
    except (OSError, msgspec.EncodeError, UnicodeEncodeError):
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)


def _make_room(folder: Path) -> None:
    """Delete the caches that were not used for longest while all together exceed ``MOST_BYTES``."""
    files = sorted(((p.stat().st_mtime_ns, p.stat().st_size, p) for p in folder.glob("*.columns")), reverse=True)
    total = 0
    for _, size, path in files:
        total += size
        if total > MOST_BYTES:
            path.unlink(missing_ok=True)
