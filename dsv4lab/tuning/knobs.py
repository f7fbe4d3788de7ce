"""What a search session varies: knobs with their values, settings of them, and the space that they span."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from dsv4lab.config import checks
from dsv4lab.errors import UsageError

KnobValue = str | int | float | bool | None

LIVE, PROCESS, LOAD = "live", "process", "load"
SCOPES = (LIVE, PROCESS, LOAD)
"""A live knob changes between two blocks; a process knob takes a fresh process; a load knob changes what is measured,
so that settings are compared with each other only where all load knobs are equal."""

CONCURRENCY, PROMPT_TOKENS, MAX_NEW_TOKENS, RATE = "concurrency", "prompt_tokens", "max_new_tokens", "rate"
LOAD_KNOBS = (CONCURRENCY, PROMPT_TOKENS, MAX_NEW_TOKENS, RATE)
ENV_PREFIX, FLAG_PREFIX = "env:", "flag:"
"""``env:NAME`` is an environment variable of the target's process (None: unset), ``flag:--name`` an option of its
command line (None: left out, True: given without a value)."""

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FLAG_NAME = re.compile(r"--?[A-Za-z][\w.-]*")
_WORDS = {
    "hw_queues": "{} queues",
    "side_streams": "{} side streams",
    CONCURRENCY: "concurrency {}",
    PROMPT_TOKENS: "{} prompt tokens",
    MAX_NEW_TOKENS: "{} new tokens",
    RATE: "{}/s",
}
_ABSENT = {"side_streams": "side streams as planned", RATE: "no rate"}


@dataclass(frozen=True, slots=True)
class Knob:
    """Something to vary, and the values that it takes, at least one. Raises :class:`UsageError` naming the knob."""

    name: str
    values: tuple[KnobValue, ...]
    scope: str

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise UsageError(f"knob {self.name}: scope is {self.scope!r}, it takes {checks.one_of(SCOPES)}")
        if (self.name in LOAD_KNOBS) != (self.scope == LOAD):
            raise UsageError(f"knob {self.name}: scope is {self.scope}; {checks.one_of(LOAD_KNOBS)} are load knobs")
        _check_name(self.name)
        if not self.values:
            raise UsageError(f"knob {self.name}: got no value, it takes at least one")
        for value in self.values:
            if not _is_value(value):
                raise UsageError(f"knob {self.name}: got {checks.shown(value)}, it takes text and finite numbers")
            if self.values.count(value) > 1:
                raise UsageError(f"knob {self.name}: got {value} more than once, every value can be given once")

    def own(self, value: KnobValue) -> KnobValue:
        """The knob's value that equals ``value``. Raises :class:`UsageError` if none does."""
        if value not in self.values:
            raise UsageError(f"knob {self.name}: got {value}, it takes {checks.one_of(self.values)}")
        return self.values[self.values.index(value)]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"name": self.name, "values": list(self.values), "scope": self.scope}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_json`."""
        return cls(data["name"], tuple(data["values"]), data["scope"])


@dataclass(frozen=True, slots=True)
class Setting:
    """Knobs with one value each, in the order of their space. Equal settings have equal items."""

    items: tuple[tuple[str, KnobValue], ...] = ()

    @classmethod
    def of(cls, **values: KnobValue) -> Self:
        """A setting of knobs whose names are identifiers."""
        return cls(tuple(values.items()))

    @property
    def names(self) -> tuple[str, ...]:
        """The knobs that it sets."""
        return tuple(name for name, _ in self.items)

    def get(self, name: str, default: KnobValue = None) -> KnobValue:
        """The value of the knob ``name``; ``default`` where the setting does not set it."""
        return next((value for own, value in self.items if own == name), default)

    def only(self, names: Sequence[str]) -> Setting:
        """The part that sets ``names``."""
        return Setting(tuple(item for item in self.items if item[0] in names))

    def without(self, names: Sequence[str]) -> Setting:
        """The part that sets other knobs than ``names``."""
        return Setting(tuple(item for item in self.items if item[0] not in names))

    def replace(self, name: str, value: KnobValue) -> Setting:
        """The same with another value of a knob that it sets. Raises :class:`UsageError` if it does not set it."""
        if name not in self.names:
            raise UsageError(f"knob {name}: the setting has {', '.join(self.names) or 'no knobs'}")
        return Setting(tuple((own, value if own == name else old) for own, old in self.items))

    @property
    def env(self) -> dict[str, str | None]:
        """What its ``env:`` knobs change in the environment of the process; None takes a variable out."""
        return {
            name.removeprefix(ENV_PREFIX): None if value is None else _word(value)
            for name, value in self.items
            if name.startswith(ENV_PREFIX)
        }

    @property
    def flags(self) -> list[str]:
        """What its ``flag:`` knobs add to the command line of the process: nothing for None and False."""
        words: list[str] = []
        for name, value in self.items:
            if name.startswith(FLAG_PREFIX) and value is not None and value is not False:
                words += [name.removeprefix(FLAG_PREFIX), *([] if value is True else [_word(value)])]
        return words

    @property
    def label(self) -> str:
        """``hip, 4 queues, concurrency 16``."""
        return ", ".join(value_text(name, value) for name, value in self.items) or "as it is"

    def to_json(self) -> dict[str, KnobValue]:
        """Knob to value, in order."""
        return dict(self.items)

    @classmethod
    def from_json(cls, data: Mapping[str, KnobValue]) -> Self:
        """Inverse of :meth:`to_json`."""
        return cls(tuple(data.items()))


@dataclass(frozen=True, slots=True)
class KnobSpace:
    """The product of the knobs' values. ``baseline`` sets every knob that is no load knob: every gain is against it.

    Raises :class:`UsageError` naming the knob on a name given twice, and on a baseline outside the space.
    """

    knobs: tuple[Knob, ...]
    baseline: Setting

    def __post_init__(self) -> None:
        names = [knob.name for knob in self.knobs]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"knob {name}: given more than once")
        object.__setattr__(self, "baseline", self._checked(self.baseline, self.tuned_names, "baseline"))

    @property
    def tuned_names(self) -> tuple[str, ...]:
        """Knobs that are searched: all but the load knobs."""
        return self.names(LIVE, PROCESS)

    @property
    def load_names(self) -> tuple[str, ...]:
        """Knobs that make strata: settings are compared inside one combination of their values."""
        return self.names(LOAD)

    def names(self, *scopes: str) -> tuple[str, ...]:
        """The knobs of these scopes, in order."""
        return tuple(knob.name for knob in self.knobs if knob.scope in scopes)

    def knob(self, name: str) -> Knob:
        """The knob called ``name``. Raises :class:`UsageError` if there is none."""
        for knob in self.knobs:
            if knob.name == name:
                return knob
        raise UsageError(f"knob {name}: there is none, this space has {', '.join(k.name for k in self.knobs)}")

    @property
    def size(self) -> int:
        """Points of the grid."""
        return math.prod(len(knob.values) for knob in self.knobs)

    def grid(self) -> Iterator[Setting]:
        """Every point, the last knob varying fastest."""
        return self._product([knob.name for knob in self.knobs])

    def candidates(self) -> tuple[Setting, ...]:
        """Every combination of the searched knobs, the baseline included, without load knobs."""
        return tuple(self._product(self.tuned_names))

    def strata(self) -> tuple[Setting, ...]:
        """Every combination of the load knobs; one empty setting if there are none."""
        return tuple(self._product(self.load_names))

    def setting(self, values: Mapping[str, KnobValue]) -> Setting:
        """A point of the space, checked and in the space's order."""
        return self._checked(Setting.from_json(values), tuple(k.name for k in self.knobs), "setting")

    def join(self, tuned: Setting, load: Setting) -> Setting:
        """A point of the space from its two parts."""
        return self.setting({**tuned.to_json(), **load.to_json()})

    def load_of(self, setting: Setting) -> Setting:
        """The stratum of a point."""
        return setting.only(self.load_names)

    def tuned_of(self, setting: Setting) -> Setting:
        """What is searched of a point: all but its stratum."""
        return setting.only(self.tuned_names)

    def process_of(self, setting: Setting) -> Setting:
        """What of a point takes a process of its own; points with equal values can share one."""
        return setting.only(self.names(PROCESS))

    def baseline_for(self, setting: Setting) -> Setting:
        """The baseline under the load of ``setting``."""
        return self.join(self.baseline, self.load_of(setting))

    def short(self, setting: Setting) -> str:
        """The label of what varies in this space; of all of ``setting`` if nothing of it does."""
        varied = setting.only([knob.name for knob in self.knobs if len(knob.values) > 1])
        return (varied if varied.items else setting).label

    def to_json(self) -> dict[str, Any]:
        """Plain data; two sessions with equal data search the same space."""
        return {"knobs": [knob.to_json() for knob in self.knobs], "baseline": self.baseline.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_json`."""
        return cls(tuple(Knob.from_json(knob) for knob in data["knobs"]), Setting.from_json(data["baseline"]))

    def _product(self, names: Sequence[str]) -> Iterator[Setting]:
        for values in itertools.product(*(self.knob(name).values for name in names)):
            yield Setting(tuple(zip(names, values, strict=True)))

    def _checked(self, setting: Setting, names: Sequence[str], what: str) -> Setting:
        for name in setting.names:
            if name not in names:
                raise UsageError(f"{what}: knob {name} is not among {', '.join(names) or 'none'}")
        missing = [name for name in names if name not in setting.names]
        if missing:
            raise UsageError(f"{what}: knob {missing[0]} is not set")
        return Setting(tuple((name, self.knob(name).own(setting.get(name))) for name in names))


def value_text(name: str, value: KnobValue) -> str:
    """A knob's value as people read it: ``4 queues``, ``NAME=1``, ``no --flag``."""
    if name.startswith(ENV_PREFIX):
        own = name.removeprefix(ENV_PREFIX)
        return f"{own} unset" if value is None else f"{own}={value}"
    if name.startswith(FLAG_PREFIX):
        own = name.removeprefix(FLAG_PREFIX)
        return f"no {own}" if value is None else own if value is True else f"{own} {value}"
    if value is None:
        return _ABSENT.get(name, f"no {name}")
    text = _WORDS.get(name, "{}" if isinstance(value, str) else f"{name} {{}}").format(value)
    return text[:-1] if value == 1 and text.endswith("s") and name in ("hw_queues", "side_streams") else text


def _word(value: KnobValue) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _check_name(name: str) -> None:
    for prefix, form, takes in (
        (ENV_PREFIX, _ENV_NAME, "the name of an environment variable"),
        (FLAG_PREFIX, _FLAG_NAME, "an option such as --name"),
    ):
        if name.startswith(prefix) and not form.fullmatch(name.removeprefix(prefix)):
            raise UsageError(f"knob {name}: it takes {takes} after {prefix}")
    if ":" not in name and not name.isidentifier():
        raise UsageError(f"knob {name!r}: its name is no identifier, no {ENV_PREFIX}NAME and no {FLAG_PREFIX}--name")


def _is_value(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)
