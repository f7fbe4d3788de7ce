"""What ``lab.load_trace`` gives: a trace that also draws itself. Plotly is imported for the first figure only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4lab.timeline.timeline import Timeline
from dsv4lab.trace.api import Trace
from dsv4lab.trace.load import Progress, Where, load_any

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True, eq=False, repr=False)
class LoadedTrace(Trace):
    """A :class:`Trace` with a figure beside each of its tables. ``theme`` is ``"light"`` or ``"dark"``."""

    def timeline_figure(
        self, lanes: str = "stream", window_ns: tuple[int, int] | None = None, *, theme: str = "light"
    ) -> go.Figure:
        """Rows by ``"stream"`` or ``"queue"``; a large trace as occupancy."""
        from dsv4lab.viz.timeline_view import timeline_figure

        return timeline_figure(self, lanes=lanes, window_ns=window_ns, theme=theme)

    def stream_busy_figure(self, main: str | None = None, *, theme: str = "light") -> go.Figure:
        """Busy, hidden and idle time of every stream."""
        from dsv4lab.viz.stream_busy import stream_busy_figure

        return stream_busy_figure(self.stream_busy(main), theme=theme)

    def queue_occupancy_figure(self, *, theme: str = "light") -> go.Figure:
        """Packets waiting and running in every hardware queue."""
        from dsv4lab.viz.queue_occupancy import queue_occupancy_figure

        return queue_occupancy_figure(self.queue_occupancy(), theme=theme)

    def steps_figure(self, main: str | None = None, *, theme: str = "light") -> go.Figure:
        """Main, exposed side and idle time of every step."""
        from dsv4lab.trace.analyse.steps import step_times
        from dsv4lab.viz.trace_figures import steps_figure

        return steps_figure(step_times(self, main=main), theme=theme)

    def idle_figure(self, *, theme: str = "light") -> go.Figure:
        """Idle time by cause."""
        from dsv4lab.trace.analyse.idle import idle_causes
        from dsv4lab.viz.trace_figures import idle_figure

        return idle_figure(idle_causes(self), theme=theme)

    def compare_figure(
        self, other: Timeline, labels: tuple[str, str] = ("A", "B"), main: str | None = None, *, theme: str = "light"
    ) -> go.Figure:
        """How this trace's wall becomes ``other``'s."""
        from dsv4lab.viz.trace_figures import waterfall_figure

        return waterfall_figure(self.compare(other, labels, main), theme=theme)


def load_trace(path: Where, *, progress: Progress | None = None, align: bool = True, cache: bool = True) -> LoadedTrace:
    """Load a trace: a file of any known format, or several files, a directory or a glob of ranks.

    As :func:`dsv4lab.trace.api.load_trace`, and the result draws itself.

    Raises ``TraceError`` if nothing can be loaded.
    """
    timeline, report = load_any(path, progress, align=align, cache=cache)
    return LoadedTrace.of(timeline, Path(path).expanduser() if isinstance(path, str | Path) else None, report)
