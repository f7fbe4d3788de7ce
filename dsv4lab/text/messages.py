"""Chat messages and tools, in the fields that OpenAI's API has for them, checked one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsv4lab.errors import RequestError

ROLES = ("system", "user", "assistant", "tool", "latest_reminder")
_NAME = re.compile(r"[^\"\n<>]+")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool: its name, and the arguments as a JSON text (an object, if the model wrote a right one)."""

    name: str
    arguments: str
    id: str = ""

    def to_json(self) -> dict[str, Any]:
        """As OpenAI's API has it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; ``parameters`` is a JSON schema."""

    name: str
    description: str = ""
    parameters: Any = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``prefix``: the answer goes on from this one, the assistant's."""

    role: str
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads fields of a JSON object, and names the place of one that is wrong."""

    data: Mapping[str, Any]
    place: str

    def wrong(self, name: str, takes: str) -> RequestError:
        """The error of a field."""
        value = repr(self.data.get(name))
        shown = value if len(value) <= 60 else f"{value[:57]}..."
        return RequestError(f"{self.place}.{name} is {shown}: it takes {takes}")

    def text(self, name: str, default: str | None = None) -> str:
        """A string; absent or null is ``default``, unless that is None."""
        value = self.data.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def name(self, name: str) -> str:
        """A string that can stand between double quotes in DSML."""
        value = self.text(name)
        if not _NAME.fullmatch(value):
            raise self.wrong(name, 'a name without ", <, > and line ends')
        return value

    def content(self) -> str:
        """``content``: a string, or a list of text parts, which a blank line joins."""
        value = self.data.get("content")
        if value is None or isinstance(value, str):
            return value or ""
        if not isinstance(value, Sequence):
            raise self.wrong("content", "a string or a list of text parts")
        return "\n\n".join(self._part(place, part) for place, part in enumerate(value))

    def items(self, name: str) -> list[Reader]:
        """A list of objects; absent or null is empty."""
        value = self.data.get(name)
        if value is None:
            return []
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.wrong(name, "a list of objects")
        return [reader(item, f"{self.place}.{name}[{at}]") for at, item in enumerate(value)]

    def inner(self, name: str) -> Reader:
        """An object inside this one."""
        return reader(self.data.get(name), f"{self.place}.{name}")

    def _part(self, place: int, part: object) -> str:
        inner = reader(part, f"{self.place}.content[{place}]")
        if inner.data.get("type") != "text":
            raise inner.wrong("type", "'text': these models read nothing else")
        return inner.text("text")


def reader(value: object, place: str) -> Reader:
    """``value`` as an object whose fields can be read. Raises :class:`RequestError`."""
    if not isinstance(value, Mapping):
        raise RequestError(f"{place} is {type(value).__name__}: it takes an object")
    return Reader(value, place)


def messages_of(values: object, place: str = "messages") -> tuple[Message, ...]:
    """Messages as OpenAI's API has them: ``role``, ``content``, ``tool_calls``, ``tool_call_id``; and as DeepSeek's:
    ``reasoning_content``, ``prefix``. :class:`Message` objects are taken as they are. Raises :class:`RequestError`.
    """
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence) or not values:
        raise RequestError(f"{place}: it takes a list of at least one message")
    messages = tuple(
        v if isinstance(v, Message) else _message(reader(v, f"{place}[{i}]")) for i, v in enumerate(values)
    )
    for at, message in enumerate(messages):
        if message.role not in ROLES:
            raise RequestError(f"{place}[{at}].role is {message.role!r}: it takes {', '.join(ROLES)}")
        if message.prefix and (message.role != "assistant" or at + 1 < len(messages) or message.tool_calls):
            raise RequestError(
                f"{place}[{at}].prefix: the answer can go on from the last message only, if it is the assistant's and "
                "calls no tool"
            )
    return messages


def tools_of(values: object, place: str = "tools") -> tuple[Tool, ...]:
    """Tools as OpenAI's API has them: ``{"type": "function", "function": {"name", "description", "parameters"}}``.

    :class:`Tool` objects are taken as they are. Raises :class:`RequestError`.
    """
    if values is None:
        return ()
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence):
        raise RequestError(f"{place}: it takes a list of tools")
    return tuple(v if isinstance(v, Tool) else _tool(reader(v, f"{place}[{i}]")) for i, v in enumerate(values))


def to_json(value: Any) -> str:
    """JSON as the released encoders write it: ``", "`` and ``": "`` between things, other alphabets as they are."""
    return json.dumps(value, ensure_ascii=False)


def _message(fields: Reader) -> Message:
    role = fields.text("role")
    if role not in ROLES:
        hint = " (give a developer's text as system)" if role == "developer" else ""
        raise fields.wrong("role", ", ".join(ROLES) + hint)
    prefix = fields.data.get("prefix", False)
    if not isinstance(prefix, bool):
        raise fields.wrong("prefix", "true or false")
    return Message(
        role=role,
        content=fields.content(),
        reasoning=fields.text("reasoning_content", "") if role == "assistant" else "",
        tool_calls=tuple(_call(item) for item in fields.items("tool_calls")) if role == "assistant" else (),
        tool_call_id=fields.text("tool_call_id") if role == "tool" else "",
        prefix=prefix,
    )


def _call(fields: Reader) -> ToolCall:
    function = fields.inner("function")
    return ToolCall(function.name("name"), function.text("arguments"), fields.text("id", ""))


def _tool(fields: Reader) -> Tool:
    if fields.data.get("type") != "function":
        raise fields.wrong("type", "'function'")
    function = fields.inner("function")
    parameters = function.data.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise function.wrong("parameters", "a JSON schema")
    return Tool(function.name("name"), function.text("description", ""), parameters)
