"""What views hand out as files: tables as CSV, timelines as Kineto traces."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from dsv4lab.timeline.records import BusySummary, StepRecord
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.trace.export import write_kineto

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_bytes(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """A table as UTF-8 CSV. Texts that a spreadsheet would take for a formula get an apostrophe before them."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([_plain(c) for c in columns])
    writer.writerows([_plain(value) for value in row] for row in rows)
    return text.getvalue().encode()


def _plain(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def steps_csv(steps: Sequence[StepRecord]) -> bytes:
    """Forwards, one a row; times in nanoseconds, busy time by stream."""
    streams = list(dict.fromkeys(name for step in steps for name in step.busy_ns))
    plain = ("step", "mode", "tokens", "requests", "start_ns", "dur_ns", "plan", "hw_queues", "hidden_ns", "free_pages")
    rows = ([*(getattr(s, name) for name in plain), *(s.busy_ns.get(n, 0) for n in streams)] for s in steps)
    return csv_bytes([*plain, *(f"busy_ns_{name}" for name in streams)], rows)


def busy_csv(summary: BusySummary) -> bytes:
    """The busy table of a forward, one stream a row; times in nanoseconds."""
    columns = ("stream", "queue", "role", "busy_ns", "sum_dur_ns", "hidden_ns", "events")
    rows = ([getattr(s, name) for name in columns] + [summary.wall_ns] for s in summary.streams)
    return csv_bytes([*columns, "wall_ns"], rows)


def kineto_bytes(timeline: Timeline) -> bytes:
    """``timeline`` as the JSON text that trace viewers read."""
    out = io.BytesIO()
    write_kineto(timeline, out, "dsv4lab")
    return out.getvalue()
