"""From recorded trials to the rows of the sweep table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dsv4lab.timeline.records import BusySummary, SweepRow
from dsv4lab.tuning import stats
from dsv4lab.tuning.space import BASELINE, Cell, SweepSpace
from dsv4lab.tuning.stats import Difference, Noise, median, percentile
from dsv4lab.tuning.trial import EXPLORE, Trial, by_block

EMPTY_BUSY = BusySummary(0, 0, 0, 0, 0, (), ())


def sweep_rows(space: SweepSpace, trials: Sequence[Trial], busy: Mapping[Cell, BusySummary]) -> list[SweepRow]:
    """One row per measured cell, in table order. Times are medians over the requests of all repeats."""
    rows = {cell: _row(cell, trials, busy) for cell in space.cells() if by_block(trials, cell)}
    return [replace(row, delta_vs_off=_delta(row, rows)) for row in rows.values()]


def _row(cell: Cell, trials: Sequence[Trial], busy: Mapping[Cell, BusySummary]) -> SweepRow:
    own = list(by_block(trials, cell).values())
    tpot = stats.pooled([t.tpot_ms for t in own])
    return SweepRow(
        plan=cell.plan,
        hw_queues=cell.hw_queues,
        concurrency_level=cell.concurrency_level,
        ttft_ms=median(stats.pooled([t.ttft_ms for t in own])),
        tpot_ms=median(tpot),
        tpot_p10_ms=percentile(tpot, 10),
        tpot_p90_ms=percentile(tpot, 90),
        tokens_per_s=median([t.tokens_per_s for t in own]),
        delta_vs_off=None,
        stream_busy=busy.get(cell, EMPTY_BUSY),
        control=cell.control,
    )


def _delta(row: SweepRow, rows: Mapping[Cell, SweepRow]) -> float | None:
    """TPOT against ``off`` in the same process; the control, which has a process to itself, against all of ``off``."""
    if row.plan == BASELINE and not row.control:
        return None
    beside = [
        other.tpot_ms
        for other in rows.values()
        if other.plan == BASELINE
        and not other.control
        and other.concurrency_level == row.concurrency_level
        and (row.control or other.hw_queues == row.hw_queues)
    ]
    return row.tpot_ms / median(beside) - 1 if beside else None


def paired_logs(trials: Iterable[Trial], cell: Cell, phase: str = EXPLORE) -> dict[tuple[int, int], float]:
    """Per block in which both were measured: log ratio of the cell's TPOT to that of ``off`` beside it."""
    kept = list(trials)
    arm = by_block(kept, cell, phase)
    beside = by_block(kept, replace(cell, plan=BASELINE), phase)
    blocks = [block for block in arm if block in beside]
    logs = stats.log_ratios([arm[b].tpot_ms for b in blocks], [beside[b].tpot_ms for b in blocks])
    return dict(zip(blocks, logs, strict=True))


def row_difference(trials: Sequence[Trial], row: SweepRow, seed: int = 0) -> Difference | None:
    """The paired comparison of a row against ``off`` in the sweep; None for ``off`` and for controls."""
    cell = Cell(row.plan, row.hw_queues, row.concurrency_level)
    logs = paired_logs(trials, cell) if row.plan != BASELINE and not row.control else {}
    return stats.difference(list(logs.values()), seed) if logs else None


def baseline_noise(space: SweepSpace, trials: Sequence[Trial]) -> Noise:
    """How far equal measurements of ``off`` lie apart: it uses one queue, so every queue count measures the same."""
    found: list[Noise] = []
    for level in space.concurrency:
        processes = [
            [t.tpot_ms for (number, _), t in by_block(trials, Cell(BASELINE, queues, level)).items() if number == own]
            for queues in space.hw_queues
            for own in range(space.rounds)
        ]
        found.append(stats.noise([blocks for blocks in processes if blocks]))
    return Noise(_largest(n.repeat for n in found), _largest(n.process for n in found))


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
