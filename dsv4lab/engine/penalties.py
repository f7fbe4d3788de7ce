"""What changes logits before a token is chosen from them: penalties on tokens that were there before, forced length.

Definitions: docs/text.md. Repetition penalty as in the CTRL paper (arXiv 1909.05858) and transformers' processor of
that name; presence and frequency penalty as in OpenAI's API reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dsv4lab.engine.sampling_params import SamplingParams

_LARGEST = float(np.finfo(np.float32).max)


class TokenHistory:
    """Which tokens a request has in its prompt, and how often each is in its answer so far."""

    def __init__(self, prompt: Sequence[int], generated: Iterable[int] = ()) -> None:
        self._prompt = np.unique(np.asarray(prompt, np.int64))
        self._in_prompt = frozenset(self._prompt.tolist())
        self._counts: dict[int, int] = {}
        self._length = 0
        self.extend(generated)

    def __len__(self) -> int:
        """Tokens of the answer."""
        return self._length

    def extend(self, generated: Iterable[int]) -> None:
        """The answer goes on with these."""
        for token in generated:
            self._counts[token] = self._counts.get(token, 0) + 1
            self._length += 1

    def extended(self, generated: Iterable[int]) -> TokenHistory:
        """A history of its own that goes on with these."""
        other = TokenHistory.__new__(TokenHistory)
        other._prompt, other._in_prompt = self._prompt, self._in_prompt
        other._counts, other._length = dict(self._counts), self._length
        other.extend(generated)
        return other

    def seen(self) -> NDArray[np.int64]:
        """Token ids of prompt and answer, each once."""
        fresh = [token for token in self._counts if token not in self._in_prompt]
        return np.concatenate([self._prompt, np.array(fresh, np.int64)])

    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Token ids of the answer, and how often each is in it."""
        return np.fromiter(self._counts, np.int64), np.fromiter(self._counts.values(), np.int64)


def adjusted(
    logits: NDArray[np.float32], params: SamplingParams, index: int, history: TokenHistory | None
) -> NDArray[np.float32]:
    """The logits ``[vocab]`` that the ``index``-th new token is chosen from; ``logits`` itself if nothing changes them.

    ``history`` holds the ``index`` new tokens before it; it is needed where ``params.penalises``.
    """
    if params.untouched:
        return logits
    out = logits.copy()
    if index < params.min_new_tokens:
        out[list(params.stop_token_ids)] = -np.inf
    if params.penalises:
        assert history is not None
        _penalise(out, params, history)
    return out


def _penalise(out: NDArray[np.float32], params: SamplingParams, history: TokenHistory) -> None:
    if params.repetition_penalty != 1.0:
        seen = history.seen()
        values, penalty = out[seen].astype(np.float64), params.repetition_penalty
        _put(out, seen, np.where(values < 0, values * penalty, values / penalty))
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        tokens, counts = history.counts()
        _put(out, tokens, out[tokens] - params.presence_penalty - params.frequency_penalty * counts)


def _put(out: NDArray[np.float32], tokens: NDArray[np.int64], values: NDArray[np.float64]) -> None:
    """Store ``values`` where logits are finite: a penalty neither revives a forbidden token nor makes infinities."""
    finite = np.isfinite(out[tokens])
    out[tokens[finite]] = np.clip(values[finite], -_LARGEST, _LARGEST)
