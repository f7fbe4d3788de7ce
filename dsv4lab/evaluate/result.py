"""What the answers of both arms say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

from dsv4lab.evaluate.arms import NAMES
from dsv4lab.evaluate.counts import PairedCounts, detectable, questions_needed, wilson_interval
from dsv4lab.evaluate.numbers import final_number, number_text
from dsv4lab.evaluate.plan import Plan
from dsv4lab.evaluate.questions import Question
from dsv4lab.load.outputs import Comparison, Output, compare

ARM, OUTPUTS, ANSWER, FAILURE = "arm", "outputs", "answer", "failure"
"""Kinds of records."""

CUT_OFF = "length"


class Verdict(StrEnum):
    """``NO_DIFFERENCE``: the interval rules out one that matters. ``NOT_ENOUGH``: nothing was shown.

    Else the exact test has shown a difference.
    """

    A_BETTER = "A is better"
    B_BETTER = "B is better"
    NO_DIFFERENCE = "no difference"
    NOT_ENOUGH = "not enough questions"


@dataclass(frozen=True, slots=True)
class ArmAccuracy:
    """One arm, over the questions that both arms answered. ``low`` and ``high`` bound its accuracy (Wilson).

    ``invalid`` answers have no number in them, ``cut_off`` ones ran into the limit of new tokens; both may still be
    right or wrong. ``failed`` requests gave no answer, so their questions do not count. ``new_tokens`` is a mean.
    """

    name: str
    label: str
    model: str | None
    right: int
    accuracy: float
    low: float
    high: float
    invalid: int
    cut_off: int
    failed: int
    new_tokens: float


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A question that one arm got right and the other wrong: the file's line, and the numbers."""

    line: int
    expected: str
    a: str
    b: str
    right: str


@dataclass(frozen=True, slots=True)
class AccuracyResult:
    """Both arms and their difference, B less A, in fractions. ``level`` is that of all intervals.

    ``tokens`` compares greedy tokens of the first prompts, asked one after the other (None if none were);
    ``same_answers`` counts whole answers that are equal token by token, text by text where tokens were not told.
    ``detectable`` is the difference that so many questions show with a chance of ``power`` at the discordance seen,
    ``needed`` the questions that a difference of ``least`` takes there; None where there is no such number.
    """

    source: str
    questions: int
    arms: tuple[ArmAccuracy, ArmAccuracy]
    counts: PairedCounts
    tokens: Comparison | None
    same_answers: int
    p: float
    low: float
    high: float
    level: float
    power: float
    least: float
    detectable: float | None
    needed: int | None
    disagreements: tuple[Disagreement, ...]
    errors: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """What was shown."""
        if self.counts.questions and -self.least < self.low and self.high < self.least:
            return Verdict.NO_DIFFERENCE
        if not self.significant:
            return Verdict.NOT_ENOUGH
        return Verdict.B_BETTER if self.counts.difference > 0 else Verdict.A_BETTER

    @property
    def significant(self) -> bool:
        """Whether the exact test rules out that the arms are alike."""
        return self.p <= 1 - self.level

    @property
    def failed(self) -> int:
        """Requests that gave no answer, of both arms."""
        return sum(arm.failed for arm in self.arms)

    def to_json(self) -> dict[str, Any]:
        """The documented object of ``eval ab --json``."""
        return {
            "source": self.source,
            "questions": self.questions,
            "arms": [asdict(arm) for arm in self.arms],
            "tokens": None if self.tokens is None else asdict(self.tokens),
            "same_answers": self.same_answers,
            "counts": {**asdict(self.counts), "questions": self.counts.questions, "discordant": self.counts.discordant},
            "difference": self.counts.difference,
            "interval": [self.low, self.high],
            "level": self.level,
            "p": self.p,
            "verdict": self.verdict,
            "enough": self.verdict is not Verdict.NOT_ENOUGH,
            "least": self.least,
            "power": self.power,
            "detectable": self.detectable,
            "needed": self.needed,
            "disagreements": [asdict(found) for found in self.disagreements],
            "errors": list(self.errors),
        }


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str
    token_ids: tuple[int, ...]
    new_tokens: int
    cut_off: bool
    number: Fraction | None


