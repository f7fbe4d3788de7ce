"""What a load is: how many requests, of which lengths, when; and the prompts and times that follow from its seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsv4lab.errors import UsageError

FIRST_TOKEN = 2  # after the released models' begin and end tokens

Prompt = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """A load. Checked when made; raises :class:`UsageError`.

    Lengths are drawn evenly from ``range_ratio`` × the length to the length, as sglang's ``--random-range-ratio`` has
    it; 1 keeps them fixed. ``concurrency`` is the most requests in flight, None for no bound. ``rate`` is requests per
    second, their gaps exponential (a Poisson process); None sends each as soon as there is room.
    """

    requests: int
    prompt_tokens: int = 256
    max_new_tokens: int = 32
    range_ratio: float = 1.0
    concurrency: int | None = None
    rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("requests", "prompt_tokens", "max_new_tokens"):
            _positive(name, getattr(self, name))
        if self.concurrency is not None:
            _positive("concurrency", self.concurrency)
        if not 0.0 <= self.range_ratio <= 1.0:
            raise UsageError(f"range_ratio is {self.range_ratio!r}: it takes a number from 0 to 1")
        if self.rate is not None and not 0.0 < self.rate < float("inf"):
            raise UsageError(f"rate is {self.rate!r}: it takes requests per second, above 0, or None")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed!r}: it takes an integer, 0 or more")

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def arrivals_s(self) -> list[float]:
        """When each request is due, in seconds from the start; the first at once, as vLLM's client does it."""
        if self.rate is None:
            return [0.0] * self.requests
        gaps = self._random("arrivals").exponential(1.0 / self.rate, self.requests)
        gaps[0] = 0.0
        times: list[float] = np.cumsum(gaps).tolist()
        return times

    def new_tokens(self) -> list[int]:
        """New tokens of each request."""
        return self._lengths("outputs", self.max_new_tokens)

    def prompts(self, vocab_size: int) -> list[Prompt]:
        """Random token ids; request ``i`` has the same prompt whatever the number of requests."""
        if vocab_size <= FIRST_TOKEN:
            raise UsageError(f"vocab_size is {vocab_size!r}: it takes an integer above {FIRST_TOKEN}")
        lengths = self._lengths("inputs", self.prompt_tokens)
        random = [np.random.default_rng((self.seed, at)) for at in range(self.requests)]
        rows = [r.integers(FIRST_TOKEN, vocab_size, n) for r, n in zip(random, lengths, strict=True)]
        return [tuple(row.tolist()) for row in rows]

    def cycled(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """One of the given prompts for each request, over and over."""
        return [prompts[at % len(prompts)] for at in range(self.requests)]

    def _lengths(self, what: str, length: int) -> list[int]:
        least = max(1, round(self.range_ratio * length))
        drawn: list[int] = self._random(what).integers(least, length + 1, self.requests).tolist()
        return drawn

    def _random(self, what: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, *what.encode()])


def prompts_of(load: LoadSpec, given: Sequence[Prompt] | None, vocab_size: int | None) -> list[Prompt]:
    """A prompt for each request of ``load``: the given ones in turn, else random tokens.

    Raises :class:`UsageError` if there is neither a prompt nor a vocabulary to draw from.
    """
    if given is not None:
        return load.cycled(given)
    if vocab_size is None:
        raise UsageError("vocab_size: this server does not tell it, so give it, or prompts")
    return load.prompts(vocab_size)


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a file: one a line; JSON lines are a text, token ids, or an object with one of them as ``prompt``.

    Raises :class:`UsageError` naming file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    json_lines = path.suffix in (".jsonl", ".json")
    prompts = [
        _prompt(line, f"{path}:{number}") if json_lines else line
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not prompts:
        raise UsageError(f"{path}: there is no prompt in it")
    return prompts


def _prompt(line: str, place: str) -> Prompt:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{place}: not JSON: {error}") from None
    if isinstance(value, dict):
        value = value.get("prompt")
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return tuple(value)
    raise UsageError(f"{place}: it takes a text or token ids, or an object that has them as prompt")


def _positive(name: str, value: int) -> None:
    if type(value) is not int or value < 1:
        raise UsageError(f"{name} is {value!r}: it takes an integer, 1 or more")
