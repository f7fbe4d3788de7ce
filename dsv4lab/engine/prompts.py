"""Prompts: those that callers give, as plain integers, and synthetic ones for loads."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import numpy as np

from dsv4lab.errors import RequestError, UsageError

FIRST_TOKEN = 2  # after the released models' begin and end tokens


def plain(prompt: Iterable[object], name: str = "prompt") -> tuple[int, ...]:
    """Token ids as ints; numpy and torch integers are taken. Raises :class:`RequestError` on anything else."""
    if isinstance(prompt, str | bytes):
        raise RequestError(f"{name} is text: it takes a sequence of token ids")
    return tuple(_integer(token, name, place) for place, token in enumerate(prompt))


def batch(prompts: Iterable[object]) -> list[tuple[int, ...]]:
    """One prompt or several as a list of prompts; arrays and tensors are taken. Nothing at all is one empty prompt."""
    rows = prompts.tolist() if hasattr(prompts, "tolist") else list(prompts)
    if rows and all(isinstance(row, Iterable) for row in rows):
        return [plain(row, f"prompt {i}") for i, row in enumerate(rows)]
    return [plain(rows)]


def synthetic(vocab_size: int, count: int, tokens: int, seed: int) -> list[tuple[int, ...]]:
    """``count`` prompts of ``tokens`` tokens; the first prompts of a seed are the same for every ``count``."""
    rows = np.random.default_rng(seed).integers(FIRST_TOKEN, vocab_size, size=(count, tokens), dtype=np.int64)
    return [tuple(row) for row in rows.tolist()]


def whole(value: object, name: str) -> int:
    """``value`` as an int. Raises :class:`UsageError` if it is none."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{name} is {value!r}: it takes an integer") from None


def positive(value: object, name: str) -> int:
    """``value`` as an int of 1 or more. Raises :class:`UsageError`."""
    number = whole(value, name)
    if number < 1:
        raise UsageError(f"{name} is {number}: it takes an integer, 1 or more")
    return number


def _integer(token: object, name: str, place: int) -> int:
    try:
        return operator.index(token)  # type: ignore[arg-type]
    except TypeError:
        raise RequestError(f"{name}[{place}] is {token!r}: it takes a sequence of token ids") from None
