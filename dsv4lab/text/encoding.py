"""From a conversation to a prompt, as the DeepSeek-V4 models were trained to read it.

The format is that of ``deepseek-recipe`` (``deepseek-ai/deepseek-recipe``, ``DeepseekV4Encoding``), the maker's own and
latest encoder, and of ``encoding/README.md`` in the checkpoints; docs/text.md says where the two differ. Like the
former, and unlike the checkpoints' own script, it keeps special tokens apart from text that spells one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from dsv4lab.errors import RequestError
from dsv4lab.text.effort import OFFICIAL, PROFILES, effort_prefix
from dsv4lab.text.messages import Message, Tool, ToolCall, messages_of, to_json, tools_of
from dsv4lab.text.prompt import Prompt, Writer
from dsv4lab.text.special import (
    ASSISTANT,
    BOS,
    DSML,
    END_THINK,
    EOS,
    JSON_OBJECT,
    REMINDER,
    SCHEMA_BEFORE,
    TASKS,
    THINK,
    TOOLS_AFTER,
    TOOLS_BEFORE,
    USER,
)

TOOL_CHOICES = ("auto", "none", "required")


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a conversation is put to the model.

    ``thinking``: the answer starts with reasoning. ``effort`` is a level of :data:`dsv4lab.text.effort.EFFORTS`, read
    by ``profile`` (None: official); ``"none"`` turns thinking off. ``tool_choice`` ``"required"`` opens a tool call,
    ``"none"`` hides the tools. ``response_format`` is ``"json_object"`` or a JSON schema; it is asked for, not
    enforced. ``task`` asks for one of :data:`dsv4lab.text.special.TASKS` instead of the next turn. Raises
    :class:`RequestError`.
    """

    thinking: bool = True
    effort: str | None = None
    tool_choice: str = "auto"
    response_format: str | Mapping[str, Any] | None = None
    task: str | None = None
    profile: str | None = None

    def __post_init__(self) -> None:
        if self.profile is not None and self.profile not in PROFILES:
            raise RequestError(f"profile is {self.profile!r}: it takes {', '.join(PROFILES)}")
        if self.effort != "none":
            effort_prefix(self.effort, self.profile or OFFICIAL)
        if self.tool_choice not in TOOL_CHOICES:
            raise RequestError(f"tool_choice is {self.tool_choice!r}: it takes {', '.join(TOOL_CHOICES)}")
        if self.tool_choice == "required" and self.thinks:
            raise RequestError("tool_choice is 'required': the model reasons before it calls, so turn thinking off")
        if isinstance(self.response_format, str) and self.response_format != "json_object":
            raise RequestError(f"response_format is {self.response_format!r}: it takes 'json_object' or a JSON schema")
        if self.task is not None and self.task not in TASKS:
            raise RequestError(f"task is {self.task!r}: it takes {', '.join(TASKS)}")

    @property
    def thinks(self) -> bool:
        """Whether the answer starts with reasoning."""
        return self.thinking and self.effort != "none"


def encode_chat(messages: object, tools: object = None, options: ChatOptions | None = None) -> Prompt:
    """The prompt for the turn after ``messages`` (see :func:`messages_of` and :func:`tools_of` for what they may be).

    Raises :class:`RequestError`, naming the field.
    """
    return _Encoder(messages_of(messages), tools_of(tools), options or ChatOptions()).encode()


