"""One session against an earlier one of the same load: has anything become slower, or can that not be told?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, variance
from typing import Any

from scipy.special import stdtrit

from dsv4lab.errors import UsageError
from dsv4lab.tuning.knobs import Setting
from dsv4lab.tuning.stats import median
from dsv4lab.tuning.summary import load_text
from dsv4lab.tuning.trial import CONFIRM
from dsv4lab.tuning.view import BASELINE, ENGINE, SERVER, Row, Sample, SessionView

NO_REGRESSION, REGRESSION, CANNOT_TELL = "no regression", "regression", "cannot tell"
EXIT_CODES: Mapping[str, int] = {NO_REGRESSION: 0, REGRESSION: 1, CANNOT_TELL: 3}
"""2 is what every command returns for wrong arguments."""

TPOT, THROUGHPUT = "TPOT", "tokens/s"
RECOMMENDED = "recommended"
LEVEL = 0.95
MIN_LIVES = 3
"""From so many processes on a side on, a process is one value: blocks in the same one are not independent."""
MIN_VALUES = 3

_LOAD_FACTS: Mapping[str, tuple[str, ...]] = {
    SERVER: ("waves", "range_ratio", "prompts", "vocab_size", "body", "gpus"),
    ENGINE: ("model", "seed"),
}
"""What of a target belongs to the load; the rest may be what is compared."""


@dataclass(frozen=True, slots=True)
class Check:
    """One figure of one load then and now. ``loss`` is how much worse it became, as a fraction (below zero: better).

    ``n`` counts the values on either side, (then, now): matched blocks, processes, or blocks (``by`` says which).
    """

    load: Setting
    what: str
    metric: str
    setting: str
    before: float
    now: float
    loss: float | None
    low: float | None
    high: float | None
    n: tuple[int, int]
    by: str
    verdict: str
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data; figures that there are none of are None."""
        data = {**asdict(self), "load": self.load.to_json(), "n": list(self.n)}
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in data.items()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """All checks, what they come to, and what a reader has to know about the two sessions."""

    checks: tuple[Check, ...]
    max_regression: float
    level: float
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """``regression`` if any check says so, else ``cannot tell`` if any does, else ``no regression``."""
        found = {check.verdict for check in self.checks}
        return next((v for v in (REGRESSION, CANNOT_TELL) if v in found), NO_REGRESSION if found else CANNOT_TELL)

    @property
    def exit_code(self) -> int:
        """0, 1 for a regression, 3 where it cannot be told."""
        return EXIT_CODES[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """The ``comparison`` of ``report --json``."""
        return {
            "verdict": self.verdict,
            "max_regression": self.max_regression,
            "level": self.level,
            "checks": [check.to_json() for check in self.checks],
            "notes": list(self.notes),
        }


def compare_sessions(now: SessionView, before: SessionView, max_regression: float) -> Comparison:
    """Hold ``now`` against ``before``: the baseline and the recommended setting of each load that both have.

    TPOT and throughput may become worse by ``max_regression`` (a fraction). A check passes if its interval lies below
    that, fails if the loss is larger and zero is ruled out, and else cannot tell. The intervals hold together at
    :data:`LEVEL` (Bonferroni). Raises :class:`UsageError` for a limit below 0 and for sessions of different loads.
    """
    if not 0 <= max_regression < 1:
        raise UsageError(f"--max-regression: got {max_regression:g}, it takes a share from 0 to less than 100 %")
    _same_load(now, before)
    loads = [load for load in before.loads if load in now.loads]
    if not loads:
        there, here = ("; ".join(map(load_text, view.loads)) or "none" for view in (before, now))
        raise UsageError(f"{before.folder}: no load in common: {there} there, {here} now")
    subjects = [(load, *subject) for load in loads for subject in _subjects(now, before, load)]
    level = 1 - (1 - LEVEL) / max(1, 2 * len(subjects))
    checks = [
        check for load, what, old, new in subjects for check in _checks(load, what, old, new, level, max_regression)
    ]
    return Comparison(tuple(checks), max_regression, level, tuple(_notes(now, before, loads)))


def _subjects(now: SessionView, before: SessionView, load: Setting) -> list[tuple[str, Row, Row | None]]:
    """What is compared under a load: rows then and now.

    Against what was recommended then stands what is now, or the same setting where nothing is: an answer that was not
    reached is no loss by itself.
    """
    out = [
        (BASELINE, row, now.row(load, row.setting)) for row in before.rows if row.load == load and row.role == BASELINE
    ]
    uses = [next((use for use in view.uses if use.load == load), None) for view in (before, now)]
    if uses[0] is not None and uses[0].gained:
        old = before.row(load, uses[0].use)
        new = now.row(load, uses[1].use if uses[1] is not None and uses[1].gained else uses[0].use)
        if old is not None:
            out.append((RECOMMENDED, old, new))
    return out


def _checks(load: Setting, what: str, old: Row, new: Row | None, level: float, limit: float) -> list[Check]:
    empty = Check(load, what, TPOT, old.label, math.nan, math.nan, None, None, None, (0, 0), "", CANNOT_TELL)
    if new is None or not new.measured:
        failed = new is not None and new.failed
        why = f"{new.verdict}: {_first_line(new.why)}" if new is not None and failed else "it was not measured now"
        verdict = REGRESSION if failed and old.measured else CANNOT_TELL
        return [replace(empty, verdict=verdict, note=why)]
    if not old.measured:
        return [replace(empty, setting=new.label, note="it was not measured then")]
    label = old.label if old.label == new.label else f"{old.label} → {new.label}"
    then, today = _deciding(old, what), _deciding(new, what)
    out = []
    for metric, log in ((TPOT, _log_tpot), (THROUGHPUT, _log_slowness)):
        found = _estimate(then, today, log, level)
        before, after = (_typical(samples, metric) for samples in (then, today))
        out.append(_judged(Check(load, what, metric, label, before, after, *found, CANNOT_TELL), limit))
    return out


def _first_line(text: str | None) -> str:
    return text.splitlines()[0] if text else "no reason was given"


def _judged(check: Check, limit: float) -> Check:
    if check.loss is None or check.low is None or check.high is None:
        return replace(check, note=f"fewer than {MIN_VALUES} values")
    if check.high <= limit:
        return replace(check, verdict=NO_REGRESSION)
    if check.low > 0 and check.loss > limit:
        return replace(check, verdict=REGRESSION)
    return replace(check, note="the interval reaches over the limit: measure more")


def _deciding(row: Row, what: str) -> list[Sample]:
    """Blocks to compare. Those by which a winner was picked flatter it, so of a recommendation only the later ones."""
    own = [s for s in row.samples if s.tpot_ms]
    later = [s for s in own if s.phase == CONFIRM]
    return later if what == RECOMMENDED and later else own


Log = Callable[[Sample], float]


def _log_tpot(sample: Sample) -> float:
    return math.log(median(sample.tpot_ms))


def _log_slowness(sample: Sample) -> float:
    return -math.log(sample.tokens_per_s) if sample.tokens_per_s > 0 else math.nan


def _typical(samples: Sequence[Sample], metric: str) -> float:
    return median([median(s.tpot_ms) if metric == TPOT else s.tokens_per_s for s in samples])


def _estimate(
    then: Sequence[Sample], today: Sequence[Sample], log: Log, level: float
) -> tuple[float | None, float | None, float | None, tuple[int, int], str]:
    """Loss, its bounds, the number of values on either side and what they are."""
    matched = _matched(then, today, log)
    if len(matched) >= MIN_VALUES:
        return *_interval([matched], level), (len(matched), len(matched)), "matched blocks"
    sides = [_by_life(samples, log) for samples in (then, today)]
    if min(map(len, sides)) >= MIN_LIVES:
        values, by = [[fmean(own) for own in side.values()] for side in sides], "processes"
    else:
        values, by = [[v for own in side.values() for v in own] for side in sides], "blocks"
    counts = (len(values[0]), len(values[1]))
    if min(counts) < MIN_VALUES:
        return None, None, None, counts, by
    return *_interval(values, level), counts, by


def _matched(then: Sequence[Sample], today: Sequence[Sample], log: Log) -> list[float]:
    """Differences of blocks with the same prompts; of those in the same two processes the mean, if there are enough."""
    old = {s.match: s for s in then if s.match is not None}
    pairs = [(old[s.match], s) for s in today if s.match in old]
    groups: dict[tuple[str, str], list[float]] = {}
    for a, b in pairs:
        if math.isfinite(value := log(b) - log(a)):
            groups.setdefault((a.life, b.life), []).append(value)
    if len(groups) >= MIN_LIVES:
        return [fmean(own) for own in groups.values()]
    return [value for own in groups.values() for value in own]


def _by_life(samples: Sequence[Sample], log: Log) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {}
    for sample in samples:
        if math.isfinite(value := log(sample)):
            out.setdefault(sample.life, []).append(value)
    return out


def _interval(sides: Sequence[Sequence[float]], level: float) -> tuple[float, float, float]:
    """Student's interval of one side's mean, or Welch's of the second's mean less the first's, as fractions."""
    parts = [(variance(values) / len(values), len(values) - 1) for values in sides]
    middle = fmean(sides[-1]) - (fmean(sides[0]) if len(sides) > 1 else 0.0)
    square = sum(part for part, _ in parts)
    if not square:
        return math.expm1(middle), math.expm1(middle), math.expm1(middle)
    freedom = square**2 / sum(part**2 / df for part, df in parts)
    reach = float(stdtrit(freedom, 1 - (1 - level) / 2)) * math.sqrt(square)
    return math.expm1(middle), math.expm1(middle - reach), math.expm1(middle + reach)


def _same_load(now: SessionView, before: SessionView) -> None:
    if now.target != before.target:
        raise UsageError(f"{before.folder}: target is {before.target} there and {now.target} now")
    for name in _LOAD_FACTS.get(now.target, ()):
        if now.facts.get(name) != before.facts.get(name):
            raise UsageError(f"{before.folder}: {name} is {before.facts.get(name)} there and {now.facts.get(name)} now")


def _notes(now: SessionView, before: SessionView, loads: Sequence[Setting]) -> list[str]:
    out = []
    if now.machines != before.machines:
        there, here = "; ".join(before.machines), "; ".join(now.machines)
        out.append(f"other machines: {there} then, {here} now; the difference may be theirs")
    for name in ("dsv4lab", "torch"):
        then, today = before.manifest.get(name), now.manifest.get(name)
        if then != today:
            out.append(f"{name} {then} then, {today} now")
    left_out = [load for load in dict.fromkeys((*before.loads, *now.loads)) if load not in loads]
    if left_out:
        out.append(f"only one of the sessions has: {'; '.join(map(load_text, left_out))}")
    return out
