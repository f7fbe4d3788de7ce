"""Choosing the next tokens of a forward's requests: rows of one batch with parameters of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dsv4lab.engine.fingerprints import Fingerprints
from dsv4lab.engine.logprobs import LogprobLog, TokenLogprobs
from dsv4lab.engine.penalties import TokenHistory
from dsv4lab.engine.sampler import checked, likeliest, sample
from dsv4lab.engine.step import Chunk

if TYPE_CHECKING:
    from dsv4lab.engine.protocol import ForwardResult

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Likeliest:
    """Of each row of logits the token with the largest, the lowest id on a tie, and that logit: both ``[rows]``."""

    tokens: NDArray[np.int64]
    logits: NDArray[np.float32]

    def checked(self, first: int, end: int) -> list[int]:
        """Tokens of rows ``first`` to ``end``. Raises :class:`EngineError` if a logit of theirs is not finite."""
        return [checked(int(self.tokens[row]), float(self.logits[row])) for row in range(first, end)]


class Chooser:
    """What a request's choices need beside its logits, from its first token to its end: history, log-probabilities.

    ``tokens_of(request_id)`` gives all tokens of a running request that are known, prompt first. Requests that ask for
    nothing leave no trace, and greedy ones cost one argmax.
    """

    def __init__(self, tokens_of: Callable[[int], Sequence[int]]) -> None:
        self._tokens_of = tokens_of
        self._histories: dict[int, TokenHistory] = {}
        self._logprobs = LogprobLog()
        self._fingerprints = Fingerprints()

    def choose(self, chunks: Sequence[Chunk], logits: Rows) -> list[int | None]:
        """The next token of every chunk that samples, from ``logits`` ``[chunks, vocab]``; None for the others."""
        return [self._next(chunk, row) if chunk.samples else None for chunk, row in zip(chunks, logits, strict=True)]

    def next(self, chunks: Sequence[Chunk], result: ForwardResult, first: int = 0) -> list[int | None]:
        """As :meth:`choose`, from a forward's rows from ``first`` on, which are read only if a chunk needs them."""
        best, end = result.likeliest, first + len(chunks)
        if best is None or any(chunk.samples and not _needs_no_row(chunk) for chunk in chunks):
            return self.choose(chunks, np.asarray(result.logits, dtype=np.float32)[first:end])
        rows = zip(chunks, range(first, end), strict=True)
        return [best.checked(row, row + 1)[0] if chunk.samples else None for chunk, row in rows]

    def history(self, chunk: Chunk) -> TokenHistory | None:
        """What the penalties of the chunk's request count, up to its last known token; None if it has none."""
        if not chunk.spec.sampling.penalises:
            return None
        prompt, request_id = chunk.spec.prompt, chunk.spec.request_id
        history = self._histories.get(request_id)
        if history is None:
            history = self._histories[request_id] = TokenHistory(prompt)
        history.extend(self._tokens_of(request_id)[len(prompt) + len(history) :])
        return history

    def note(self, chunk: Chunk, rows: Rows, tokens: Sequence[int]) -> None:
        """The request's next tokens are ``tokens``, the ``i``-th of them chosen from ``rows[i]``."""
        spec = chunk.spec
        for row, token in zip(rows, tokens, strict=True):
            self._fingerprints.note(chunk, row)
            if spec.sampling.logprobs is not None:
                self._logprobs.note(spec.request_id, row, token, spec.sampling.logprobs)

    def note_rows(self, chunk: Chunk, result: ForwardResult, first: int, tokens: Sequence[int]) -> None:
        """As :meth:`note`, of a forward's rows from ``first`` on, which are read only if the request wants them."""
        if _wants_rows(chunk):
            self.note(chunk, np.asarray(result.logits, dtype=np.float32)[first : first + len(tokens)], tokens)

    def take_logprobs(self, request_ids: Sequence[int]) -> tuple[tuple[int, TokenLogprobs], ...]:
        """For new tokens of these requests, in order: the places of those with log-probabilities, and these."""
        found = ((place, self._logprobs.take(request_id)) for place, request_id in enumerate(request_ids))
        return tuple((place, logprobs) for place, logprobs in found if logprobs is not None)

    def end(self, request_id: int) -> tuple[int, ...]:
        """The request has ended: its fingerprints; all else of it is forgotten."""
        self._histories.pop(request_id, None)
        self._logprobs.forget(request_id)
        return self._fingerprints.take(request_id)

    def _next(self, chunk: Chunk, row: Rows) -> int:
        params = chunk.spec.sampling
        if params.greedy and params.untouched:
            token = likeliest(row)
        else:
            token = sample(row, params, chunk.spec.seed, chunk.generated, self.history(chunk))
        self.note(chunk, row[None], (token,))
        return token


def _needs_no_row(chunk: Chunk) -> bool:
    params = chunk.spec.sampling
    return params.greedy and params.untouched and not _wants_rows(chunk)


def _wants_rows(chunk: Chunk) -> bool:
    return chunk.spec.sampling.logprobs is not None or chunk.spec.fingerprints