class _Encoder:
    def __init__(self, messages: tuple[Message, ...], tools: tuple[Tool, ...], options: ChatOptions) -> None:
        self._messages = messages
        self._tools = () if options.tool_choice == "none" else tools
        self._options = options
        self._out = Writer()

    def encode(self) -> Prompt:
        o = self._options
        self._out.token(BOS)
        if o.thinks:
            self._out.text(effort_prefix(o.effort, o.profile or OFFICIAL))
        self._head([m.content for m in self._messages if m.role == "system" and m.content])
        calls: dict[str, int] = {}
        for role, group in _turns(m for m in self._messages if m.role != "system"):
            if role == "user":
                self._user(group, calls)
            elif role == "assistant":
                calls = {call.id: place for place, call in enumerate(group[0].tool_calls)}
                self._assistant(group[0])
            else:
                self._out.token(REMINDER)
                self._out.text(group[0].content)
        self._tail(self._messages[-1])
        return self._out.prompt()

    def _head(self, system: Sequence[str]) -> None:
        """System texts, wherever they were, then tools and answer format, each after a blank line."""
        self._out.joined(system, "\n\n")
        if self._tools:
            self._out.fixed(f"\n\n{TOOLS_BEFORE}")
            schemas = ({"name": t.name, "description": t.description, "parameters": t.parameters} for t in self._tools)
            self._out.joined(map(to_json, schemas), "\n")
            self._out.text(TOOLS_AFTER)
        form = self._options.response_format
        if form == "json_object":
            self._out.text(f"\n\n{JSON_OBJECT}")
        elif form is not None:
            self._out.text(f"\n\n{SCHEMA_BEFORE}{to_json(form)}")

    def _user(self, group: Sequence[Message], calls: Mapping[str, int]) -> None:
        """Tool results in the order of their calls (those of no call after them), then what the user wrote."""
        results = [m for m in group if m.role == "tool"]
        results.sort(key=lambda m: calls.get(m.tool_call_id, len(calls)))
        blocks = [f"<tool_result>{m.content}</tool_result>" for m in results]
        if len(results) < len(group):
            blocks.append("\n\n".join(m.content for m in group if m.role == "user" and m.content))
        self._out.token(USER)
        self._out.joined(blocks, "\n\n")

    def _assistant(self, message: Message) -> None:
        """A turn of the model. Of its reasoning nothing stays, unless there are tools or the answer goes on from it."""
        out, unfinished = self._out, message.prefix
        out.token(ASSISTANT)
        if self._options.thinks and (self._tools or unfinished):
            out.token(THINK)
            out.text(message.reasoning)
            if unfinished and not message.content:
                return
        out.token(END_THINK)
        out.text(message.content)
        if message.tool_calls:
            write_calls(out, message.tool_calls)
        if not unfinished:
            out.token(EOS)

    def _tail(self, last: Message) -> None:
        """What makes the model go on with its own turn, or with a task."""
        o, out = self._options, self._out
        if o.task is not None and o.task != "action":
            out.token(TASKS[o.task])
            return
        if not last.prefix:
            out.token(ASSISTANT, THINK if o.thinks else END_THINK)
        if o.task is not None:
            out.token(TASKS[o.task])
        elif o.tool_choice == "required" and self._tools:
            out.fixed(f"\n\n<{DSML}tool_calls>\n")


def write_calls(out: Writer, calls: Iterable[ToolCall]) -> None:
    """A block of tool calls: string arguments as they are, all others as JSON; no escapes exist.

    Arguments that are no JSON object become one string argument named ``arguments``.
    """
    out.fixed(f"\n\n<{DSML}tool_calls>\n")
    for call in calls:
        out.fixed(f"<{DSML}invoke name=")
        out.text(f'"{call.name}">\n')
        for key, value in _arguments(call.arguments).items():
            string = isinstance(value, str)
            out.fixed(f"<{DSML}parameter name=")
            out.text(f'"{key}" string="{"true" if string else "false"}">{value if string else to_json(value)}')
            out.fixed(f"</{DSML}parameter>\n")
        out.fixed(f"</{DSML}invoke>\n")
    out.fixed(f"</{DSML}tool_calls>")


def _arguments(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": text}


def _turns(messages: Iterable[Message]) -> list[tuple[str, list[Message]]]:
    """Messages by turn: tool results with the user's words after them; the words of a user, several in a row."""
    turns: list[tuple[str, list[Message]]] = []
    for role, group in groupby(messages, key=lambda m: m.role):
        if role in ("user", "tool"):
            mine = list(group)
            if role == "user" and turns and turns[-1][0] == "user" and turns[-1][1][-1].role == "tool":
                turns[-1][1].extend(mine)
            else:
                turns.append(("user", mine))
        else:
            turns += [(role, [message]) for message in group]
    return turns
