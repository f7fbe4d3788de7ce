"""What generating and profiling give back. Times are milliseconds where a name says so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from dsv4lab.engine.logprobs import TokenLogprobs
from dsv4lab.engine.request import FinishReason
from dsv4lab.timeline.program import StreamProgram
from dsv4lab.timeline.records import StepRecord
from dsv4lab.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Latencies of one request. ``ttft_ms`` runs from submission to the first new token; ``tpot_ms`` is the mean time
    of every further one, None with fewer than two; ``tokens`` counts new tokens. ``fingerprints``, where asked for, has
    a number per token: equal for equal logits, bit for bit. ``logprobs`` has those of every token, where asked for.
    """

    ttft_ms: float | None
    tpot_ms: float | None
    finish_reason: FinishReason
    tokens: int
    fingerprints: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()

    @classmethod
    def of(
        cls,
        submitted_ns: int,
        times_ns: Sequence[int],
        reason: FinishReason,
        fingerprints: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> RequestStats:
        """From the time of submission and those of each new token."""
        n = len(times_ns)
        return cls(
            ttft_ms=(times_ns[0] - submitted_ns) / 1e6 if n else None,
            tpot_ms=(times_ns[-1] - times_ns[0]) / 1e6 / (n - 1) if n > 1 else None,
            finish_reason=reason,
            tokens=n,
            fingerprints=fingerprints,
            logprobs=logprobs,
        )


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """New tokens of each request, in the order of the prompts, and what they took.

    ``ttft_ms`` and ``tpot_ms`` are medians over the requests that have them. ``wall_s`` runs from the first submission
    to the last token; ``tokens_per_s`` is all new tokens over it. ``texts`` are those of the tokens, without special
    ones and stop strings; None unless a prompt was text or stop strings were given.
    """

    tokens: list[list[int]]
    requests: list[RequestStats]
    ttft_ms: float | None
    tpot_ms: float | None
    wall_s: float
    tokens_per_s: float
    timeline: Timeline | None = None
    texts: list[str] | None = None

    @classmethod
    def of(
        cls,
        tokens: list[list[int]],
        requests: list[RequestStats],
        wall_ns: int,
        timeline: Timeline | None = None,
        texts: list[str] | None = None,
    ) -> GenerateResult:
        """Sum up ``requests``, which took ``wall_ns`` together."""
        return cls(
            tokens=tokens,
            requests=requests,
            ttft_ms=_median(r.ttft_ms for r in requests),
            tpot_ms=_median(r.tpot_ms for r in requests),
            wall_s=wall_ns / 1e9,
            tokens_per_s=sum(r.tokens for r in requests) * 1e9 / wall_ns if wall_ns else 0.0,
            timeline=timeline,
            texts=texts,
        )


CHANGED = 0.05
"""Relative difference of step times from which a profile is said to have changed them."""


@dataclass(frozen=True, slots=True)
class ProfilingCost:
    """Device time of a step with the profiler on, and of steps of the same shape without: medians, in microseconds."""

    what: str
    profiled_us: float
    profiled_steps: int
    unprofiled_us: float
    unprofiled_steps: int

    @property
    def delta(self) -> float:
        """``profiled / unprofiled - 1``."""
        return self.profiled_us / self.unprofiled_us - 1 if self.unprofiled_us else 0.0

    @property
    def changed(self) -> bool:
        """Whether they differ by more than ``CHANGED``, either way."""
        return abs(self.delta) > CHANGED

    def to_json(self) -> dict[str, Any]:
        """The fields, ``delta`` and ``changed``."""
        return {**asdict(self), "delta": self.delta, "changed": self.changed}

    @property
    def text(self) -> str:
        """Both times and the threshold, as a sentence."""
        verdict = "profiling changed the step" if self.changed else "profiling left the step as it is"
        return (
            f"{verdict}: {self.what} takes {self.profiled_us:.1f} us profiled, {self.unprofiled_us:.1f} us not "
            f"({self.delta:+.1%}; from {CHANGED:.0%} on it is said; medians of {self.profiled_steps} and "
            f"{self.unprofiled_steps} steps)"
        )


@dataclass(frozen=True, slots=True)
class Recording:
    """Forwards on a timeline. ``path`` is the file, where one was asked for; ``cost`` what torch's profiler took.

    ``warnings`` say where the profile is not what a run without it is, and what has no op; the timeline has them too.
    """

    timeline: Timeline
    path: Path | None = None
    cost: ProfilingCost | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile(Recording):
    """Recorded forwards: their slices (with step and layer), the program of the last one, and a record each."""

    program: StreamProgram = field(kw_only=True)
    steps: tuple[StepRecord, ...] = field(kw_only=True)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
