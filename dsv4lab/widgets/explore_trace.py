"""The Trace Explorer: a timeline of any size to zoom, search, measure and compare."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from dsv4lab.errors import LabError, UsageError
from dsv4lab.timeline.program import StreamProgram
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.trace.api import Trace, load_trace
from dsv4lab.viz import flows
from dsv4lab.viz import theme as themes
from dsv4lab.widgets import front, wire
from dsv4lab.widgets.base import error_text
from dsv4lab.widgets.trace_export import window_csv
from dsv4lab.widgets.trace_page import trace_page
from dsv4lab.widgets.trace_session import TraceSession
from dsv4lab.widgets.trace_wire import short

_log = logging.getLogger(__name__)
SOURCES = (
    "trace_draw.js",
    "trace_head.js",
    "trace_input.js",
    "trace_select.js",
    "trace_view.js",
    "trace_panels.js",
    "trace_explorer.js",
)
OPTIONS = ("labels", "tracks", "color", "main", "edges", "theme", "height")
LEAST_HEIGHT, MOST_HEIGHT = 240, 2000


class TraceExplorer(anywidget.AnyWidget):
    """One trace, or two beside each other; see :func:`dsv4lab.widgets.trace_explorer`.

    The page asks for what it shows and gets that: slices while they are few, else one number a pixel.
    """

    _esm = front.module(*SOURCES)
    _css = front.style("trace_explorer.css")
    theme = traitlets.Unicode("auto").tag(sync=True)
    palettes = traitlets.Dict().tag(sync=True)
    height = traitlets.Int(480).tag(sync=True)

    def __init__(
        self,
        trace: Any,
        other: Any = None,
        *,
        labels: tuple[str, str] = ("A", "B"),
        tracks: str = "stream",
        color: str = "category",
        main: str | None = None,
        edges: Iterable[tuple[int, int]] | None = None,
        theme: str = "auto",
        height: int = 480,
    ) -> None:
        if type(height) is not int or not LEAST_HEIGHT <= height <= MOST_HEIGHT:
            raise UsageError(f"height={height!r} takes a whole number of pixels in {LEAST_HEIGHT}..{MOST_HEIGHT}")
        if theme != "auto":
            themes.check_theme(theme)
        timelines = [_named(trace, labels[0])] + ([_named(other, labels[1])] if other is not None else [])
        self.session = TraceSession(
            [(label, line) for label, line, _ in timelines], by=tracks, color=color, main=main, edges=edges
        )
        for number, (_, line, program) in enumerate(timelines):
            if program is not None and (number or edges is None):
                self.session.know_waits(number, flows.program_pairs(line, program))
        super().__init__(theme=theme, palettes=front.palettes(), height=height)
        self.on_msg(self._take)

    def save_html(self, path: str | PathLike[str]) -> Path:
        """Write the explorer as one HTML file that needs neither Python nor a network. Raises ``UsageError``.

        It holds the slices themselves: 12 to 20 MB a million before compression, about a third of that in the file.
        """
        target = Path(path)
        try:
            target.write_text(trace_page(self.session, self.theme, self.height), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{target}: cannot be written: {error.strerror or error}") from None
        return target

    def _take(self, _widget: object, message: Mapping[str, Any], _buffers: object) -> None:
        try:
            self._reply(dict(message))
        except Exception as error:  # noqa: BLE001 - shown on the page, to the one who asked
            if not isinstance(error, LabError):
                _log.error("a question of the trace explorer failed", exc_info=error)
            text = short(error_text(error), 500)
            question = message.get("kind")
            self.send({"kind": "failed", "number": message.get("number"), "question": question, "text": text})

    def _reply(self, message: dict[str, Any]) -> None:
        kind = message.get("kind")
        if kind == "tracks":
            self.session.regroup(str(message.get("by")))
        if kind in ("hello", "tracks"):
            self.send(self.session.setup())
        elif kind == "csv":
            self.send({"kind": "file", "name": "window.csv", "type": "text/csv"}, [window_csv(self.session, message)])
        elif kind == "html":
            page = trace_page(self.session, self.theme, self.height).encode()
            self.send({"kind": "file", "name": "trace.html", "type": "text/html"}, [page])
        else:
            buffers: list[bytes] = []
            content = wire.encoded(self.session.answer(message), buffers)
            self.send(content, buffers)

    def __repr__(self) -> str:
        names = ", ".join(f"{s.label}: {len(s.index.timeline):,} rows" for s in self.session.sides)
        return f"<TraceExplorer {names}>"


def _named(source: Any, label: str) -> tuple[str, Timeline, StreamProgram | None]:
    """A timeline from whatever holds one: a timeline, a profile or a simulation with one, or the path of a trace."""
    if isinstance(source, (str, PathLike)):
        source = load_trace(Path(source))
    elif isinstance(source, Sequence):
        source = load_trace([Path(part) for part in source])
    if isinstance(source, Trace) and source.path is not None:
        return f"{label}: {source.path.name}", source, None
    if isinstance(source, Timeline):
        return label, source, None
    line, program = getattr(source, "timeline", None), getattr(source, "program", None)
    if not isinstance(line, Timeline):
        takes = "a Timeline, a path, or what has a .timeline"
        raise UsageError(f"trace_explorer takes {takes}, got {type(source).__name__}")
    return label, line, program if isinstance(program, StreamProgram) else None
