"""From what the model writes to reasoning, content and tool calls, while it writes.

The inverse of the assistant's turn in :mod:`dsv4lab.text.encoding`, to the letter: nothing is trimmed but the blank
line before tool calls. The grammar is that of ``encoding/README.md`` in the checkpoints; text that strays from it, as a
cut answer does, gives what could be read and a sentence about the rest.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum

from dsv4lab.text.messages import Message, ToolCall
from dsv4lab.text.special import DSML, END_THINK, EOS

OPEN_CALLS, CLOSE_CALLS = f"<{DSML}tool_calls>", f"</{DSML}tool_calls>"
BLANK_LINE = "\n\n"
_CLOSE_INVOKE, _CLOSE_PARAMETER = f"</{DSML}invoke>", f"</{DSML}parameter>"
_INVOKE = re.compile(rf'<{DSML}invoke name="(.*?)">', re.DOTALL)
_PARAMETER = re.compile(rf'<{DSML}parameter name="(.*?)" string="(true|false)">', re.DOTALL)
_AFTER_REASONING = (END_THINK, BLANK_LINE + OPEN_CALLS, OPEN_CALLS, EOS)
_AFTER_CONTENT = _AFTER_REASONING[1:]
_TEXT_AFTER = "there is text after the tool calls"


class Kind(StrEnum):
    """What a delta adds to."""

    REASONING = "reasoning"
    CONTENT = "content"
    CALL = "call"
    ARGUMENTS = "arguments"


@dataclass(frozen=True, slots=True)
class Delta:
    """News of a turn: ``text`` more of its reasoning, its content or the arguments of call ``index``; or the beginning
    of call ``index``, of the tool ``text``.
    """

    kind: Kind
    text: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the model. ``problem`` says what of its tool calls could not be read; arguments may then be no JSON."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    problem: str | None = None

    def message(self) -> Message:
        """The turn as a message of the conversation that goes on."""
        return Message("assistant", self.content, self.reasoning, self.tool_calls)


class _Stage(StrEnum):
    REASONING = "the reasoning"
    CONTENT = "the content"
    CALLS = "a block of tool calls"
    CALL = "a tool call"
    VALUE = "an argument of a tool call"
    AFTER = "what follows tool calls"
    DONE = "the end"


class TurnParser:
    """Feed it text as it comes, in pieces of any size, then :meth:`finish`. The deltas do not depend on the pieces, but
    for where they are cut.

    ``thinking``: the prompt opened the reasoning. ``calling``: it opened a block of tool calls.
    """

    def __init__(self, *, thinking: bool, calling: bool = False) -> None:
        self._stage = _Stage.CALLS if calling else _Stage.REASONING if thinking else _Stage.CONTENT
        self._text = ""  # not told yet
        self._string = False  # whether the argument at hand is one
        self._first = True  # whether the call at hand has no argument yet
        self._names: list[str] = []
        self._said: dict[tuple[Kind, int], list[str]] = {}
        self._problem: str | None = None
        self._news: list[Delta] = []

    @property
    def turn(self) -> Turn:
        """What has been told so far; complete after :meth:`finish`."""
        calls = tuple(
            ToolCall(name, self._all(Kind.ARGUMENTS, index), f"call_{index}") for index, name in enumerate(self._names)
        )
        return Turn(self._all(Kind.REASONING), self._all(Kind.CONTENT), calls, self._problem)

    def feed(self, text: str) -> list[Delta]:
        """What ``text`` adds. The end of it is kept back while it may be the beginning of a mark."""
        self._text += text
        while self._advance():
            pass
        return self._take()

    def finish(self) -> list[Delta]:
        """The turn is over: what was kept back, as far as it means anything."""
        if self._stage in (_Stage.REASONING, _Stage.CONTENT, _Stage.VALUE):
            self._say(len(self._text))
        if self._stage in (_Stage.CALLS, _Stage.CALL, _Stage.VALUE):
            self._problem = self._problem or f"the text ends inside {self._stage.value}"
        if self._stage is _Stage.AFTER and self._text.strip():
            self._problem = self._problem or _TEXT_AFTER
        self._stage = _Stage.DONE
        return self._take()

    def _advance(self) -> bool:
        """Handle the next mark in the text; False if there is none."""
        if self._stage is _Stage.REASONING:
            return self._prose(_AFTER_REASONING)
        if self._stage is _Stage.CONTENT:
            return self._prose(_AFTER_CONTENT)
        if self._stage is _Stage.CALLS:
            return self._between_calls()
        if self._stage is _Stage.CALL:
            return self._inside_call()
        if self._stage is _Stage.VALUE:
            return self._inside_value()
        if self._stage is _Stage.AFTER:
            return self._after_calls()
        self._text = ""
        return False

    def _prose(self, marks: tuple[str, ...]) -> bool:
        at, mark = _first(self._text, marks)
        if mark is None:
            self._say(len(self._text) - _held(self._text, marks))
            return False
        self._say(at)
        self._text = self._text[len(mark) :]
        if mark == END_THINK:
            self._stage = _Stage.CONTENT
        else:
            self._stage = _Stage.DONE if mark == EOS else _Stage.CALLS
        return True

    def _between_calls(self) -> bool:
        opened, end = _INVOKE.search(self._text), self._text.find(CLOSE_CALLS)
        if opened is not None and not 0 <= end < opened.start():
            self._skip(opened.start(), opened.end())
            self._names.append(opened[1])
            self._news.append(Delta(Kind.CALL, opened[1], len(self._names) - 1))
            self._tell(Kind.ARGUMENTS, "{")
            self._first, self._stage = True, _Stage.CALL
            return True
        if end >= 0:
            self._skip(end, end + len(CLOSE_CALLS))
            self._stage = _Stage.AFTER
            return True
        return False

    def _inside_call(self) -> bool:
        opened, end = _PARAMETER.search(self._text), self._text.find(_CLOSE_INVOKE)
        if opened is not None and not 0 <= end < opened.start():
            self._skip(opened.start(), opened.end())
            self._string = opened[2] == "true"
            comma, quote = "" if self._first else ", ", '"' if self._string else ""
            self._tell(Kind.ARGUMENTS, f"{comma}{_quoted(opened[1])}: {quote}")
            self._first, self._stage = False, _Stage.VALUE
            return True
        if end >= 0:
            self._skip(end, end + len(_CLOSE_INVOKE))
            self._tell(Kind.ARGUMENTS, "}")
            self._stage = _Stage.CALLS
            return True
        return False

    def _inside_value(self) -> bool:
        end = self._text.find(_CLOSE_PARAMETER)
        if end < 0:
            self._say(len(self._text) - _held(self._text, (_CLOSE_PARAMETER,)))
            return False
        self._say(end)
        self._text = self._text[len(_CLOSE_PARAMETER) :]
        if self._string:
            self._tell(Kind.ARGUMENTS, '"')
        self._stage = _Stage.CALL
        return True

    def _after_calls(self) -> bool:
        rest = self._text.lstrip()
        if EOS.startswith(rest) and rest != EOS:
            return False
        if not rest.startswith(EOS):
            self._problem = self._problem or _TEXT_AFTER
        self._stage = _Stage.DONE
        return True

    def _skip(self, start: int, end: int) -> None:
        """Drop a mark and the white space before it; anything else there is no part of the format."""
        if self._text[:start].strip():
            self._problem = self._problem or f"there is text that is no part of {self._stage.value}"
        self._text = self._text[end:]

    def _say(self, length: int) -> None:
        """Tell so much of the text at hand."""
        if length <= 0:
            return
        piece, self._text = self._text[:length], self._text[length:]
        if self._stage is _Stage.REASONING:
            self._tell(Kind.REASONING, piece)
        elif self._stage is _Stage.CONTENT:
            self._tell(Kind.CONTENT, piece)
        else:
            self._tell(Kind.ARGUMENTS, _quoted(piece)[1:-1] if self._string else piece)

    def _tell(self, kind: Kind, text: str) -> None:
        index = len(self._names) - 1 if kind is Kind.ARGUMENTS else 0
        self._news.append(Delta(kind, text, index))
        self._said.setdefault((kind, index), []).append(text)

    def _all(self, kind: Kind, index: int = 0) -> str:
        return "".join(self._said.get((kind, index), ()))

    def _take(self) -> list[Delta]:
        news, self._news = self._news, []
        return news


def parse_turn(text: str, *, thinking: bool, calling: bool = False) -> Turn:
    """A whole answer at once; see :class:`TurnParser`."""
    parser = TurnParser(thinking=thinking, calling=calling)
    parser.feed(text)
    parser.finish()
    return parser.turn


def _first(text: str, marks: tuple[str, ...]) -> tuple[int, str | None]:
    """Where the earliest mark begins, the longest of those that do; (-1, None) if there is none."""
    found = [(text.find(mark), -len(mark), mark) for mark in marks if mark in text]
    return (min(found)[0], min(found)[2]) if found else (-1, None)


def _held(text: str, marks: tuple[str, ...]) -> int:
    """Length of the longest end of ``text`` that is the beginning of a mark."""
    longest = min(len(text), max(map(len, marks)) - 1)
    for length in range(longest, 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