def result_of(plan: Plan, records: Iterable[Mapping[str, Any]]) -> AccuracyResult:
    """The result of ``plan`` from what is on record; questions without an answer of both arms do not count."""
    kept = list(records)
    answers = {name: _answers(kept, name) for name in NAMES}
    a, b = (answers[name] for name in NAMES)
    pairs = [question for question in plan.questions if question.line in a and question.line in b]
    counts = _counts(pairs, a, b)
    level = 1 - plan.alpha
    low, high = counts.interval(level)
    discordance = max(counts.discordant, 1) / max(counts.questions, 1)
    return AccuracyResult(
        source=plan.source,
        questions=len(plan.questions),
        arms=(_arm(plan, kept, 0, pairs, a, level), _arm(plan, kept, 1, pairs, b, level)),
        counts=counts,
        tokens=_tokens(kept),
        same_answers=sum(_same(a[q.line], b[q.line]) for q in pairs),
        p=counts.mcnemar_p(),
        low=low,
        high=high,
        level=level,
        power=plan.power,
        least=plan.least,
        detectable=detectable(counts.questions, discordance, plan.alpha, plan.power),
        needed=questions_needed(discordance, plan.least, plan.alpha, plan.power),
        disagreements=_disagreements(pairs, a, b),
        errors=_errors(kept, answers),
    )


def _answers(records: Sequence[Mapping[str, Any]], arm: str) -> dict[int, _Answer]:
    return {
        record["line"]: _Answer(
            record["text"],
            tuple(record["token_ids"]),
            record["new_tokens"],
            record["finish_reason"] == CUT_OFF,
            final_number(record["text"]),
        )
        for record in records
        if record["kind"] == ANSWER and record["arm"] == arm
    }


def _counts(pairs: Sequence[Question], a: Mapping[int, _Answer], b: Mapping[int, _Answer]) -> PairedCounts:
    right = [(a[q.line].number == q.expected, b[q.line].number == q.expected) for q in pairs]
    return PairedCounts(
        both=right.count((True, True)),
        only_a=right.count((True, False)),
        only_b=right.count((False, True)),
        neither=right.count((False, False)),
    )


def _arm(
    plan: Plan,
    records: Sequence[Mapping[str, Any]],
    at: int,
    pairs: Sequence[Question],
    answers: Mapping[int, _Answer],
    level: float,
) -> ArmAccuracy:
    spec = plan.arms[at]
    own = [answers[question.line] for question in pairs]
    right = sum(answers[question.line].number == question.expected for question in pairs)
    low, high = wilson_interval(right, len(pairs), level)
    models = [record["model"] for record in records if record["kind"] == ARM and record["arm"] == spec.name]
    return ArmAccuracy(
        name=spec.name,
        label=spec.label,
        model=models[-1] if models else None,
        right=right,
        accuracy=right / len(pairs) if pairs else 0.0,
        low=low,
        high=high,
        invalid=sum(answer.number is None for answer in own),
        cut_off=sum(answer.cut_off for answer in own),
        failed=sum(question.line not in answers for question in plan.questions),
        new_tokens=sum(answer.new_tokens for answer in own) / len(own) if own else 0.0,
    )


def _same(a: _Answer, b: _Answer) -> bool:
    return a.token_ids == b.token_ids if a.token_ids and b.token_ids else a.text == b.text


def _tokens(records: Sequence[Mapping[str, Any]]) -> Comparison | None:
    found = {}
    for record in records:
        if record["kind"] == OUTPUTS:
            rows = record["outputs"]
            found[record["arm"]] = [Output(r["text"], tuple(r["tokens"]), tuple(r["logprobs"])) for r in rows]
    return compare(*(found[name] for name in NAMES)) if len(found) == len(NAMES) else None


def _disagreements(
    pairs: Sequence[Question], a: Mapping[int, _Answer], b: Mapping[int, _Answer]
) -> tuple[Disagreement, ...]:
    found = []
    for question in pairs:
        own = (a[question.line].number, b[question.line].number)
        if (own[0] == question.expected) != (own[1] == question.expected):
            right = NAMES[0] if own[0] == question.expected else NAMES[1]
            expected, a_text, b_text = (number_text(number) for number in (question.expected, *own))
            found.append(Disagreement(question.line, expected, a_text, b_text, right))
    return tuple(found)


def _errors(records: Sequence[Mapping[str, Any]], answers: Mapping[str, Mapping[int, _Answer]]) -> tuple[str, ...]:
    """Each different error once, of requests that have no answer to this day."""
    open_ones = [r for r in records if r["kind"] == FAILURE and r["line"] not in answers[r["arm"]]]
    return tuple(dict.fromkeys(f"arm {r['arm']}: {r['error']}" for r in open_ones))
