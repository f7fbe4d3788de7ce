"""Fields of a JSON request, read one by one: each is checked, and one that nobody reads is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dsv4lab.serve.problems import Problem, bad

_SHOWN = 60


def decode_object(body: bytes) -> dict[str, Any]:
    """``body`` as a JSON object. Raises :class:`Problem` 400: not JSON, not UTF-8, no object, nested too deep."""
    try:
        data = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Problem(400, f"the body is not JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise Problem(400, "the body is nested too deep", code="invalid_json") from None
    if not isinstance(data, dict):
        raise Problem(400, f"the body is a JSON {type(data).__name__}: it takes an object", code="invalid_json")
    return data


class Fields:
    """The fields of one object. Null counts as absent, as OpenAI's API has it. All getters raise :class:`Problem`."""

    def __init__(self, data: Mapping[str, Any], place: str = "") -> None:
        self._data = data
        self._place = place
        self._read: set[str] = set()

    def raw(self, name: str) -> Any:
        """The value as it is; None if absent."""
        self._read.add(name)
        return self._data.get(name)

    def wrong(self, name: str, takes: str) -> Problem:
        """The error of a field that does not take its value."""
        shown = repr(self._data.get(name))
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        return bad(self._place + name, f"{self._place}{name} is {shown}: it takes {takes}")

    def whole(self, name: str, default: int, low: int, high: int | None = None) -> int:
        """An integer from ``low`` to ``high``."""
        value = self.raw(name)
        if value is None:
            return default
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value
        if not fits or (high is not None and value > high):
            takes = f"an integer, {low} or more" if high is None else f"an integer from {low} to {high}"
            raise self.wrong(name, takes)
        return int(value)

    def maybe_whole(self, name: str, low: int, high: int | None = None) -> int | None:
        """As :meth:`whole`, None if absent."""
        return None if self.raw(name) is None else self.whole(name, 0, low, high)

    def number(self, name: str, default: float) -> float:
        """A number; its range is checked by whoever uses it."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.wrong(name, "a number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        """A string; None if absent."""
        value = self.raw(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def inner(self, name: str) -> Fields | None:
        """The fields of an object inside; None if absent."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Fields(value, f"{self._place}{name}.")

    def only(self, name: str, *neutral: Any) -> None:
        """A field of OpenAI's of which only values that change nothing are taken."""
        value = self.raw(name)
        if value is not None and not any(type(value) is type(n) and value == n for n in neutral):
            raise self.wrong(name, " or ".join(["null", *map(repr, neutral)]) + " here")

    def ignore(self, *names: str) -> None:
        """Fields that say nothing about the answer."""
        self._read.update(names)

    def finish(self) -> None:
        """Refuse what nobody has read: a misspelt field is no default."""
        for name in self._data:
            if name not in self._read:
                raise bad(self._place + name, f"{self._place}{name}: there is no such field here")
