"""Questions with numbers for answers, out of a file of JSON lines, and the prompts that ask them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from dsv4lab.errors import UsageError
from dsv4lab.evaluate.numbers import final_number

CHAT_INSTRUCTION = 'Think step by step. Then give the final number on a last line of its own, after "####".'
"""What a chat is asked for unless the user says otherwise; a completion is shown examples instead."""


@dataclass(frozen=True, slots=True)
class Question:
    """One line of a file. ``answer`` is as written there; ``expected`` is the number that it ends in."""

    line: int
    question: str
    answer: str
    expected: Fraction


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """How a question is asked: as a chat or as a text to be completed, after ``shots`` as worked examples."""

    chat: bool = False
    shots: tuple[Question, ...] = ()
    instruction: str = ""

    def prompt(self, question: Question) -> str:
        """The text that is sent."""
        examples = [f"Question: {shot.question}\nAnswer: {shot.answer}" for shot in self.shots]
        if self.chat:
            asked = f"Question: {question.question}" if examples else question.question
            parts = [*examples, asked, *([self.instruction] if self.instruction else [])]
        else:
            asked = f"Question: {question.question}\nAnswer:"
            parts = [*([self.instruction] if self.instruction else []), *examples, asked]
        return "\n\n".join(parts)

    @property
    def stop(self) -> tuple[str, ...]:
        """Where a completion ends: a model that goes on to invent questions is cut off."""
        return () if self.chat else ("\nQuestion:",)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"chat": self.chat, "shots": [shot.line for shot in self.shots], "instruction": self.instruction}


def read_questions(path: Path) -> list[Question]:
    """The questions of ``path``: JSON lines, each an object with ``question`` and ``answer``, as GSM8K has them.

    An answer is a number or a text that ends in one (see :func:`dsv4lab.evaluate.numbers.final_number`). Raises
    :class:`UsageError` naming file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    found = [_question(line, number, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise UsageError(f"{path}: there is no question in it")
    return found


def digest_of(questions: Sequence[Question]) -> str:
    """A short name: equal for equal questions and answers."""
    text = json.dumps([(q.question, q.answer) for q in questions])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _question(line: str, number: int, place: str) -> Question:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{place}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{place}: it takes an object with question and answer")
    question, answer = data.get("question"), data.get("answer")
    if not isinstance(question, str) or not question.strip():
        raise UsageError(f"{place}: question is {_shown(question)}, it takes a text")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = str(answer)
    if not isinstance(answer, str):
        raise UsageError(f"{place}: answer is {_shown(answer)}, it takes a number or a text that ends in one")
    expected = final_number(answer)
    if expected is None:
        raise UsageError(f"{place}: answer {_shown(answer)} has no number in it")
    return Question(number, question.strip(), answer.strip(), expected)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return "missing" if value is None else text if len(text) <= 60 else f"{text[:57]}..."
