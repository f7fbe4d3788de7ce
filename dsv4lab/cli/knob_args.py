"""``--env`` and ``--flag``: knobs of the process that a session measures, as options of a command."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from dsv4lab.errors import UsageError

if TYPE_CHECKING:
    from dsv4lab.tuning.knobs import Knob, KnobValue

UNSET, ABSENT, PRESENT = "unset", "absent", "present"
"""``unset`` takes a variable out of the environment; ``absent`` leaves a flag out, ``present`` gives it no value."""


def add_knob_arguments(parser: argparse.ArgumentParser) -> None:
    """``--env NAME=V1,V2`` and ``--flag --name=V1,V2``."""
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=V1,V2",
        help="values of an environment variable, the first is the baseline; unset: without it (repeatable)",
    )
    parser.add_argument(
        "--flag",
        action="append",
        default=[],
        metavar="--NAME=V1,V2",
        help="values of a server's option, the first is the baseline; absent: without it, present: without a value. "
        "Values with commas: a JSON list (repeatable; write --flag=--name=...)",
    )


def env_knobs(args: argparse.Namespace) -> list[Knob]:
    """The knobs of ``--env``. Raises :class:`UsageError`."""
    from dsv4lab.tuning.knobs import ENV_PREFIX

    return [_knob("--env", text, ENV_PREFIX, {UNSET: None}) for text in args.env]


def flag_knobs(args: argparse.Namespace) -> list[Knob]:
    """The knobs of ``--flag``. Raises :class:`UsageError`."""
    from dsv4lab.tuning.knobs import FLAG_PREFIX

    return [_knob("--flag", text, FLAG_PREFIX, {ABSENT: None, PRESENT: True}) for text in args.flag]


def _knob(option: str, text: str, prefix: str, words: dict[str, KnobValue]) -> Knob:
    from dsv4lab.tuning.knobs import FLAG_PREFIX, PROCESS, Knob

    name, equals, values = text.partition("=")
    if not name or not equals:
        raise UsageError(f"{option} {text}: it takes NAME=VALUE,VALUE,...")
    if prefix == FLAG_PREFIX and not name.startswith("-"):
        name = f"--{name}"
    try:
        return Knob(prefix + name, tuple(words.get(word, word) for word in _values(option, values)), PROCESS)
    except UsageError as error:
        raise UsageError(f"{option} {text}: {error}") from None


def _values(option: str, text: str) -> list[str]:
    if not text.startswith("["):
        return [word.strip() for word in text.split(",")]
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{option}: {text} is no JSON list: {error}") from None
    if not isinstance(found, list) or not all(isinstance(value, str | int | float) for value in found):
        raise UsageError(f"{option}: {text}: a list of texts and numbers is what it takes")
    return [value if isinstance(value, str) else json.dumps(value) for value in found]
