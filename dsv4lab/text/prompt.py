"""A rendered prompt: text in which every special token is told from text that merely looks like one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dsv4lab.text.special import DSML, END_THINK, PATTERN, TASKS, THINK

_STAGES = {THINK, END_THINK, *TASKS.values()}


class Part(NamedTuple):
    """A special token, or plain text, whatever it spells."""

    text: str
    special: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """Parts in order; two plain ones never touch, and none is empty."""

    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The prompt as one string, as the released encoders print it. It does not tell special tokens from text."""
        return "".join(part.text for part in self.parts)

    @property
    def opens_reasoning(self) -> bool:
        """Whether what the model writes next is reasoning."""
        marks = (text for text, special in reversed(self.parts) if special and text in _STAGES)
        return next(marks, None) == THINK

    @property
    def opens_calls(self) -> bool:
        """Whether what the model writes next is inside a block of tool calls."""
        return self.parts[-2:] == (Part(DSML, True), Part("tool_calls>\n"))

    @property
    def special_ranges(self) -> list[tuple[int, int]]:
        """``[start, end)`` of every special token in :attr:`text`."""
        found, at = [], 0
        for text, special in self.parts:
            if special:
                found.append((at, at + len(text)))
            at += len(text)
        return found


class Writer:
    """Collects the parts of a prompt."""

    def __init__(self) -> None:
        self._parts: list[Part] = []

    def token(self, *tokens: str) -> None:
        """Special tokens."""
        self._parts += [Part(token, True) for token in tokens]

    def text(self, text: str) -> None:
        """Text of a user or a model: nothing in it is special."""
        if text and self._parts and not self._parts[-1].special:
            text = self._parts.pop().text + text
        if text:
            self._parts.append(Part(text))

    def fixed(self, text: str) -> None:
        """A text of the format itself, in which ``<think>``, ``</think>`` and the DSML mark are special."""
        at = 0
        for match in PATTERN.finditer(text):
            self.text(text[at : match.start()])
            self.token(match[0])
            at = match.end()
        self.text(text[at:])

    def joined(self, texts: Iterable[str], glue: str) -> None:
        """Several texts with ``glue`` between them."""
        self.text(glue.join(texts))

    def prompt(self) -> Prompt:
        """What has been collected."""
        return Prompt(tuple(self._parts))
