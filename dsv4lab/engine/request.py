"""What a generation request is, and whether it can ever run. Pure Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dsv4lab.engine.sampling_params import MAX_SEED, SamplingParams
from dsv4lab.errors import RequestError, RoomError

__all__ = ["MAX_SEED", "FinishReason", "Limits", "RequestSpec", "SamplingParams"]


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """A request as submitted. ``generated`` holds the tokens of an earlier life, replayed before new ones are made.

    ``max_new_tokens`` counts the tokens of all lives; ``seed`` is the resolved sampling seed; ``fingerprints`` asks for
    one of the logits behind each new token.
    """

    request_id: int
    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams
    seed: int = 0
    generated: tuple[int, ...] = ()
    fingerprints: bool = False

    @property
    def total_tokens(self) -> int:
        """Tokens that the request can come to."""
        return len(self.prompt) + self.max_new_tokens


@dataclass(frozen=True, slots=True)
class Limits:
    """What one engine can hold. ``pool_tokens`` counts the usable pages of one of its ``groups`` only."""

    vocab_size: int
    pool_tokens: int
    page_size: int
    max_requests: int
    max_position: int
    lookahead: int = 0
    """Tokens past the last one that decode steps may write (drafts)."""
    groups: int = 1
    """Attention groups, each with a pool of its own; requests are dealt out over them."""

    def check(self, spec: RequestSpec) -> None:
        """Raise :class:`RequestError`, one line saying what would fit, if ``spec`` could never run here."""
        if not _is_int(spec.max_new_tokens) or spec.max_new_tokens < 1:
            raise _bad("max_new_tokens", spec.max_new_tokens, "an integer, 1 or more")
        if not spec.prompt:
            raise RequestError("prompt is empty: give at least one token id")
        self._check_vocabulary("prompt", spec.prompt)
        self._check_vocabulary("generated", spec.generated)
        self._check_vocabulary("stop_token_ids", spec.sampling.stop_token_ids)
        if len(spec.generated) >= spec.max_new_tokens:
            raise _bad("generated", len(spec.generated), f"fewer tokens than max_new_tokens ({spec.max_new_tokens})")
        self._check_room(spec)

    def _check_vocabulary(self, field: str, tokens: Sequence[int]) -> None:
        for place, token in enumerate(tokens):
            if not _is_int(token) or not 0 <= token < self.vocab_size:
                raise RequestError(
                    f"{field}[{place}] is {token!r}: token ids are integers from 0 to {self.vocab_size - 1}"
                )

    def _check_room(self, spec: RequestSpec) -> None:
        prompt, new = len(spec.prompt), spec.max_new_tokens
        total = spec.total_tokens + self.lookahead
        if total > self.max_position:
            raise RoomError(
                f"prompt of {prompt} tokens plus {new} new ones passes the model's last position: "
                f"together at most {self.max_position - self.lookahead}"
            )
        if total > self.pool_tokens:
            pages = -(-total // self.page_size)
            room = self.pool_tokens - self.lookahead
            remedy = f"at most {room - new} prompt tokens fit" if room > new else f"at most {room - 1} new ones fit"
            raise RoomError(
                f"prompt of {prompt} tokens plus {new} new ones needs {pages} pages of {self.page_size}, the pool has "
                f"{self.pool_tokens // self.page_size}: {remedy}, or open the engine with "
                f"max_total_tokens={pages * self.page_size} or more"
            )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bad(field: str, value: object, takes: str) -> RequestError:
    return RequestError(f"{field} is {value!r}: it takes {takes}")
