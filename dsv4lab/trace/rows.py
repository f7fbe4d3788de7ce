"""A timeline as rows of plain values: CSV and Parquet."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dsv4lab.errors import TraceError
from dsv4lab.timeline.timeline import UNKNOWN, Kind, Timeline

_NUMBERS = ("start_ns", "dur_ns", "queued_ns", "correlation", "step", "layer", "rank")
_LABELLED = (("name", "names"), ("stream", "streams"), ("queue", "queues"), ("op", "names"))
FIELDS = (*_NUMBERS, "kind", *(column for column, _ in _LABELLED))
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_AT_ONCE = 50_000


def tidy_columns(timeline: Timeline, part: slice) -> dict[str, list[Any]]:
    """The rows in ``part`` as lists: numbers as they are, ids as their labels, ``None`` where not known."""
    out: dict[str, list[Any]] = {}
    for name in _NUMBERS:
        values = getattr(timeline, name)[part].tolist()
        missing = name not in ("start_ns", "dur_ns", "rank")
        out[name] = [None if missing and v == UNKNOWN else v for v in values]
    out["kind"] = [Kind(k).name.lower() for k in timeline.kind[part].tolist()]
    for column, labels in _LABELLED:
        table = [*getattr(timeline, labels), None]
        out[column] = [table[i] for i in getattr(timeline, column)[part].tolist()]
    return out


def _parts(timeline: Timeline) -> Iterator[dict[str, list[Any]]]:
    for first in range(0, max(len(timeline), 1), _AT_ONCE):
        yield tidy_columns(timeline, slice(first, first + _AT_ONCE))


def export_csv(timeline: Timeline, path: Path) -> Path:
    """Write one line a row; text that a spreadsheet would run as a formula gets a leading quote.

    Raises ``TraceError`` if the file cannot be written.
    """
    half = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with half.open("w", encoding="utf-8", errors="replace", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(FIELDS)
            for part in _parts(timeline):
                columns = [_harmless(part[name]) if name not in _NUMBERS else part[name] for name in FIELDS]
                writer.writerows(zip(*columns, strict=True))
        os.replace(half, path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def _harmless(values: list[Any]) -> list[Any]:
    return [f"'{v}" if isinstance(v, str) and v.startswith(_FORMULA) else v for v in values]


def export_parquet(timeline: Timeline, path: Path) -> Path:
    """Write a Parquet file. Raises ``TraceError`` if it cannot be written."""
    import pyarrow as arrow
    from pyarrow import parquet

    columns: dict[str, Any] = {}
    for name in _NUMBERS:
        values = getattr(timeline, name)
        keep = np.zeros(len(values), np.bool_) if name in ("start_ns", "dur_ns", "rank") else values == UNKNOWN
        columns[name] = arrow.array(values, mask=keep)
    kinds = arrow.array([kind.name.lower() for kind in Kind])
    columns["kind"] = arrow.DictionaryArray.from_arrays(arrow.array(timeline.kind.astype(np.int32)), kinds)
    for column, labels in _LABELLED:
        ids = getattr(timeline, column)
        index = arrow.array(np.maximum(ids, 0), mask=ids == UNKNOWN)
        texts = [text.encode("utf-8", "replace").decode() for text in getattr(timeline, labels)] or [""]
        columns[column] = arrow.DictionaryArray.from_arrays(index, arrow.array(texts))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(arrow.table({name: columns[name] for name in FIELDS}), path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error}") from None
    return path
