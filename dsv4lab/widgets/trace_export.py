"""The window of the trace explorer as CSV."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dsv4lab.trace.rows import export_csv
from dsv4lab.widgets.trace_session import TraceSession
from dsv4lab.widgets.trace_side import Side, moments


def window_csv(session: TraceSession, message: dict[str, Any]) -> bytes:
    """Every row that touches the window, with the columns of :func:`dsv4lab.trace.rows.export_csv`.

    ``trace`` in front is the label of the side. Times are those of each trace's own clock.
    """
    start, end = moments(message)
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    for number, side in enumerate(session.sides):
        rows = csv.reader(io.StringIO(_rows(side, start, end), newline=""))
        head = next(rows)
        if not number:
            writer.writerow(["trace", *head])
        label = side.label.partition(":")[0]
        writer.writerows([label, *row] for row in rows)
    return out.getvalue().encode("utf-8", "replace")


def _rows(side: Side, start: int, end: int) -> str:
    line = side.index.timeline
    inside = (line.start_ns < end + side.origin_ns) & (line.end_ns >= start + side.origin_ns)
    with tempfile.TemporaryDirectory() as folder:
        path = export_csv(line.select(np.flatnonzero(inside)), Path(folder) / "rows.csv")
        return path.read_text(encoding="utf-8")
