"""The pictures of the Overlap Lab and how they follow the records."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsv4lab.queues.sensitivity import Lean
from dsv4lab.timeline.records import BusySummary, PoolSnapshot, QueryReads, StepRecord
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.viz.acceptance import acceptance_sheet
from dsv4lab.viz.page_layout import page_layout_sheet
from dsv4lab.viz.predicted import Predicted, predicted_sheet
from dsv4lab.viz.queue_occupancy import queue_occupancy_sheet
from dsv4lab.viz.sensitivity import sensitivity_sheet
from dsv4lab.viz.sheet import Sheet, empty_sheet
from dsv4lab.viz.stream_busy import stream_busy_sheet
from dsv4lab.viz.timeline_view import timeline_sheet
from dsv4lab.viz.tpot_ribbon import tpot_ribbon_sheet
from dsv4lab.widgets.board import Board
from dsv4lab.widgets.feed import last_forwards

SHOWN_ROWS = 300
LANES_PERIOD_S = 0.4  # the timeline takes longest to draw, and to read
MOST_RECTANGLES = 1500
LATELY = 64
RIBBON, QUEUES, BUSY, LANES, POOL, ACCEPTED = "ribbon", "queues", "busy", "lanes", "pool", "accepted"
_CELLS = ((RIBBON, True), (QUEUES, False), (BUSY, False), (LANES, True))
_TITLES = {QUEUES: "Hardware-queue occupancy", BUSY: "Busy time per stream", LANES: "Timeline", POOL: "KV pool"}
_IDLE = "nothing ran yet: start decoding"


@dataclass(frozen=True, slots=True)
class Pinned:
    """A baseline: its settings, busy table and TPOT (None where it is not known)."""

    label: str
    summary: BusySummary
    tpot_ms: float | None


class Pictures:
    """TPOT, queue occupancy, stream busy, timeline, pool and accepted drafts on one board."""

    def __init__(self, theme: str, *, speculates: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lanes_at = float("-inf")
        self.speculates = speculates
        last = [(ACCEPTED, False), (POOL, False)] if speculates else [(POOL, True)]
        self.board = Board((*_CELLS, *last), theme)
        self.summary: BusySummary | None = None
        self.tpot_ms: float | None = None
        self.pinned: Pinned | None = None
        self.clear()

    def clear(self) -> None:
        """Forget what was drawn, but for what is pinned."""
        self.summary = self.tpot_ms = None
        self._lanes_at = float("-inf")
        sheets = {RIBBON: tpot_ribbon_sheet([]), **{n: empty_sheet(t, _IDLE) for n, t in _TITLES.items()}}
        self.board.show(sheets | ({ACCEPTED: acceptance_sheet((), 0.0, 0)} if self.speculates else {}))

    def show_run(self, steps: Sequence[StepRecord], latest: Timeline | None, label: str) -> None:
        """Follow the forwards: ``steps`` as the ribbon, the last few of ``latest`` as queues, busy bars and lanes.

        ``label`` names the settings in force.
        """
        sheets: dict[str, Sheet] = {RIBBON: tpot_ribbon_sheet(steps)}
        lately = [s.dur_ns for s in steps[-LATELY:] if s.mode == "decode"]
        self.tpot_ms = statistics.median(lately) / 1e6 if lately else None
        if latest is not None:
            shown = last_forwards(latest, SHOWN_ROWS)
            lanes = self._clock() - self._lanes_at >= LANES_PERIOD_S
            self._lanes_at = self._clock() if lanes else self._lanes_at
            sheets |= self._run_sheets(shown, len(np.unique(shown.step)), label, lanes=lanes)
        self.board.show(sheets)

    def show_simulated(self, timeline: Timeline, points: Sequence[Predicted], label: str) -> None:
        """Show one simulated step, and the predictions so far."""
        self.tpot_ms = points[-1].tpot_ms if points else None
        self.board.show(self._run_sheets(timeline, 1, label, lanes=True) | {RIBBON: predicted_sheet(points)})

    def _run_sheets(self, shown: Timeline, forwards: int, label: str, *, lanes: bool) -> dict[str, Sheet]:
        self.summary = per_forward(shown.stream_busy(), forwards)
        sheets = {QUEUES: queue_occupancy_sheet(shown.queue_occupancy()), BUSY: self._busy(self.summary, label)}
        if lanes:
            sheets[LANES] = timeline_sheet(shown, most_slices=MOST_RECTANGLES)
        return sheets

    def show_predicted(self, points: Sequence[Predicted]) -> None:
        """Show the predictions so far."""
        self.tpot_ms = points[-1].tpot_ms if points else None
        self.board.show({RIBBON: predicted_sheet(points)})

    def show_leans(self, leans: Sequence[Lean], gain: float) -> None:
        """Show what a prediction leans on in the pool's place: a simulated engine has no pool."""
        self.board.show({POOL: sensitivity_sheet(leans, gain)})

    def pin(self, on: bool, label: str) -> None:
        """Keep the figures of now beside those to come, or drop them again."""
        self.pinned = Pinned(label, self.summary, self.tpot_ms) if on and self.summary is not None else None
        if self.summary is not None:
            self.board.show({BUSY: self._busy(self.summary, label)})

    def against_pin(self) -> str:
        """How forwards compare with the pinned baseline, in words; empty without one."""
        if self.pinned is None or not self.pinned.tpot_ms or not self.tpot_ms:
            return ""
        change = 100 * (self.tpot_ms / self.pinned.tpot_ms - 1)
        return f" \N{MIDDLE DOT} {self.tpot_ms:.2f} ms, {change:+.1f} % against the pinned {self.pinned.tpot_ms:.2f} ms"

    def _busy(self, summary: BusySummary, label: str) -> Sheet:
        if self.pinned is None:
            return stream_busy_sheet(summary, note="per forward")
        before = self.pinned
        both = {f"pinned, {before.label}": before.summary, f"now, {label}": summary}
        return stream_busy_sheet(both, note="per forward")

    def show_pool(self, snapshot: PoolSnapshot, reads: QueryReads | None) -> None:
        """Draw the pool, with the rows that a query reads."""
        self.board.show({POOL: page_layout_sheet(snapshot, reads)})

    def show_acceptance(self, speculation: Mapping[str, Any]) -> None:
        """Draw what is accepted of drafts; ``speculation`` as in the client's status."""
        rates, mean, steps = (speculation[k] for k in ("rate_by_place", "accepted_per_step", "steps"))
        self.board.show({ACCEPTED: acceptance_sheet(rates, mean, steps)})


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
