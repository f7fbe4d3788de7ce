"""One cell of a stored session measured again, to see whether it still gives the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dsv4lab.errors import EngineError
from dsv4lab.host import usable_cores
from dsv4lab.tuning.reading import Reading
from dsv4lab.tuning.space import Cell
from dsv4lab.tuning.stats import median, pooled
from dsv4lab.tuning.target import OpenTarget
from dsv4lab.tuning.trial import digest


@dataclass(frozen=True, slots=True)
class Replay:
    """TPOT of the recorded trials and of now, in milliseconds, and whether the tokens are the recorded ones."""

    cell: Cell
    recorded_ms: float
    now_ms: float
    same_tokens: bool

    @property
    def text(self) -> str:
        """What came out, in a sentence."""
        change = 100 * (self.now_ms / self.recorded_ms - 1)
        tokens = "the same tokens" if self.same_tokens else "OTHER TOKENS than recorded"
        times = f"TPOT {self.now_ms:.2f} ms now, {self.recorded_ms:.2f} ms recorded ({change:+.1f} %)"
        return f"{self.cell.label}: {times}, {tokens}"


def replay(reading: Reading, cell: Cell, open_target: OpenTarget) -> Replay:
    """Start an engine as in ``cell``, run its load twice (the first wakes it) and compare with the recorded trials.

    Raises :class:`EngineError` if the session has no trial of ``cell``, and what the engine raises.
    """
    recorded = reading.trials_of(cell)
    if not recorded:
        raise EngineError(f"the session has no trial of {cell.label}")
    if cell.control:
        config = replace(reading.config, streams="serial", intra_op_threads=usable_cores())
    else:
        config = replace(reading.config, streams="queue", intra_op_threads=1, hw_queues=cell.hw_queues)
    target = open_target(config)
    try:
        target.set_plan(reading.space.setting(cell.plan))
        load = reading.space.load
        arguments = (cell.concurrency_level, load.prompt_tokens, load.max_new_tokens, load.seed)
        target.load(*arguments)
        result = target.load(*arguments)
    finally:
        target.close()
    now = [r.tpot_ms for r in result.requests if r.tpot_ms is not None]
    same = all(t.tokens == digest(result.tokens) for t in recorded)
    return Replay(cell, median(pooled([t.tpot_ms for t in recorded])), median(now), same)
