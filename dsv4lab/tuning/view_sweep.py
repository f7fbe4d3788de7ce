"""The view of a sweep: plans × hardware queues × concurrency on the engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from dsv4lab.tuning.knobs import CONCURRENCY, MAX_NEW_TOKENS, PROMPT_TOKENS, Setting
from dsv4lab.tuning.reading import DIVERGED, Reading, read_session
from dsv4lab.tuning.recommend import LevelFinding, Recommendation, confirming_trials
from dsv4lab.tuning.session import Finding
from dsv4lab.tuning.space import BASELINE as OFF
from dsv4lab.tuning.space import Cell
from dsv4lab.tuning.stats import LEVEL, median
from dsv4lab.tuning.store import read_manifest
from dsv4lab.tuning.trial import CONFIRM, EXPLORE, Trial
from dsv4lab.tuning.view import BASELINE, CANDIDATE, CONTROL, ENGINE, SWEEP, Profiled, Row, Sample, SessionView, Use


def sweep_view(folder: Path) -> SessionView:
    """Read the sweep in ``folder``. Raises :class:`dsv4lab.tuning.store.StoreError`."""
    reading = read_session(folder)
    manifest = read_manifest(folder)
    found = reading.recommendation
    return SessionView(
        folder=folder,
        kind=SWEEP,
        target=ENGINE,
        title=reading.config.model,
        facts=reading.config.to_json(),
        manifest=manifest,
        state=reading.phase,
        rows=tuple(_row(reading, finding) for finding in reading.findings),
        uses=tuple(_use(reading, found, level) for level in found.levels) if found else (),
        profiles=_profiles(reading),
        gates=(str(reading.divergence),) if reading.phase == DIVERGED else (),
        machines=reading.machines or (reading.cpu,),
        level=LEVEL,
        gpus=reading.config.world_size,
    )


def load_of(reading: Reading, level: int) -> Setting:
    """The load of a concurrency level."""
    load = reading.space.load
    return Setting.of(**{CONCURRENCY: level, PROMPT_TOKENS: load.prompt_tokens, MAX_NEW_TOKENS: load.max_new_tokens})


def setting_of(plan: str, hw_queues: int) -> Setting:
    """A plan on a queue count."""
    return Setting.of(plan=plan, hw_queues=hw_queues)


def _row(reading: Reading, finding: Finding) -> Row:
    row = finding.row
    cell = Cell(row.plan, row.hw_queues, row.concurrency_level, row.control)
    role = CONTROL if row.control else BASELINE if row.plan == OFF else CANDIDATE
    own = reading.trials_of(cell)
    beside = {(t.round, t.repeat): t for t in reading.trials_of(Cell(OFF, row.hw_queues, row.concurrency_level))}
    pairs = [(t, beside[t.round, t.repeat]) for t in own if (t.round, t.repeat) in beside]
    return Row(
        load=load_of(reading, row.concurrency_level),
        setting=setting_of(row.plan, row.hw_queues),
        role=role,
        samples=tuple(_sample(t) for phase in (EXPLORE, CONFIRM) for t in reading.trials_of(cell, phase)),
        change=finding.difference,
        verdict=finding.verdict,
        pairs=tuple((median(a.tpot_ms), median(b.tpot_ms)) for a, b in pairs) if role == CANDIDATE else (),
    )


def _sample(trial: Trial) -> Sample:
    control = "control" if trial.cell.control else f"q{trial.cell.hw_queues}"
    life = f"{trial.phase}-{control}-{trial.round}"
    return Sample(life, trial.phase, None, trial.tpot_ms, trial.ttft_ms, trial.tokens_per_s)


def _use(reading: Reading, found: Recommendation, level: LevelFinding) -> Use:
    choice = found.candidate
    assert choice is not None
    candidate, baseline = setting_of(choice.plan, choice.hw_queues), setting_of(OFF, choice.hw_queues)
    use = candidate if found.verdict == "faster" and level.verdict != "slower" else baseline
    cells = [Cell(plan, choice.hw_queues, level.concurrency_level) for plan in (OFF, choice.plan)]
    speeds = [_tokens_per_s(confirming_trials(reading.trials, choice, cell)) for cell in cells]
    return Use(
        load=load_of(reading, level.concurrency_level),
        use=use,
        baseline=baseline,
        candidate=candidate,
        change=level.difference,
        verdict=level.verdict,
        tpot_ms=(level.off_tpot_ms, level.tpot_ms),
        tokens_per_s=(speeds[0], speeds[1]),
    )


def _tokens_per_s(trials: Sequence[Trial]) -> float:
    return median([t.tokens_per_s for t in trials]) if trials else math.nan


def _profiles(reading: Reading) -> tuple[Profiled, ...]:
    """Busy tables of the candidate and of ``off`` beside it, at the highest level that has both."""
    choice = reading.candidate
    if choice is None:
        return ()
    out = []
    level = max(reading.space.concurrency)
    for plan, role in ((OFF, BASELINE), (choice.plan, CANDIDATE)):
        for finding in reading.findings:
            row = finding.row
            here = (row.plan, row.hw_queues, row.concurrency_level) == (plan, choice.hw_queues, level)
            if here and not row.control and row.stream_busy.wall_ns:
                out.append(
                    Profiled(load_of(reading, level), setting_of(plan, row.hw_queues), role, row.stream_busy, "")
                )
    return tuple(out)
