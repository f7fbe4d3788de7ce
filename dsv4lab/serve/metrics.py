"""Counters and histograms of the server, in Prometheus' text format. Used on the event loop only."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "dsv4lab_"


class Histogram:
    """How often a value in seconds was up to each of :data:`SECONDS`."""

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str) -> list[str]:
        """Its series."""
        out, total = [], 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self._counts, strict=True):
            total += count
            out.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*out, f"{name}_sum {self._sum}", f"{name}_count {total}"]


@dataclass(slots=True)
class Metrics:
    """What the server has seen. ``requests`` counts answers by endpoint and status."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    prompt_tokens: int = 0
    generated_tokens: int = 0
    disconnects: int = 0
    slow_readers: int = 0
    worker_deaths: int = 0
    worker_restarts: int = 0
    ttft: Histogram = field(default_factory=Histogram)
    tpot: Histogram = field(default_factory=Histogram)
    e2e: Histogram = field(default_factory=Histogram)

    def text(self, gauges: Mapping[str, Any]) -> str:
        """Everything, with ``gauges`` as they are now."""
        out = _head("http_requests_total", "counter", "Answers by endpoint and status.")
        for (endpoint, status), count in sorted(self.requests.items()):
            out.append(f'{_PREFIX}http_requests_total{{endpoint="{endpoint}",status="{status}"}} {count}')
        for name, value, told in (
            ("prompt_tokens_total", self.prompt_tokens, "Prompt tokens of admitted choices."),
            ("generated_tokens_total", self.generated_tokens, "New tokens of ended choices."),
            ("disconnects_total", self.disconnects, "Requests whose client went away before their end."),
            ("slow_readers_total", self.slow_readers, "Streams cut because their client took nothing."),
            ("worker_deaths_total", self.worker_deaths, "Deaths and stalls of the engine's worker."),
            ("worker_restarts_total", self.worker_restarts, "Workers started after a death."),
        ):
            out += [*_head(name, "counter", told), f"{_PREFIX}{name} {value}"]
        for name, histogram, told in (
            ("ttft_seconds", self.ttft, "From admission to the first new token."),
            ("tpot_seconds", self.tpot, "Mean time of each further token of a choice."),
            ("e2e_seconds", self.e2e, "From admission to the last token of a choice."),
        ):
            out += [*_head(name, "histogram", told), *histogram.lines(_PREFIX + name)]
        for name, value in gauges.items():
            out += [*_head(name, "gauge", "As it is now."), f"{_PREFIX}{name} {value}"]
        return "\n".join(out) + "\n"


def _head(name: str, kind: str, told: str) -> list[str]:
    return [f"# HELP {_PREFIX}{name} {told}", f"# TYPE {_PREFIX}{name} {kind}"]
