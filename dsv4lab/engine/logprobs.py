"""Log-probabilities of new tokens under the model's own distribution."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """``logprob`` of ``token``, and the likeliest tokens with theirs, likeliest first (lowest id first on a tie).

    They are log-softmax of the raw logits, before penalties, temperature and cuts, in float32. The chosen token need
    not be among ``top``.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprobs(logits: NDArray[np.float32], token: int, top: int) -> TokenLogprobs:
    """Of ``token`` and the ``top`` likeliest tokens; ``logits`` float32 ``[vocab]`` as the model gave them."""
    largest = logits.max()
    total = largest + np.float32(np.log(np.exp(logits - largest).sum(dtype=np.float64)))
    top = min(top, len(logits))
    best: list[int] = []
    if top:
        floor = np.partition(logits, -top)[-top]
        found = np.flatnonzero(logits >= floor)
        best = found[np.argsort(-logits[found], kind="stable")][:top].tolist()
    return TokenLogprobs(token, float(logits[token] - total), tuple((t, float(logits[t] - total)) for t in best))


class LogprobLog:
    """Log-probabilities of chosen tokens, from their choice until the tokens are told; by request."""

    def __init__(self) -> None:
        self._pending: dict[int, deque[TokenLogprobs]] = {}

    def note(self, request_id: int, logits: NDArray[np.float32], token: int, top: int) -> None:
        """The next token of the request is ``token``, chosen from ``logits``."""
        self._pending.setdefault(request_id, deque()).append(token_logprobs(logits, token, top))

    def take(self, request_id: int) -> TokenLogprobs | None:
        """Those of the oldest token that was noted and not taken; None if the request asks for none."""
        pending = self._pending.get(request_id)
        return pending.popleft() if pending else None

    def forget(self, request_id: int) -> None:
        """The request has ended; tokens that it did not get are of no interest."""
        self._pending.pop(request_id, None)
