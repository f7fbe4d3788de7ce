"""A close look at a setting while it decodes: ops, streams, queues and the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv4lab.engine.prompts import synthetic
from dsv4lab.timeline.program import StreamProgram
from dsv4lab.timeline.records import BusySummary, PoolSnapshot, QueryReads, StepRecord
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.trace.export import export_run
from dsv4lab.tuning.recommend import Choice
from dsv4lab.tuning.space import SweepSpace
from dsv4lab.tuning.target import Profile, SweepTarget

PROFILED_STEPS = 12
SPARE_TOKENS = 64
"""New tokens that a profiled request may make beyond the recorded steps before it ends; never all used."""

_CSA = 4


@dataclass(frozen=True, slots=True)
class Arm:
    """One setting, profiled: decode steps with ``concurrency_level`` requests in flight, and the pool meanwhile.

    ``role`` is ``baseline``, ``best`` or ``candidate`` (tested and not recommended).
    """

    role: str
    choice: Choice
    concurrency_level: int
    timeline: Timeline
    program: StreamProgram
    steps: tuple[StepRecord, ...]
    busy: BusySummary
    pool: PoolSnapshot
    reads: QueryReads | None
    trace: Path


def profile_arm(target: SweepTarget, space: SweepSpace, role: str, choice: Choice, folder: Path) -> Arm:
    """Decode the sweep's load at its highest concurrency level under ``choice`` and write the trace to ``folder``.

    ``target`` runs with the queues of ``choice`` already.
    """
    level = max(space.concurrency)
    target.set_plan(space.setting(choice.plan))
    profile, pool, reads = _decode(target, space, level)
    worker = f"{role}-{choice.plan}-q{choice.hw_queues}-c{level}"
    return Arm(
        role=role,
        choice=choice,
        concurrency_level=level,
        timeline=profile.timeline,
        program=profile.program,
        steps=tuple(profile.steps),
        busy=profile.timeline.stream_busy(),
        pool=pool,
        reads=reads,
        trace=export_run(profile.timeline, folder, worker),
    )


def _decode(target: SweepTarget, space: SweepSpace, level: int) -> tuple[Profile, PoolSnapshot, QueryReads | None]:
    prompts = synthetic(target.limits.vocab_size, level, space.load.prompt_tokens, space.load.seed)
    handles = [target.submit(prompt, max_new_tokens=PROFILED_STEPS + SPARE_TOKENS) for prompt in prompts]
    try:
        for handle in handles:
            next(iter(handle))  # its prompt is in the pool
        profile = target.profile(PROFILED_STEPS)
        pool = target.pool_snapshot()
        return profile, pool, _reads(target, pool)
    finally:
        for handle in handles:
            handle.abort()
        for handle in handles:
            handle.result()


def _reads(target: SweepTarget, pool: PoolSnapshot) -> QueryReads | None:
    """What the latest query of the first request reads, in the first CSA layer if there is one."""
    if not pool.requests:
        return None
    ratios: Sequence[int] = pool.compress_ratios
    layer = ratios.index(_CSA) if _CSA in ratios else 0
    request = pool.requests[0]
    return target.query_reads(request.request_id, request.tokens - 1, layer)
