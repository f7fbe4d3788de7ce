"""A quick look at some plans on a running engine: the same tokens or not, and a profile of each. No measurement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4lab.overlap.plan import OFF, OverlapPlan, resolve_plan
from dsv4lab.timeline.records import BusySummary
from dsv4lab.timeline.timeline import Timeline

if TYPE_CHECKING:
    from dsv4lab.engine.client import EngineClient


@dataclass(frozen=True, slots=True)
class Look:
    """A plan's decode forwards: ``identical`` says whether a load under it gave the tokens of ``off``."""

    plan: str
    identical: bool
    timeline: Timeline

    @property
    def busy(self) -> BusySummary:
        """Busy time by stream."""
        summary: BusySummary = self.timeline.stream_busy()
        return summary


def look_at(
    client: EngineClient,
    plans: Iterable[str | OverlapPlan],
    *,
    concurrency: int = 1,
    prompt_tokens: int = 256,
    new_tokens: int = 16,
    steps: int = 8,
) -> dict[str, Look]:
    """``off``, then each of ``plans``, by name: a load of synthetic requests, then ``steps`` profiled decode forwards.

    The client is left with the plan that it had. One run of each is a look and no result: see
    :func:`dsv4lab.tuning.session.run_session` for one. Raises what the client raises for a plan or a load.
    """
    before = client.plan
    wanted = [OFF, *(plan for plan in map(resolve_plan, plans) if plan.name != OFF.name)]
    tokens: list[list[int]] | None = None
    found = {}
    try:
        for plan in wanted:
            client.set_plan(plan)
            given = client.load(concurrency, prompt_tokens, new_tokens).tokens
            tokens = given if tokens is None else tokens
            timeline = client.profile(steps, concurrency=concurrency, prompt_tokens=prompt_tokens).timeline
            found[plan.name] = Look(plan.name, given == tokens, timeline)
    finally:
        if client.alive:
            client.set_plan(before)
    return found
