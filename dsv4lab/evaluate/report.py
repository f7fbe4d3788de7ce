"""An accuracy comparison in words and tables, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4lab.evaluate.result import AccuracyResult, Verdict

ARM_COLUMNS = ("arm", "right", "accuracy", "{level:.0f} % interval", "no number", "cut off", "tokens")
SPLIT_COLUMNS = ("", "B right", "B wrong")
DISAGREEMENT_COLUMNS = ("line", "expected", "A", "B", "right")

Rows = Sequence[tuple[str, ...]]


def arm_table(result: AccuracyResult) -> tuple[tuple[str, ...], Rows]:
    """One row per arm."""
    n = result.counts.questions
    rows = [
        (
            arm.name,
            f"{arm.right} of {n}",
            f"{100 * arm.accuracy:.1f} %",
            f"{100 * arm.low:.1f} to {100 * arm.high:.1f} %",
            f"{arm.invalid} ({100 * arm.invalid / n if n else 0:.1f} %)",
            str(arm.cut_off),
            f"{arm.new_tokens:.0f}",
        )
        for arm in result.arms
    ]
    return tuple(name.format(level=100 * result.level) for name in ARM_COLUMNS), rows


def split_table(result: AccuracyResult) -> Rows:
    """Who got how many right; the discordant ones are off the diagonal."""
    c = result.counts
    return [("A right", str(c.both), str(c.only_a)), ("A wrong", str(c.only_b), str(c.neither))]


def arm_lines(result: AccuracyResult) -> list[str]:
    """What the arms are."""
    return [f"{arm.name}: {arm.label}" + (f" (model {arm.model})" if arm.model else "") for arm in result.arms]


def tokens_text(result: AccuracyResult) -> str:
    """Exact equality, which comes before accuracy."""
    n = result.counts.questions
    same = f"Whole answers are the same on {result.same_answers} of {n} questions."
    found = result.tokens
    if found is None:
        return same
    if found.identical:
        return f"Greedy tokens are identical on all {found.prompts} prompts asked one by one. {same}"
    first = ""
    if found.divergence is not None:
        prompt, place, a, b = found.divergence
        first = f"; first at prompt {prompt}, new token {place}: {_token(a)} and {_token(b)}"
    return f"Greedy tokens differ on {found.differing} of {found.prompts} prompts asked one by one{first}. {same}"


def difference_text(result: AccuracyResult) -> str:
    """The difference, its interval and the exact test."""
    c = result.counts
    outside = result.low > 0 or result.high < 0
    decides = " (stricter than the interval, and it decides)" if outside and not result.significant else ""
    return (
        f"B less A: {_points(c.difference)} ({100 * result.level:g} % interval {_points(result.low, '')} to "
        f"{_points(result.high)}); {c.discordant} discordant questions, exact McNemar p = {result.p:.3g}{decides}."
    )


def verdict_text(result: AccuracyResult) -> str:
    """What was shown, and whether there were questions enough."""
    n = result.counts.questions
    if result.verdict in (Verdict.A_BETTER, Verdict.B_BETTER):
        return f"{str(result.verdict).capitalize()}: {n} questions were enough to show it."
    least = f"{100 * result.least:g} point{'s' * (result.least != 0.01)}"
    if result.verdict is Verdict.NO_DIFFERENCE:
        return f"No difference: {n} questions were enough to rule out {least} either way."
    could = "cannot show any difference"
    if result.detectable is not None:
        could = f"show a difference of {100 * result.detectable:.1f} points"
    needs = "more than ten million" if result.needed is None else str(result.needed)
    return (
        f"Not enough questions to tell: at this discordance {n} {could} with a chance of {100 * result.power:g} %, "
        f"and {least} would take {needs} questions."
    )


def failed_text(result: AccuracyResult) -> str:
    """What did not get an answer; empty if everything did."""
    if not result.failed:
        return ""
    left_out = result.questions - result.counts.questions
    return f"{result.failed} requests failed, so {left_out} of {result.questions} questions do not count."


def markdown(result: AccuracyResult) -> str:
    """The report of the folder."""
    parts = [
        f"# Accuracy of two arms on {result.source}",
        "\n".join(f"- {line}" for line in arm_lines(result)),
        f"**{verdict_text(result)}**",
        difference_text(result),
        tokens_text(result),
        _table(*arm_table(result)),
        _table(SPLIT_COLUMNS, split_table(result)),
        failed_text(result),
    ]
    if result.disagreements:
        rows = [(str(d.line), d.expected, d.a, d.b, d.right) for d in result.disagreements]
        parts += ["## Discordant questions", _table(DISAGREEMENT_COLUMNS, rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(columns: Sequence[str], rows: Rows) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _points(fraction: float, unit: str = " points") -> str:
    return f"{100 * fraction:+.1f}{unit}"


def _token(token: int | str | None) -> str:
    return "the end" if token is None else repr(token)
