"""What a window of a trace looks like: the records that :class:`dsv4lab.viz.trace_index.TraceIndex` gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.intervals import Ints
from dsv4lab.viz.spans import SpanIndex


@dataclass(frozen=True, eq=False, slots=True)
class Cells:
    """Tracks with too many slices to draw, column by column: each array is ``[tracks, columns]``.

    ``share`` (of the column, 0 to 255; above 0 wherever there is anything), ``tone`` (that with most time in the column
    and its neighbour: columns 0 and 1, 2 and 3, ... have one),
    ``count`` (slices that begin in the column), ``marked`` and ``path`` (whether some of it is among the found rows, or
    on the critical path).
    """

    tracks: tuple[int, ...]
    share: NDArray[np.uint8]
    tone: NDArray[np.uint8]
    count: NDArray[np.int32]
    marked: NDArray[np.uint8]
    path: NDArray[np.uint8]


@dataclass(frozen=True, eq=False, slots=True)
class Slices:
    """Single slices: ``row`` of the timeline, ``sub`` the line in its track; ``flags`` are 1 found, 2 on the path."""

    row: NDArray[np.int32]
    track: NDArray[np.int16]
    sub: NDArray[np.uint8]
    tone: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    name: NDArray[np.int32]
    start_ns: Ints
    end_ns: Ints


@dataclass(frozen=True, eq=False, slots=True)
class Window:
    """What ``[edges_ns[0], edges_ns[-1])`` looks like.

    ``running`` is the mean number of device tracks that are busy, ``busy`` the share of the column in which any is:
    ``float32 [columns]`` each.
    """

    edges_ns: Ints
    cells: Cells
    slices: Slices
    running: NDArray[np.float32]
    busy: NDArray[np.float32]


@dataclass(frozen=True, eq=False, slots=True)
class Marks:
    """A set of rows: by row, and by track and time."""

    rows: NDArray[np.bool_]
    spans: SpanIndex
