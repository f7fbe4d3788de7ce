"""A standalone HTML page of one trace."""

from __future__ import annotations

import html
from pathlib import Path

from dsv4lab.errors import TraceError
from dsv4lab.timeline.occupancy import occupancy_bins
from dsv4lab.timeline.timeline import UNKNOWN
from dsv4lab.trace.api import Trace
from dsv4lab.trace.table import Table
from dsv4lab.viz.html import Picture, Text, pictures_page
from dsv4lab.viz.queue_occupancy import queue_occupancy_figure
from dsv4lab.viz.stream_busy import stream_busy_figure
from dsv4lab.viz.timeline_view import timeline_figure

_ROWS = 30
_TEXT = 100


def write_page(trace: Trace, out: Path) -> Path:
    """Write the page; nothing in it is fetched and nothing of the trace is taken for markup."""
    title = trace.path.name if trace.path is not None else "trace"
    blocks: list[Text | Picture] = [
        Picture(timeline_figure(trace), "Rows by stream."),
        Picture(stream_busy_figure(trace.stream_busy()), "Busy, hidden and idle time by stream."),
    ]
    if bool((trace.queue != UNKNOWN).any()):
        blocks.append(Picture(queue_occupancy_figure(occupancy_bins(trace)), "Packets by hardware queue."))
    blocks += [_table(t) for t in (trace.categories(), trace.idle(), trace.steps(), trace.ops()) if len(t)]
    blocks += [Text(f"<p>{html.escape(warning)}</p>") for warning in trace.warnings]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(pictures_page(title, blocks), encoding="utf-8", errors="replace")
    except OSError as error:
        raise TraceError(f"{out}: cannot be written: {error.strerror or error}") from None
    return out


def _table(table: Table) -> Text:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(row[name]))}</td>" for name in table.columns) + "</tr>"
        for row in table[:_ROWS]
    )
    return Text(f"<h2>{html.escape(table.title)}</h2><table><tr>{head}</tr>{rows}</table>")


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"
