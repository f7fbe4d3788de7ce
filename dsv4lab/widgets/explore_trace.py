"""The Trace Explorer: a timeline of any size to zoom, search, measure and compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import traitlets

from dsv4lab.errors import UsageError
from dsv4lab.timeline.program import StreamProgram
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.trace.api import Trace, load_trace
from dsv4lab.viz import flows
from dsv4lab.widgets import front
from dsv4lab.widgets.explorer import Explorer
from dsv4lab.widgets.trace_export import window_csv
from dsv4lab.widgets.trace_page import SOURCES, STYLES, trace_page
from dsv4lab.widgets.trace_session import TraceSession

OPTIONS = ("labels", "tracks", "color", "main", "edges", "theme", "height")
LEAST_HEIGHT, MOST_HEIGHT = 240, 2000


class TraceExplorer(Explorer):
    """One trace, or two beside each other; see :func:`dsv4lab.widgets.trace_explorer`.

    The page asks for what it shows and gets that: slices while they are few, else one number a pixel.
    """

    _esm = front.module(*SOURCES)
    _css = front.style(*STYLES)
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
        timelines = [_named(trace, labels[0])] + ([_named(other, labels[1])] if other is not None else [])
        self.session = TraceSession(
            [(label, line) for label, line, _ in timelines], by=tracks, color=color, main=main, edges=edges
        )
        for number, (_, line, program) in enumerate(timelines):
            if program is not None and (number or edges is None):
                self.session.know_waits(number, flows.program_pairs(line, program))
        super().__init__(theme=theme, height=height)

    def page(self) -> bytes:
        """See :meth:`Explorer.page`: with all slices."""
        return trace_page(self.session, self.theme, self.height).encode()

    def reply(self, message: dict[str, Any]) -> None:
        """See :meth:`Explorer.reply`."""
        kind = message.get("kind")
        if kind == "tracks":
            self.session.regroup(str(message.get("by")))
        if kind in ("hello", "tracks"):
            self.send(self.session.setup())
        elif kind == "csv":
            self.send({"kind": "file", "name": "window.csv", "type": "text/csv"}, [window_csv(self.session, message)])
        elif kind == "html":
            self.send_page("trace.html")
        else:
            self.send_content(self.session.answer(message))

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
