"""What a tuning session needs of the engine. :class:`dsv4lab.engine.client.EngineClient` is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from dsv4lab.config.engine import EngineConfig, OverlapSetting
from dsv4lab.engine.request import Limits
from dsv4lab.timeline.program import StreamProgram
from dsv4lab.timeline.records import PoolSnapshot, QueryReads, StepRecord
from dsv4lab.timeline.timeline import Timeline


class RequestTimes(Protocol):
    """Times of one request of a load."""

    @property
    def ttft_ms(self) -> float | None:
        """Time to the first token; None if there was none."""
        ...

    @property
    def tpot_ms(self) -> float | None:
        """Time per token after the first; None with fewer than two."""
        ...

    @property
    def fingerprints(self) -> Sequence[int]:
        """One of the logits behind each new token, if they were asked for."""
        ...


class LoadResult(Protocol):
    """What a load gave."""

    @property
    def tokens(self) -> Sequence[Sequence[int]]:
        """New tokens, one list per prompt."""
        ...

    @property
    def requests(self) -> Sequence[RequestTimes]:
        """One entry per prompt."""
        ...

    @property
    def tokens_per_s(self) -> float:
        """New tokens of all requests per second of the load."""
        ...

    @property
    def wall_s(self) -> float:
        """From submission to the last token."""
        ...

    @property
    def timeline(self) -> Timeline | None:
        """The forwards of the load, if it was profiled."""
        ...


class Profile(Protocol):
    """Recorded forwards."""

    @property
    def timeline(self) -> Timeline:
        """Their ops."""
        ...

    @property
    def program(self) -> StreamProgram:
        """The program of the last one."""
        ...

    @property
    def steps(self) -> Sequence[StepRecord]:
        """The forwards."""
        ...


class Handle(Protocol):
    """A request in flight."""

    def __iter__(self) -> Iterator[int]:
        """New tokens as they come."""
        ...

    def abort(self) -> None:
        """End it."""
        ...

    def result(self) -> Sequence[int]:
        """Its tokens, once it has ended."""
        ...


class SweepTarget(Protocol):
    """The engine behind its client, as far as a session drives it."""

    @property
    def limits(self) -> Limits:
        """What the engine holds."""
        ...

    def set_plan(self, plan: OverlapSetting) -> None:
        """Use ``plan`` from the next forward on."""
        ...

    def set_hw_queues(self, hw_queues: int) -> None:
        """Start a new worker with so many hardware queues."""
        ...

    def load(
        self,
        concurrency: int,
        prompt_tokens: int,
        max_new_tokens: int,
        seed: int,
        *,
        profile: bool = False,
        fingerprints: bool = False,
    ) -> LoadResult:
        """Run the synthetic load: greedy, the same prompts for the same seed, prompt ``i`` at every concurrency."""
        ...

    def submit(self, prompt: Sequence[int], *, max_new_tokens: int) -> Handle:
        """Start one greedy request."""
        ...

    def profile(self, steps: int) -> Profile:
        """Record the next ``steps`` forwards of what is in flight."""
        ...

    def pool_snapshot(self) -> PoolSnapshot:
        """Who holds which slots and pages now."""
        ...

    def query_reads(self, request_id: int, position: int, layer: int) -> QueryReads:
        """Pool rows that a query of a running request reads."""
        ...

    def close(self) -> None:
        """End the worker."""
        ...


OpenTarget = Callable[[EngineConfig], SweepTarget]
