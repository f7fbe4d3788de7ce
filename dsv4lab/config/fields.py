"""A JSON object read field by field, with errors that name file, field, what was found and what it takes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from dsv4lab.config import checks
from dsv4lab.errors import ConfigError

MAX_DIMENSION = 2**31 - 1
_T = TypeVar("_T")


class Fields:
    """Typed access to the members of one JSON object; a null counts as absent.

    Every reader takes an optional ``default``; without one the field is required.
    """

    def __init__(self, data: Mapping[str, object], source: str, path: str = "") -> None:
        self._data = data
        self.source = source
        self._path = path

    def has(self, name: str) -> bool:
        """Whether ``name`` is there and not null."""
        return self._data.get(name) is not None

    def is_null(self, name: str) -> bool:
        """Whether ``name`` is there and null."""
        return name in self._data and self._data[name] is None

    def raw(self, name: str) -> object:
        """The value as it stands, None when absent."""
        return self._data.get(name)

    def full(self, name: str) -> str:
        """``name`` with the path of the enclosing object."""
        return f"{self._path}{name}"

    def error(self, name: str, expected: str) -> ConfigError:
        """The error for a present but unfit value of ``name``."""
        return checks.mismatch(self.source, self.full(name), self.raw(name), expected)

    def missing(self, name: str, expected: str) -> ConfigError:
        """The error for an absent ``name``, with the likely misspelling if there is one."""
        close = difflib.get_close_matches(name, list(self._data), 1, 0.9)
        hint = f" (there is a {close[0]!r})" if close and close[0] != name else ""
        return ConfigError(f"{self.source}: {self.full(name)}: missing, expected {expected}{hint}")

    def integer(self, name: str, low: int = 1, high: int = MAX_DIMENSION, default: int | None = None) -> int:
        """An integer within ``[low, high]``."""
        if not self.has(name):
            return self._default(name, default, f"an integer of at least {low}")
        return checks.integer(self.source, self.full(name), self.raw(name), low, high)

    def number(self, name: str, above: float | None = 0.0, default: float | None = None) -> float:
        """A finite number, greater than ``above`` unless that is None."""
        if not self.has(name):
            return self._default(name, default, "a number" if above is None else f"a number above {above:g}")
        return checks.number(self.source, self.full(name), self.raw(name), above)

    def boolean(self, name: str, default: bool | None = None) -> bool:
        """True or false."""
        if not self.has(name):
            return self._default(name, default, "true or false")
        return checks.boolean(self.source, self.full(name), self.raw(name))

    def choice(self, name: str, allowed: Iterable[str], default: str | None = None) -> str:
        """One of the strings ``allowed``."""
        options = tuple(allowed)
        if not self.has(name):
            return self._default(name, default, checks.one_of(options))
        return checks.choice(self.source, self.full(name), self.raw(name), options)

    def strings(self, name: str, allowed: Iterable[str]) -> tuple[str, ...]:
        """A required list of the strings ``allowed``."""
        options = tuple(allowed)
        values = self._list(name, checks.one_of(options))
        where = self.full(name)
        return tuple(checks.choice(self.source, f"{where}[{i}]", value, options) for i, value in enumerate(values))

    def integers(self, name: str, low: int = 0, high: int = MAX_DIMENSION) -> tuple[int, ...]:
        """A required list of integers within ``[low, high]``."""
        values = self._list(name, "integers")
        where = self.full(name)
        return tuple(checks.integer(self.source, f"{where}[{i}]", value, low, high) for i, value in enumerate(values))

    def child(self, name: str) -> Fields:
        """The required object ``name``."""
        value = self.raw(name)
        if not isinstance(value, Mapping):
            expected = "an object"
            raise self.missing(name, expected) if value is None else self.error(name, expected)
        return Fields(value, self.source, f"{self.full(name)}.")

    def same(self, name: str, wanted: object, why: str) -> None:
        """Refuse ``name`` if it is there and differs from ``wanted``; ``why`` says what is unsupported."""
        value = self.raw(name)
        if value is not None and (isinstance(value, bool) is not isinstance(wanted, bool) or value != wanted):
            raise self.error(name, f"{checks.shown(wanted)} ({why})")

    def _list(self, name: str, of: str) -> list[object]:
        value = self.raw(name)
        if not isinstance(value, (list, tuple)):
            expected = f"a list of {of}"
            raise self.missing(name, expected) if value is None else self.error(name, expected)
        return list(value)

    def _default(self, name: str, default: _T | None, expected: str) -> _T:
        if default is None:
            raise self.missing(name, expected)
        return default
