"""How servers of a user are launched and loaded: what a session keeps the same, and what each setting changes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dsv4lab.errors import UsageError
from dsv4lab.load.process import ServerSpec
from dsv4lab.load.spec import LoadSpec, Prompt
from dsv4lab.tuning.knobs import (
    CONCURRENCY,
    ENV_PREFIX,
    FLAG_PREFIX,
    LOAD_KNOBS,
    MAX_NEW_TOKENS,
    PROMPT_TOKENS,
    RATE,
    KnobValue,
    Setting,
)
from dsv4lab.tuning.trial import digest

_SECRET_NAME = r"api[-_]?key|secret|passw(?:or)?d|credential|[-_]token(?=\W|$)"
_SECRET = re.compile(_SECRET_NAME, re.IGNORECASE)
_SECRET_OPTION = re.compile(rf"""(-\S*(?:{_SECRET_NAME})(?:=|\s+))("[^"]*"|'[^']*'|\S+)""", re.IGNORECASE)
_HIDDEN = "***"
_COMPARED = (
    *("waves", "concurrency", "prompt_tokens", "max_new_tokens", "rate", "range_ratio", "vocab_size", "warmup"),
    *("gate_prompts", "gate_tokens", "profile_requests", "gpus", "alive"),
)


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """How servers are launched and loaded, the same for every setting. Raises :class:`UsageError`.

    A block sends ``waves`` requests per stream of its concurrency level. ``concurrency`` to ``rate`` hold where no
    knob varies them. Logs go to ``logs`` in ``folder``. ``alive`` servers may run at once: 2 keeps those of a pair,
    which then share the device.
    """

    server: ServerSpec
    folder: Path
    waves: int = 4
    concurrency: int = 1
    prompt_tokens: int = 256
    max_new_tokens: int = 32
    rate: float | None = None
    range_ratio: float = 1.0
    prompts: tuple[Prompt, ...] | None = None
    vocab_size: int | None = None
    warmup: int = 2
    gate_prompts: int = 2
    gate_tokens: int = 16
    profile_requests: int = 4
    gpus: int = 1
    silence_s: float = 120.0
    body: Mapping[str, Any] = field(default_factory=dict)
    alive: int = 1

    def __post_init__(self) -> None:
        for name in ("waves", "gate_prompts", "gate_tokens", "gpus", "alive"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: it takes an integer, 1 or more")
        self.load(Setting(), 0)

    def load(self, setting: Setting, seed: int) -> LoadSpec:
        """The load of a block."""
        level = _integer(setting.get(CONCURRENCY, self.concurrency))
        rate = setting.get(RATE, self.rate)
        return LoadSpec(
            requests=self.waves * level,
            prompt_tokens=_integer(setting.get(PROMPT_TOKENS, self.prompt_tokens)),
            max_new_tokens=_integer(setting.get(MAX_NEW_TOKENS, self.max_new_tokens)),
            range_ratio=self.range_ratio,
            concurrency=level,
            rate=None if rate is None else float(rate),
            seed=seed,
        )

    def of(self, setting: Setting) -> ServerSpec:
        """The server of a setting: the plan's, with its environment changed and its flags added."""
        for name in setting.names:
            if not name.startswith((ENV_PREFIX, FLAG_PREFIX)) and name not in LOAD_KNOBS:
                raise UsageError(f"knob {name}: a server takes {ENV_PREFIX}NAME, {FLAG_PREFIX}--name and load knobs")
        server = self.server
        return replace(server, env={**server.env, **setting.env}, flags=(*server.flags, *setting.flags))

    @property
    def facts(self) -> dict[str, Any]:
        """What makes sessions comparable, as plain data; secrets of command and environment are left out."""
        server = self.server
        prompts = None if self.prompts is None else digest(self.prompts)
        return {
            "command": hidden(server.command),
            "flags": list(server.flags),
            "env": {name: _HIDDEN if _SECRET.search(name) and value else value for name, value in server.env.items()},
            "prompts": prompts,
            **{name: getattr(self, name) for name in _COMPARED},
            "body": dict(self.body),
        }


def hidden(command: str) -> str:
    """``command`` without the values of options that hold secrets: ``--api-key ***``."""
    return _SECRET_OPTION.sub(lambda found: found[1] + _HIDDEN, command)


def _integer(value: KnobValue) -> int:
    if type(value) is not int:
        raise UsageError(f"a load takes integers of at least 1, got {value!r}")
    return value
