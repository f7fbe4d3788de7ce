"""What a client told of its forwards lately, kept for the pictures."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from dsv4lab.timeline.records import StepRecord
from dsv4lab.timeline.timeline import Timeline

KEEP_S = 40.0
MOST_STEPS = 20_000
RATE_S = 2.0


class Feed:
    """Takes what ``EngineClient.on_step`` gives, from any thread, and calls ``changed`` each time."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._steps: deque[StepRecord] = deque(maxlen=MOST_STEPS)
        self._latest: Timeline | None = None

    def take(self, records: tuple[StepRecord, ...], recent: Timeline) -> None:
        """Keep these forwards and the timeline of the latest of them."""
        with self._lock:
            self._steps.extend(records)
            while self._steps and self._steps[-1].start_ns - self._steps[0].start_ns > KEEP_S * 1e9:
                self._steps.popleft()
            if len(recent):
                self._latest = recent
        self._changed()

    def steps(self) -> list[StepRecord]:
        """The forwards of the last 40 seconds, oldest first."""
        with self._lock:
            return list(self._steps)

    def latest(self) -> Timeline | None:
        """The latest timeline, None before the first forward."""
        with self._lock:
            return self._latest


def last_forwards(timeline: Timeline, most_rows: int) -> Timeline:
    """The last forwards of ``timeline``, at least one, with together at most ``most_rows`` rows."""
    numbers, counts = np.unique(timeline.step, return_counts=True)
    fits = np.cumsum(counts[::-1]) <= most_rows
    return timeline.select(timeline.step >= numbers[-max(1, int(fits.sum()))])


def tokens_per_s(steps: list[StepRecord]) -> float:
    """New tokens per second over the last two seconds of decode forwards; 0.0 without any."""
    if not steps:
        return 0.0
    end = steps[-1].start_ns + steps[-1].dur_ns
    lately = [s for s in steps[-2000:] if s.start_ns >= end - RATE_S * 1e9]
    span_ns = end - lately[0].start_ns if lately else 0
    return sum(s.tokens for s in lately if s.mode == "decode") * 1e9 / span_ns if span_ns else 0.0
