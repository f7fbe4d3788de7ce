"""Repair of single damaged events. Used only on text that did not parse; every repair is counted by kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from dsv4lab.trace.load.events import Event, read_one

_Found = TypeVar("_Found")

MAX_EVENT = 1 << 18
_STRING = rb'"(?:[^"\\]|\\.)*"'
_NON_FINITE = re.compile(_STRING + rb"|-?\b(?:NaN|Infinity|nan|inf|Inf)\b", re.DOTALL)
_ESCAPE = re.compile(rb'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_IN_STRING = re.compile(_STRING, re.DOTALL)
_BREAKS = re.compile(rb"[\t\n\r]")
_MISSING = re.compile(_STRING + rb"|:(\s*)(?=[,}\]])", re.DOTALL)
_SURROGATE = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_NAME_OPENS = re.compile(rb'"name"\s*:\s*"')
_NAME_CLOSES = re.compile(rb'"\s*(?:,\s*"(?:pid|tid|ph|cat|ts|dur|args|id|s|bp|name)"\s*:|\})')
_VALUE_OPENS = re.compile(rb':\s*"')
_VALUE_CLOSES = re.compile(rb'"\s*(?:,\s*"[^"\\]{1,64}"\s*:|[}\]])')
_BARE_QUOTE = re.compile(rb'(?<!\\)((?:\\\\)*)"')


def _utf8(text: bytes) -> bytes:
    return text.decode("utf-8", "replace").encode("utf-8")


def _control(text: bytes) -> bytes:
    return _CONTROL.sub(b" ", text)


def _line_breaks(text: bytes) -> bytes:
    return _IN_STRING.sub(lambda m: _BREAKS.sub(b" ", m[0]), text)


def _non_finite(text: bytes) -> bytes:
    return _NON_FINITE.sub(lambda m: m[0] if m[0][:1] == b'"' else b"null", text)


def _surrogates(text: bytes) -> bytes:
    return _SURROGATE.sub(lambda m: m[0] if m[1] else rb"\ufffd", text)


def _missing(text: bytes) -> bytes:
    return _MISSING.sub(lambda m: m[0] if m[0][:1] == b'"' else b": null", text)


def _escapes(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda m: m[0] if m[1] else rb"\\", text)


def _inner(value: bytes) -> bytes:
    """The inside of a string with its lone backslashes doubled and its bare quotes escaped."""
    return _BARE_QUOTE.sub(rb'\1\\"', _escapes(value))


def _name_quotes(text: bytes) -> bytes:
    """A name ends where one of an event's own keys follows, whatever quotes it holds."""
    opens = _NAME_OPENS.search(text)
    closes = _NAME_CLOSES.search(text, opens.end()) if opens else None
    if opens is None or closes is None:
        return text
    return text[: opens.end()] + _inner(text[opens.end() : closes.start()]) + text[closes.start() :]


def _value_quotes(text: bytes) -> bytes:
    """A string value ends where a key or the end of its object follows; one pass over the text."""
    out, at = [], 0
    while (opens := _VALUE_OPENS.search(text, at)) and (closes := _VALUE_CLOSES.search(text, opens.end())):
        out += [text[at : opens.end()], _inner(text[opens.end() : closes.start()])]
        at = closes.start()
        out.append(text[at : at + 1])
        at += 1
    return b"".join((*out, text[at:]))


STEPS: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("invalid utf-8", _utf8),
    ("control character", _control),
    ("non-finite number", _non_finite),
    ("missing value", _missing),
    ("lone surrogate", _surrogates),
    ("lone backslash", _escapes),
    ("bare quote", _name_quotes),
    ("bare quote", _value_quotes),
    ("control character", _line_breaks),
)


def repair(text: bytes) -> tuple[Event, list[str]] | None:
    """The event in ``text`` and the kinds of repair it took; ``None`` if no repairs make it an event."""
    return mended(text, read_one)


def mended(text: bytes, read: Callable[[bytes], _Found | None]) -> tuple[_Found, list[str]] | None:
    """What ``read`` finds in ``text`` after as many repairs as it takes, and their kinds; each builds on those before.

    ``None`` if ``read`` finds nothing after all of them.
    """
    found = read(text)
    if found is not None:
        return found, []
    if len(text) > MAX_EVENT:
        return None
    kinds: list[str] = []
    for kind, step in STEPS:
        changed = step(text)
        if changed == text:
            continue
        text = changed
        if kind not in kinds:
            kinds.append(kind)
        found = read(text)
        if found is not None:
            return found, kinds
    return None
