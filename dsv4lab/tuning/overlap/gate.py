"""Whether plans compute what the serial program computes, bit for bit, before anything is timed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dsv4lab.overlap.plan import OFF
from dsv4lab.tuning.overlap.record import Gate, Replays
from dsv4lab.tuning.overlap.stage import Stage, same

REPLAYS = 100


def check(stage: Stage, plans: Sequence[str]) -> Gate:
    """Compare logits and pool of every plan with those of ``off``, with graphs and without, in a batch that fills its
    bucket and one that is padded; see that replays allocate nothing.
    """
    most = max(stage.settings.concurrency)
    verdicts: dict[str, bool] = {}
    for n in sorted({min(2, most), min(3, most)}):
        first = _run(stage, n, OFF.name, graph=True)
        before = [tensor.clone() for tensor in stage.pool()]
        verdicts[f"{n}: finite"] = bool(torch.isfinite(first).all())
        for plan in plans:
            for graph in (True, False) if stage.runs_eagerly(plan) else (True,):
                again = _run(stage, n, plan, graph=graph)
                way = ("graph" if graph else "eager") if stage.on_gpu else "streams"
                verdicts[f"{n}: {plan}, {way}"] = same([first], [again]) and same(before, stage.pool())
    if stage.on_gpu:
        verdicts["replays allocate nothing"] = _allocates_nothing(stage, plans[-1])
    stage.forget()
    return Gate(all(verdicts.values()), verdicts)


def replay(stage: Stage, plan: str, n: int, replays: int) -> Replays:
    """Run a step again and again, and compare its logits every time."""
    step = stage.step(n, plan)
    stage.run(step)
    live = stage.runner.arena.buffers["logits"][:n]
    first, good = live.clone(), 0
    for _ in range(replays):
        stage.run(step)
        good += bool(torch.equal(live, first))
    return Replays(plan, n, replays, good)


def _run(stage: Stage, n: int, plan: str, *, graph: bool) -> torch.Tensor:
    step = stage.step(n, plan)
    if graph:
        stage.run(step)
    else:
        stage.eager(step)
    return stage.logits(n)


def _allocates_nothing(stage: Stage, plan: str) -> bool:
    step = stage.step(1, plan)
    stage.run(step)
    before = _allocated()
    for _ in range(REPLAYS):
        stage.run(step)
    return _allocated() == before


def _allocated() -> int:
    return int(torch.cuda.memory_allocated()) if torch.cuda.is_available() else 0
