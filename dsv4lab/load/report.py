"""From arrival times to TTFT, TPOT, ITL and throughput, defined as by ``vllm bench serve``.

That is ``vllm/benchmarks/lib/endpoint_request_func.py`` and ``calculate_metrics`` in ``vllm/benchmarks/serve.py`` of
vllm-project/vllm: a chunk counts if it has choices; TTFT is from the sending to the first of them, an ITL from one to
the next, the latency to the last; TPOT = (latency - TTFT) / (output tokens - 1), of requests with more than one;
percentiles interpolate linearly over requests (ITL: over gaps); throughput is over the time from the first sending to
the last end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request of a load. Times are ``time.perf_counter_ns``; ``chunks_ns`` are arrivals of chunks with choices.

    ``new_tokens`` is what the server counted; None where it tells none. ``error`` is None for a request that came to
    its end; ``hung`` if it was given up because nothing came any more.
    """

    index: int
    prompt_tokens: int | None
    new_tokens: int | None
    sent_ns: int
    chunks_ns: tuple[int, ...]
    ended_ns: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    error: str | None = None
    hung: bool = False

    @property
    def tokens(self) -> int:
        """New tokens; the number of chunks where the server counts none."""
        return len(self.chunks_ns) if self.new_tokens is None else self.new_tokens

    @property
    def ttft_ms(self) -> float | None:
        """Time to the first chunk."""
        return (self.chunks_ns[0] - self.sent_ns) / 1e6 if self.chunks_ns else None

    @property
    def latency_ms(self) -> float | None:
        """Time to the last chunk."""
        return (self.chunks_ns[-1] - self.sent_ns) / 1e6 if self.chunks_ns else None

    @property
    def tpot_ms(self) -> float | None:
        """Mean time of each token after the first; None with fewer than two."""
        if self.ttft_ms is None or self.latency_ms is None or self.tokens < 2:
            return None
        return (self.latency_ms - self.ttft_ms) / (self.tokens - 1)

    @property
    def itl_ms(self) -> list[float]:
        """Gaps between chunks."""
        gaps: list[float] = (np.diff(np.asarray(self.chunks_ns, np.int64)) / 1e6).tolist()
        return gaps


@dataclass(frozen=True, slots=True)
class Spread:
    """Of values in milliseconds. ``percentiles`` has those of :data:`PERCENTILES`."""

    count: int
    mean: float
    std: float
    percentiles: dict[str, float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None if there are no values."""
        if not values:
            return None
        array = np.asarray(values, np.float64)
        found = np.percentile(array, PERCENTILES)
        names = [f"p{p}" for p in PERCENTILES]
        return cls(len(array), float(array.mean()), float(array.std()), dict(zip(names, found.tolist(), strict=True)))

    @property
    def median(self) -> float:
        """The 50th percentile."""
        return self.percentiles["p50"]


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A load summed up. ``concurrency_level`` is the mean number of requests in flight: latencies over the duration."""

    completed: int
    failed: int
    duration_s: float
    prompt_tokens: int
    new_tokens: int
    requests_per_s: float
    tokens_per_s: float
    total_tokens_per_s: float
    tokens_per_s_per_gpu: float
    concurrency_level: float
    gpus: int
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    itl_ms: Spread | None
    e2e_ms: Spread | None
    errors: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def summarise(records: Sequence[RequestRecord], gpus: int = 1) -> LoadReport:
    """Sum up. Failed requests count as such and in nothing else; ``errors`` has each different error once."""
    done = [r for r in records if r.error is None]
    start = min((r.sent_ns for r in records), default=0)
    end = max((r.ended_ns for r in records), default=0)
    seconds = (end - start) / 1e9
    prompt, new = sum(r.prompt_tokens or 0 for r in done), sum(r.tokens for r in done)
    latencies = [r.latency_ms for r in done if r.latency_ms is not None]

    def per_s(amount: float) -> float:
        return amount / seconds if seconds else 0.0

    return LoadReport(
        completed=len(done),
        failed=len(records) - len(done),
        duration_s=seconds,
        prompt_tokens=prompt,
        new_tokens=new,
        requests_per_s=per_s(len(done)),
        tokens_per_s=per_s(new),
        total_tokens_per_s=per_s(prompt + new),
        tokens_per_s_per_gpu=per_s(new) / gpus,
        concurrency_level=per_s(sum(latencies) / 1e3),
        gpus=gpus,
        ttft_ms=Spread.of([r.ttft_ms for r in done if r.ttft_ms is not None]),
        tpot_ms=Spread.of([r.tpot_ms for r in done if r.tpot_ms is not None]),
        itl_ms=Spread.of([gap for r in done for gap in r.itl_ms]),
        e2e_ms=Spread.of(latencies),
        errors=tuple(dict.fromkeys(r.error for r in records if r.error is not None)),
    )
