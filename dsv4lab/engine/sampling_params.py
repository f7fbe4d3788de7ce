"""How a request's next token is chosen, and when it stops. Pure Python; definitions and order: docs/text.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dsv4lab.errors import RequestError

MAX_SEED = 2**63 - 1
MAX_LOGPROBS = 64
MAX_STOP_STRINGS = 16


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen; the default is greedy. What follows is applied in this order (docs/text.md).

    ``min_new_tokens``: no token of ``stop_token_ids`` before so many new ones. ``repetition_penalty`` above 1 makes all
    tokens of prompt and answer less likely, ``presence_penalty`` and ``frequency_penalty`` those of the answer, once or
    for each time. ``temperature`` 0 is greedy (lowest token id wins ties); else softmax(logits / temperature) is cut to
    tokens no less likely than the ``top_k``-th (0: no cut), then than the last that ``top_p`` of the mass needs, then
    than ``min_p`` times the likeliest. ``seed`` None takes one from the engine's seed and the request's number; a given
    seed makes the tokens a function of prompt and seed alone, whatever else is in the batch.

    A token of ``stop_token_ids`` ends the request and is its last token. A string of ``stop`` ends it where the string
    is complete, and is cut from the text. Text prompts also stop at the tokenizer's end token, unless ``ignore_eos``.
    ``logprobs`` n asks for the log-probability of each new token and of the n likeliest, under the model's raw logits.
    Raises :class:`RequestError` on values it does not take.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for field, takes, good in _RULES:
            value = getattr(self, field)
            if not good(value):
                raise RequestError(f"{field} is {value!r}: it takes {takes}")

    @property
    def greedy(self) -> bool:
        """Whether the choice needs no noise."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def penalises(self) -> bool:
        """Whether tokens that were there before are made less (or more) likely."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def untouched(self) -> bool:
        """Whether tokens are chosen from the model's own logits at every place."""
        return not self.penalises and (self.min_new_tokens == 0 or not self.stop_token_ids)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _real(low: float, high: float, *, above: bool = False) -> Callable[[object], bool]:
    """Whether a value is a number from ``low`` (not ``low`` itself, if ``above``) to ``high``."""

    def good(value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return (low < value if above else low <= value) and value <= high

    return good


def _whole(low: int, high: int | None = None, *, none: bool = False) -> Callable[[object], bool]:
    """Whether a value is an integer from ``low`` to ``high``, or None where that is allowed."""

    def good(value: object) -> bool:
        if value is None:
            return none
        return isinstance(value, int) and _is_int(value) and low <= value and (high is None or value <= high)

    return good


def _token_ids(value: object) -> bool:
    return type(value) is tuple and all(_is_int(token) for token in value)


def _strings(value: object) -> bool:
    return type(value) is tuple and len(value) <= MAX_STOP_STRINGS and all(isinstance(s, str) and s for s in value)


_FINITE = 1.7976931348623157e308
_RULES: tuple[tuple[str, str, Callable[[object], bool]], ...] = (
    ("temperature", "a finite number, 0 (greedy) or more", _real(0.0, _FINITE)),
    ("top_k", "an integer, 0 (no cut) or more", _whole(0)),
    ("top_p", "a number above 0 and up to 1", _real(0.0, 1.0, above=True)),
    ("seed", f"None or an integer from 0 to {MAX_SEED}", _whole(0, MAX_SEED, none=True)),
    ("stop_token_ids", "a tuple of token ids", _token_ids),
    ("min_p", "a number from 0 (no cut) to 1", _real(0.0, 1.0)),
    ("repetition_penalty", "a finite number above 0 (1: none)", _real(0.0, _FINITE, above=True)),
    ("presence_penalty", "a number from -2 to 2", _real(-2.0, 2.0)),
    ("frequency_penalty", "a number from -2 to 2", _real(-2.0, 2.0)),
    ("min_new_tokens", "an integer, 0 or more", _whole(0)),
    ("stop", f"a tuple of at most {MAX_STOP_STRINGS} strings, none of them empty", _strings),
    ("ignore_eos", "True or False", lambda value: isinstance(value, bool)),
    ("logprobs", f"None or an integer from 0 to {MAX_LOGPROBS}", _whole(0, MAX_LOGPROBS, none=True)),
)
