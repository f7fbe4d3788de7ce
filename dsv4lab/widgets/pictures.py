"""The pictures of the Overlap Lab and how they follow the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dsv4lab.timeline.records import BusySummary, PoolSnapshot, QueryReads, StepRecord
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.viz.page_layout import page_layout_sheet
from dsv4lab.viz.queue_occupancy import queue_occupancy_sheet
from dsv4lab.viz.sheet import Sheet, empty_sheet
from dsv4lab.viz.stream_busy import stream_busy_sheet
from dsv4lab.viz.timeline_view import timeline_sheet
from dsv4lab.viz.tpot_ribbon import tpot_ribbon_sheet
from dsv4lab.widgets.board import Board
from dsv4lab.widgets.feed import last_forwards

SHOWN_ROWS = 600
MOST_RECTANGLES = 1500
RIBBON, QUEUES, BUSY, LANES, POOL = "ribbon", "queues", "busy", "lanes", "pool"
_CELLS = ((RIBBON, True), (QUEUES, False), (BUSY, False), (LANES, True), (POOL, True))
_IDLE = "nothing ran yet: start decoding"


class Pictures:
    """TPOT ribbon, queue occupancy, stream busy, timeline and pool on one board."""

    def __init__(self, theme: str) -> None:
        self.board = Board(_CELLS, theme)
        self.summary: BusySummary | None = None
        self.pinned: tuple[str, BusySummary] | None = None
        titles = {QUEUES: "Hardware-queue occupancy", BUSY: "Busy time per stream", LANES: "Timeline", POOL: "KV pool"}
        self.board.show({RIBBON: tpot_ribbon_sheet([]), **{n: empty_sheet(t, _IDLE) for n, t in titles.items()}})

    def show_run(self, steps: Sequence[StepRecord], latest: Timeline | None, label: str) -> None:
        """Follow the forwards: ``steps`` as the ribbon, the last few of ``latest`` as queues, busy bars and lanes.

        ``label`` names the settings in force.
        """
        sheets = {RIBBON: tpot_ribbon_sheet(steps)}
        if latest is not None:
            shown = last_forwards(latest, SHOWN_ROWS)
            self.summary = per_forward(shown.stream_busy(), len(np.unique(shown.step)))
            sheets[QUEUES] = queue_occupancy_sheet(shown.queue_occupancy())
            sheets[BUSY] = self._busy(self.summary, label)
            sheets[LANES] = timeline_sheet(shown, most_slices=MOST_RECTANGLES)
        self.board.show(sheets)

    def pin(self, on: bool, label: str) -> None:
        """Keep the busy bars of now beside those to come, or drop them again."""
        self.pinned = (label, self.summary) if on and self.summary is not None else None
        if self.summary is not None:
            self.board.show({BUSY: self._busy(self.summary, label)})

    def _busy(self, summary: BusySummary, label: str) -> Sheet:
        if self.pinned is None:
            return stream_busy_sheet(summary, note="per forward")
        name, before = self.pinned
        return stream_busy_sheet({f"pinned, {name}": before, f"now, {label}": summary}, note="per forward")

    def show_pool(self, snapshot: PoolSnapshot, reads: QueryReads | None) -> None:
        """Draw the pool, with the rows that a query reads."""
        self.board.show({POOL: page_layout_sheet(snapshot, reads)})


def per_forward(summary: BusySummary, forwards: int) -> BusySummary:
    """The mean of ``forwards`` forwards, so that records of different length can stand beside each other."""
    parts = ("busy_ns", "sum_dur_ns", "hidden_ns")
    streams = tuple(replace(s, **{part: getattr(s, part) // forwards for part in parts}) for s in summary.streams)
    return replace(
        summary,
        wall_ns=summary.wall_ns // forwards,
        union_busy_ns=summary.union_busy_ns // forwards,
        sum_busy_ns=summary.sum_busy_ns // forwards,
        sum_dur_ns=summary.sum_dur_ns // forwards,
        hidden_ns=summary.hidden_ns // forwards,
        streams=streams,
    )
