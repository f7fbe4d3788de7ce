"""A search session's result as tables and sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import StatisticsError, correlation

from dsv4lab.tuning.knobs import KnobSpace, Setting
from dsv4lab.tuning.paired import Verdict
from dsv4lab.tuning.search.log import Decision
from dsv4lab.tuning.search.outcome import NOTHING_BETTER, Level, SearchResult
from dsv4lab.tuning.search.runner import Progress, Tell
from dsv4lab.units import percent_text

SHOWN = 8
LEVEL_COLUMNS = ("load", "TPOT ms", "baseline", "Δ TPOT", "interval", "pairs", "verdict")
BEST_COLUMNS = ("setting", "forecast", "Δ TPOT", "pairs", "verdict")
FRONT_COLUMNS = ("setting", "TPOT ms", "tokens/s")

Rows = list[tuple[str, ...]]


def told_once(say: Callable[[str], object] = print) -> Tell:
    """A ``tell`` of a search that says each thing as it begins, once, with how far the search is and what is left."""
    told: set[str] = set()

    def tell(now: Progress) -> None:
        if now.text not in told:
            told.add(now.text)
            left = "" if now.left_s is None else f", {now.left_s:.0f} s left"
            say(f"{now.done} of {now.total}{left}: {now.text}")

    return tell


def level_rows(result: SearchResult) -> Rows:
    """One row per load: what confirmation found of its best setting."""
    space = result.plan.space
    return [_level_row(space, level) for level in result.levels]


def best_rows(result: SearchResult, load: Setting, count: int = SHOWN) -> Rows:
    """The settings under one load that exploring put first, with what was forecast and what was measured."""
    space = result.plan.space
    own = [d for d in result.explored if space.load_of(d.setting) == load and d.delta is not None]
    own.sort(key=lambda d: d.delta or 0.0)
    return [
        (
            space.short(space.tuned_of(d.setting)),
            "–" if d.forecast is None else percent_text(d.forecast),
            _percent(d.delta),
            str(d.pairs),
            d.verdict,
        )
        for d in own[:count]
    ]


def front_rows(result: SearchResult) -> Rows:
    """The Pareto front, from the lowest TPOT to the highest throughput."""
    return [(result.plan.space.short(p.setting), f"{p.tpot_ms:.3f}", f"{p.tokens_per_s:.1f}") for p in result.front]


def headline(space: KnobSpace, level: Level) -> str:
    """One sentence: what to use under a load, and why."""
    load = space.short(level.load) if level.load.items else "this load"
    use = space.short(space.tuned_of(level.use))
    found = level.confirmation
    if level.verdict == Verdict.FASTER and found is not None:
        return f"{load}: use {use}. TPOT {_percent(found.delta)} ({_interval(found)}) in {_pairs(found)}."
    if level.verdict == NOTHING_BETTER:
        return f"{load}: stay with {use}; none of {level.tried} settings came out ahead."
    assert found is not None
    best = space.short(space.tuned_of(found.setting))
    if found.delta is None:
        return f"{load}: stay with {use}; {best} could not be confirmed: {found.why or found.stopped}."
    said = f"{best} gave TPOT {_percent(found.delta)} in {_pairs(found)}"
    if level.verdict == Verdict.UNDECIDED:
        return f"{load}: stay with {use}. Undecided: {said}; {found.stopped}."
    return f"{load}: stay with {use}. {level.verdict.capitalize()}: {said}."


def effort_text(result: SearchResult) -> str:
    """How much was tried, and what failed."""
    tried = f"Tried {result.trials} of {result.choices} settings beside the baseline"
    if result.plan.seconds is not None and result.trials < min(result.plan.budget, result.choices):
        tried += " in the time given"
    if result.plan.choices > result.choices:
        tried += f" ({result.plan.choices - result.choices} more come to the same as one of these)"
    if result.own_trials != result.trials:
        tried += f", {result.own_trials} of them here"
    failed = [d for d in result.decisions if not d.ok and d.why]
    return f"{tried}; {len(failed)} failed." if failed else f"{tried}."


def failure_lines(result: SearchResult, count: int = 5) -> list[str]:
    """The settings that failed, and why: a line each."""
    failed = [d for d in result.decisions if not d.ok and d.why]
    lines = [f"{result.plan.space.short(d.setting)}: {d.outcome}: {_first_line(d.why)}" for d in failed[:count]]
    return lines + ([f"... and {len(failed) - count} more"] if len(failed) > count else [])


def forecast_text(result: SearchResult) -> str:
    """How far forecasts and measurements agree, where there are both."""
    both = [(d.forecast, d.delta) for d in result.explored if d.forecast is not None and d.delta is not None]
    if len(both) < 2:
        return ""
    order = rank_correlation([a for a, _ in both], [b for _, b in both])
    text = "no order to compare" if order is None else f"rank correlation {order:+.2f}"
    return f"Forecast against measurement over {len(both)} settings: {text}."


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's rank correlation, ties at their middle rank; None where one side is constant."""
    try:
        return correlation(_ranks(a), _ranks(b))
    except StatisticsError:
        return None


def _level_row(space: KnobSpace, level: Level) -> tuple[str, ...]:
    load = space.short(level.load) if level.load.items else "–"
    found = level.confirmation
    if found is None or found.tpot_ms is None:
        return (load, "–", "–", "–", "–", "–", level.verdict)
    return (
        load,
        f"{found.tpot_ms:.3f}",
        f"{found.baseline_tpot_ms:.3f}",
        _percent(found.delta),
        _interval(found),
        str(found.pairs),
        level.verdict,
    )


def _interval(decision: Decision) -> str:
    if decision.low is None and decision.high is None:
        return "open"
    low = "…" if decision.low is None else f"{100 * decision.low:+.1f}"
    return f"{low} to {'…' if decision.high is None else percent_text(decision.high)}"


def _pairs(decision: Decision) -> str:
    return f"{decision.pairs} fresh pair{'s' * (decision.pairs != 1)}"


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else percent_text(fraction)


def _first_line(text: str | None) -> str:
    return (text or "").splitlines()[0] if text else ""


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]
