"""Questions, prompts, and what answers on record say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.errors import UsageError
from dsv4lab.evaluate.arms import ArmSpec
from dsv4lab.evaluate.plan import Plan
from dsv4lab.evaluate.questions import PromptStyle, digest_of, read_questions
from dsv4lab.evaluate.report import difference_text, markdown, verdict_text
from dsv4lab.evaluate.result import AccuracyResult, Verdict, result_of
from dsv4lab.load.process import ServerSpec

ARMS = (ArmSpec("A", "http://x:1"), ArmSpec("B", server=ServerSpec("srv", ("--plan", "hip"), {"X": "1", "Y": None})))


def written(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8")
    return path


def sums(tmp_path: Path, count: int) -> Path:
    return written(tmp_path, *({"question": f"What is {k} + 1?", "answer": f"#### {k + 1}"} for k in range(count)))


def planned(tmp_path: Path, count: int, **fields: Any) -> Plan:
    return Plan("questions.jsonl", tuple(read_questions(sums(tmp_path, count))), ARMS, **fields)


def answers(arm: str, numbers: list[int | str], first: int = 1, **fields: Any) -> list[dict[str, Any]]:
    common = {"kind": "answer", "arm": arm, "token_ids": [], "new_tokens": 4, "finish_reason": "stop", **fields}
    return [{**common, "line": first + k, "text": f"so {number}."} for k, number in enumerate(numbers)]


def outcome(tmp_path: Path, both: int, only_a: int, only_b: int, neither: int, **fields: Any) -> AccuracyResult:
    n = both + only_a + only_b + neither
    a = [k + 1 if k < both + only_a else 0 for k in range(n)]
    b = [k + 1 if k < both or both + only_a <= k < both + only_a + only_b else 0 for k in range(n)]
    return result_of(planned(tmp_path, n, **fields), [*answers("A", list(a)), *answers("B", list(b))])


def test_questions_are_read(tmp_path: Path) -> None:
    found = read_questions(
        written(tmp_path, {"question": " How many? ", "answer": 3.5}, "", {"question": "q", "answer": "so\n#### 1,000"})
    )
    assert [(q.line, q.question, q.answer, str(q.expected)) for q in found] == [
        (1, "How many?", "3.5", "7/2"),
        (3, "q", "so\n#### 1,000", "1000"),
    ]
    assert digest_of(found) != digest_of(found[:1])


BAD = {
    "{": "questions.jsonl:2: not JSON",
    "[1]": "questions.jsonl:2: it takes an object with question and answer",
    '{"answer": "1"}': "questions.jsonl:2: question is missing, it takes a text",
    '{"question": 5, "answer": "1"}': "question is 5",
    '{"question": "q"}': "questions.jsonl:2: answer is missing, it takes a number",
    '{"question": "q", "answer": true}': "answer is true",
    '{"question": "q", "answer": "many"}': 'answer "many" has no number in it',
}


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_named(line: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_questions(written(tmp_path, {"question": "q", "answer": "1"}, line))
    assert BAD[line] in str(caught.value)


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no question in it"):
        read_questions(written(tmp_path, "", " "))
    with pytest.raises(UsageError, match=r"none\.jsonl: No such file"):
        read_questions(tmp_path / "none.jsonl")


def test_prompts(tmp_path: Path) -> None:
    one, two = read_questions(sums(tmp_path, 2))
    assert PromptStyle().prompt(two) == "Question: What is 1 + 1?\nAnswer:"
    shown = PromptStyle(shots=(one,), instruction="Be brief.").prompt(two)
    assert shown == "Be brief.\n\nQuestion: What is 0 + 1?\nAnswer: #### 1\n\nQuestion: What is 1 + 1?\nAnswer:"
    assert PromptStyle(chat=True, instruction="End in #### N.").prompt(two) == "What is 1 + 1?\n\nEnd in #### N."
    assert PromptStyle().stop == ("\nQuestion:",)
    assert PromptStyle(chat=True).stop == ()


def test_a_better_arm_is_shown(tmp_path: Path) -> None:
    found = outcome(tmp_path, 80, 2, 14, 4)
    assert found.verdict is Verdict.B_BETTER
    assert found.counts.difference == pytest.approx(0.12)
    assert found.p == pytest.approx(2 * (1 + 16 + 120) / 2**16)
    assert found.low > 0
    assert [arm.right for arm in found.arms] == [82, 94]
    assert verdict_text(found) == "B is better: 100 questions were enough to show it."
    assert outcome(tmp_path, 80, 14, 2, 4).verdict is Verdict.A_BETTER
    assert [(d.line, d.right) for d in found.disagreements[:3]] == [(81, "A"), (82, "A"), (83, "B")]


def test_enough_questions_show_that_there_is_no_difference(tmp_path: Path) -> None:
    found = outcome(tmp_path, 1900, 4, 3, 93)
    assert found.verdict is Verdict.NO_DIFFERENCE
    assert "2000 questions were enough to rule out 1 point either way" in verdict_text(found)


def test_a_sure_difference_too_small_to_matter_is_none(tmp_path: Path) -> None:
    found = outcome(tmp_path, 1950, 0, 9, 41)
    assert (found.significant, found.verdict) == (True, Verdict.NO_DIFFERENCE)


def test_the_exact_test_decides(tmp_path: Path) -> None:
    found = outcome(tmp_path, 155, 13, 26, 2)
    assert found.low > 0
    assert found.verdict is Verdict.NOT_ENOUGH
    assert "p = 0.0533 (stricter than the interval, and it decides)." in difference_text(found)


def test_too_few_questions_are_called_too_few(tmp_path: Path) -> None:
    found = outcome(tmp_path, 80, 6, 9, 5)
    assert found.verdict is Verdict.NOT_ENOUGH
    assert found.detectable is not None
    assert found.needed is not None
    assert 0.09 < found.detectable < 0.15
    assert found.needed > 10_000
    assert verdict_text(found).startswith("Not enough questions to tell: at this discordance 100 show a difference of")
    assert verdict_text(found).endswith(f"1 point would take {found.needed} questions.")
    few = outcome(tmp_path, 3, 0, 0, 0)
    assert (few.verdict, few.detectable) == (Verdict.NOT_ENOUGH, None)
    assert "3 cannot show any difference" in verdict_text(few)


def test_what_is_not_answered_does_not_count(tmp_path: Path) -> None:
    plan = planned(tmp_path, 4)
    failure = {"kind": "failure", "arm": "B", "error": "status 500"}
    records = [
        {"kind": "arm", "arm": "A", "model": "m"},
        *answers("A", [1, 2, "nothing", 4]),
        *answers("B", [1, 2, "none"], finish_reason="length"),
        {**failure, "line": 4},
        {**failure, "line": 1},
    ]
    found = result_of(plan, records)
    assert found.counts.questions == 3
    assert [(arm.failed, arm.invalid, arm.cut_off) for arm in found.arms] == [(0, 1, 0), (1, 1, 3)]
    assert found.errors == ("arm B: status 500",)
    assert (found.arms[0].model, found.arms[1].model) == ("m", None)
    assert found.arms[1].label == "--plan hip, X=1, Y"
    assert "1 requests failed, so 1 of 4 questions do not count." in markdown(found)
    json.dumps(found.to_json())


def test_tokens_come_before_texts(tmp_path: Path) -> None:
    plan = planned(tmp_path, 1)
    rows = {"A": [{"text": "ab", "tokens": [1, 2], "logprobs": [-1.0, -2.0]}]}
    rows["B"] = [{"text": "ab", "tokens": [1, 3], "logprobs": [-1.5, -2.0]}]
    told = [{"kind": "outputs", "arm": arm, "outputs": own} for arm, own in rows.items()]
    same = [*answers("A", [1], token_ids=[5, 6]), *answers("B", [1], token_ids=[5, 6])]
    other = [*answers("A", [1], token_ids=[5, 6]), *answers("B", [1], token_ids=[7])]
    found = result_of(plan, [*told, *same])
    assert found.tokens is not None
    assert (found.tokens.identical, found.tokens.divergence) == (False, (0, 1, 2, 3))
    assert found.same_answers == 1
    assert result_of(plan, other).same_answers == 0
    assert result_of(plan, answers("A", [1])).tokens is None
    text = markdown(found)
    assert "differ on 1 of 1 prompts asked one by one; first at prompt 0, new token 1: 2 and 3." in text


def test_the_report_is_markdown(tmp_path: Path) -> None:
    lines = markdown(outcome(tmp_path, 80, 2, 14, 4)).splitlines()
    assert lines[0] == "# Accuracy of two arms on questions.jsonl"
    assert "| A | 82 of 100 | 82.0 % | 73.3 to 88.3 % | 0 (0.0 %) | 0 | 4 |" in lines
    assert "| A right | 80 | 2 |" in lines
    assert "| 81 | 81 | 81 | 0 | A |" in lines


def test_plans_are_checked(tmp_path: Path) -> None:
    plan = planned(tmp_path, 1)
    for fields, says in (
        ({"questions": ()}, "no question is left"),
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"silence_s": 0.0}, "silence_s"),
    ):
        with pytest.raises(UsageError, match=says):
            replace(plan, **fields)
    with pytest.raises(UsageError, match="arm A: it takes"):
        ArmSpec("A")
    assert plan.manifest()["arms"][1]["server"]["flags"] == ["--plan", "hip"]
