"""Live views for notebooks: pictures of ``dsv4lab.viz`` with controls around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsv4lab.engine.client import EngineClient
    from dsv4lab.widgets.explore_pool import PoolExplorer
    from dsv4lab.widgets.explore_trace import TraceExplorer
    from dsv4lab.widgets.overlap_lab import OverlapLab
    from dsv4lab.widgets.simulate_queues import QueueLab
    from dsv4lab.widgets.watch_tuning import TuningBoard


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
    :class:`dsv4lab.widgets.explore_trace.TraceExplorer`: ``labels``, ``tracks`` (``stream``, ``queue``, ``rank``),
    ``color`` (``category``, ``kernel``, ``layer``), ``main``, ``edges`` (waits as pairs of row numbers of the first
    trace), ``theme`` and ``height``. ``save_html(path)`` writes it as one file.
    """
    from dsv4lab.widgets.base import refuse_unknown
    from dsv4lab.widgets.explore_trace import OPTIONS, TraceExplorer

    refuse_unknown("trace_explorer", set(options) - set(OPTIONS), OPTIONS)
    return TraceExplorer(trace, other, **options)


def pool_explorer(source: Any, **options: Any) -> PoolExplorer:
    """The Pool Explorer on a client, on a :class:`~dsv4lab.timeline.records.PoolSnapshot`, or on a list of them.

    The whole pool, one request and single rows beneath each other; who holds what, how full and how old it is, and
    which rows a query token reads in each layer kind. With a client it can follow the engine and ask what the next
    forward really reads. ``options``: ``theme``. ``save_html(path)`` writes it as one file.
    """
    from dsv4lab.widgets.base import refuse_unknown
    from dsv4lab.widgets.explore_pool import OPTIONS, PoolExplorer

    refuse_unknown("pool_explorer", set(options) - set(OPTIONS), OPTIONS)
    return PoolExplorer(source, **options)


def queue_lab(**options: Any) -> QueueLab:
    """The Queue Lab: the queue model with sliders, and packets that move through hardware queues step by step.

    ``options`` are the fields of :class:`dsv4lab.predict.setting.Setting` that it starts with (``device``, ``runtime``,
    ``plan``, ``hw_queues``, ...), ``scene``, ``plans`` and ``theme``. ``save_html(path)`` writes it as one file.
    """
    from dsv4lab.widgets.simulate_queues import QueueLab

    return QueueLab(**options)


def tuning_board(session: Any, **options: Any) -> TuningBoard:
    """The Tuning Board on a session of ``dsv4lab tune``: its folder (running or finished), or its result.

    Choosing a row marks it in every picture, shows its launch flags and offers to measure it again. ``options``:
    ``theme``. ``save_html(path)`` writes it as one file.
    """
    from dsv4lab.widgets.watch_tuning import TuningBoard

    return TuningBoard(session, **options)
