"""Live views for notebooks: pictures of ``dsv4lab.viz`` with controls around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsv4lab.engine.client import EngineClient
    from dsv4lab.widgets.overlap_lab import OverlapLab
    from dsv4lab.widgets.trace_explorer import TraceExplorer


def dashboard(client: EngineClient, **options: Any) -> OverlapLab:
    """The Overlap Lab on ``client``: controls, and pictures that follow the engine while it decodes.

    ``options`` are those of :class:`dsv4lab.widgets.overlap_lab.OverlapLab`. Show it by making it the last expression
    of a cell; ``close()`` ends it and leaves the client as it is.
    """
    from dsv4lab.widgets.overlap_lab import OverlapLab

    return OverlapLab(client, **options)


def trace_explorer(trace: Any, other: Any = None, **options: Any) -> TraceExplorer:
    """The Trace Explorer on ``trace``, and on ``other`` beside it: a timeline of any size to zoom, search and compare.

    Either is a :class:`~dsv4lab.timeline.timeline.Timeline` (a loaded trace is one), the path of a trace, or whatever
    holds a timeline as ``.timeline``: a profile, a generated result, a simulation. ``options`` are those of
    :class:`dsv4lab.widgets.trace_explorer.TraceExplorer`: ``labels``, ``tracks`` (``stream``, ``queue``, ``rank``),
    ``color`` (``category``, ``kernel``, ``layer``), ``main``, ``edges`` (waits as pairs of row numbers of the first
    trace), ``theme`` and ``height``. ``save_html(path)`` writes it as one file.
    """
    from dsv4lab.widgets.base import refuse_unknown
    from dsv4lab.widgets.trace_explorer import OPTIONS, TraceExplorer

    refuse_unknown("trace_explorer", set(options) - set(OPTIONS), OPTIONS)
    return TraceExplorer(trace, other, **options)
