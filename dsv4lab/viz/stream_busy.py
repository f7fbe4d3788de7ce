"""Per-stream busy time: main against side, with hidden, exposed and idle shares."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from dsv4lab.timeline.records import BusySummary, StreamBusy
from dsv4lab.viz import theme as themes
from dsv4lab.viz.axes import TimeUnit, plural, time_unit
from dsv4lab.viz.sheet import Heading, Sheet, empty_sheet

MOST_STREAMS = 12
TITLE = "Busy time per stream"
EXPOSED = "exposed side work"
QUEUE = "queue"
_DIGITS = re.compile(r"([0-9]+)")
_HATCH = {"shape": "/", "size": 6, "solidity": 0.45, "fgcolor": "rgba(255,255,255,0.75)"}


def stream_busy_figure(summary: BusySummary | Mapping[str, BusySummary], *, theme: str = "light") -> go.Figure:
    """Draw each stream's busy and idle time within the wall time.

    Side streams show the part hidden under main (solid) and the part that is exposed (hatched). A mapping of labels to
    summaries, such as ``{"off": before, "hip": after}``, draws one panel each on a common time axis. The 12 busiest
    streams of a summary are drawn. A summary that knows hardware queues only is drawn by queue.
    """
    return stream_busy_sheet(summary).figure(theme)


def stream_busy_sheet(summary: BusySummary | Mapping[str, BusySummary], *, note: str = "") -> Sheet:
    """The picture of :func:`stream_busy_figure` as plain data; ``note`` is added to the subtitle."""
    summaries = dict(summary) if isinstance(summary, Mapping) else {"": summary}
    drawn = {label: one for label, one in summaries.items() if one.streams or one.queues}
    if not drawn:
        return empty_sheet(TITLE, "no stream has busy time")
    wall = max(s.wall_ns for s in drawn.values())
    unit = time_unit(wall)
    shown = [_shown(one) for one in drawn.values()]
    titles = [_panel_title(label, one, unit) for label, one in drawn.items()]
    several = len(titles) > 1
    said = ["within the wall time of each run"] if several else titles
    head = Heading(
        TITLE,
        " \N{MIDDLE DOT} ".join([*said, *_left_out(drawn), *([note] if note else [])]),
        legend=True,
        panels=several,
    )
    heights = [34 * len(streams) for streams in shown]
    sheet = Sheet(head, heights, gap=40, titles=titles if several else (), shared_x=True)
    for panel, (one, streams) in enumerate(zip(drawn.values(), shown, strict=True)):
        _add_bars(sheet, one, streams, unit, panel)
        sheet.x_axis(panel, range=[0, wall / unit.ns * 1.005])
    swatch = {"color": themes.GREY, "pattern": _HATCH | {"bgcolor": themes.GREY}, "line": {"width": 0}}
    sheet.add("bar", x=[None], y=[None], orientation="h", name=EXPOSED, legendgroup=EXPOSED, marker=swatch)
    sheet.x_axis(len(heights) - 1, title={"text": f"time ({unit.name})"})
    sheet.layout["barmode"] = "stack"
    return sheet


def busy_headline(summary: BusySummary) -> str:
    """``main 1.2 ms + side 0.3 ms at 1.25x on 1.6 ms wall``."""
    unit = time_unit(summary.wall_ns)
    return (
        f"main {unit.text(summary.main_busy_ns)} + side {unit.text(summary.side_busy_ns)}"
        f" at {summary.concurrency:.3f}\N{MULTIPLICATION SIGN} on {unit.text(summary.wall_ns)} wall"
    )


def _panel_title(label: str, summary: BusySummary, unit: TimeUnit) -> str:
    main, side, wall = (f"{v / unit.ns:,.1f}" for v in (summary.main_busy_ns, summary.side_busy_ns, summary.wall_ns))
    head = f"<b>{themes.text(label, 40)}</b>: " if label else ""
    ratio = f"{summary.concurrency:.3f}\N{MULTIPLICATION SIGN}"
    if not summary.side_busy_ns:
        return f"{head}main {main} {unit.name} at {ratio} on {wall} {unit.name} wall"
    hidden = _percent(summary.hidden_ns, summary.side_busy_ns)
    return f"{head}main {main} + side {side} {unit.name} at {ratio} on {wall} {unit.name} wall, {hidden} hidden"


def _shown(summary: BusySummary) -> list[StreamBusy]:
    """The busiest streams, main first and the others by name, so that they keep their places from one to the next."""
    if not summary.streams:
        queues = [StreamBusy(q.queue, None, QUEUE, q.busy_ns, q.sum_dur_ns, 0, q.events) for q in summary.queues]
        return queues[:MOST_STREAMS]
    busiest = sorted(summary.streams, key=lambda s: (s.role != "main", -s.busy_ns))[:MOST_STREAMS]
    return sorted(busiest, key=lambda s: (s.role != "main", _natural(s.stream)))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in _DIGITS.split(name)]


def _left_out(drawn: Mapping[str, BusySummary]) -> list[str]:
    quiet = max(len(s.streams or s.queues) for s in drawn.values()) - MOST_STREAMS
    return [f"{quiet} quieter streams are not drawn"] if quiet > 0 else []


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def _add_bars(sheet: Sheet, summary: BusySummary, streams: list[StreamBusy], unit: TimeUnit, panel: int) -> None:
    colors = [themes.stream_color("main" if s.role == "main" else s.stream, n) for n, s in enumerate(streams)]
    covered = [s.hidden_ns if s.role == "side" else s.busy_ns for s in streams]
    exposed = [s.busy_ns - s.hidden_ns if s.role == "side" else 0 for s in streams]
    idle = [max(0, summary.wall_ns - s.busy_ns) for s in streams]
    hover = [_hover(s, summary, unit) for s in streams]
    labels = [
        f"{n} {themes.text(s.stream, 22)}" if _ambiguous(streams) else themes.text(s.stream, 24)
        for n, s in enumerate(streams)
    ]
    parts: tuple[tuple[str, list[int], Any, dict[str, Any]], ...] = (
        ("busy, or hidden under main", covered, colors, {}),
        (EXPOSED, exposed, colors, _HATCH),
        ("idle", idle, themes.IDLE, {}),
    )
    for name, values, color, pattern in parts:
        sheet.add(
            "bar",
            panel,
            x=unit.scale(values),
            y=labels,
            orientation="h",
            name=name,
            legendgroup=name,
            showlegend=panel == 0 and name != EXPOSED,
            marker={"color": color, "pattern": pattern, "line": {"width": 0}},
            text=hover,
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
        )
    sheet.y_axis(panel, range=[len(labels) - 0.5, -0.5], showgrid=False, type="category")


def _ambiguous(streams: list[StreamBusy]) -> bool:
    return len({themes.text(s.stream, 24) for s in streams}) < len(streams)


def _hover(stream: StreamBusy, summary: BusySummary, unit: TimeUnit) -> str:
    queue = f" on queue {themes.text(stream.queue, 40)}" if stream.queue else ""
    share = _percent(stream.busy_ns, summary.wall_ns)
    lines = [
        f"<b>{themes.text(stream.stream, 60)}</b> ({themes.text(stream.role)}){queue}",
        f"busy {unit.text(stream.busy_ns)}, {share} of wall; {plural(stream.events, 'slice')}",
    ]
    if stream.role == "side":
        hidden = f"hidden under main {unit.text(stream.hidden_ns)} ({_percent(stream.hidden_ns, stream.busy_ns)})"
        lines.append(f"{hidden}, exposed {unit.text(stream.busy_ns - stream.hidden_ns)}")
    lines.append(f"idle {unit.text(max(0, summary.wall_ns - stream.busy_ns))}")
    return "<br>".join(lines)
