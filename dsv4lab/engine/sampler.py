"""From logits to the next token: greedy, or temperature, top-k and top-p with counter-based noise (dsv4-spec 7.2).

The noise of a request's ``index``-th new token is a function of ``(seed, index)`` alone, so neither the batch around
it, nor a restart that replays it, changes what it draws.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dsv4lab.engine.request import SamplingParams
from dsv4lab.errors import EngineError

_MASK = 2**63 - 1
DRAFT_LANE, VERIFY_LANE = 1, 2  # noise of speculation, apart from that of plain sampling


def uniform(seed: int, index: int) -> float:
    """A number of [0, 1) for the ``index``-th new token of a request with ``seed``: one Philox block each."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=index)).random())


def uniforms(seed: int, index: int, lane: int, count: int) -> NDArray[np.float64]:
    """``count`` numbers of [0, 1) for the ``index``-th new token of a request with ``seed``, in noise ``lane``."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[index, lane, 0, 0])).random(count)


def derived_seed(engine_seed: int, number: int) -> int:
    """The seed of the ``number``-th request of an engine that gave none: well mixed, in [0, 2**63)."""
    mixed = np.random.SeedSequence([engine_seed, number]).generate_state(1, np.uint64)
    return int(mixed[0]) & _MASK


def sample(logits: NDArray[np.float32], params: SamplingParams, seed: int, index: int) -> int:
    """The token chosen from ``logits`` float32 ``[vocab]``.

    Raises :class:`EngineError` if the logits are not finite: a token drawn from them would mean nothing.
    """
    best = int(np.argmax(logits))
    if not np.isfinite(logits[best]):
        raise EngineError(f"the model's logits are not finite (largest is {logits[best]}); no token can be chosen")
    if params.greedy:
        return best
    tokens, weights = _candidates(logits, params)
    total = np.cumsum(weights)
    place = int(np.searchsorted(total, uniform(seed, index) * total[-1], side="right"))
    return int(tokens[min(place, len(tokens) - 1)])


def distribution(logits: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float64]:
    """The probabilities that :func:`sample` draws from, float64 ``[vocab]``."""
    tokens, weights = _candidates(logits, params)
    dense = np.zeros(len(logits))
    dense[tokens] = weights / weights.sum()
    return dense


def _candidates(logits: NDArray[np.float32], params: SamplingParams) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Token ids that may be drawn and their unnormalised weights, float64."""
    tokens = np.arange(len(logits))
    if 0 < params.top_k < len(logits):
        floor = np.partition(logits, -params.top_k)[-params.top_k]
        tokens = np.flatnonzero(logits >= floor)
    if 0 < params.top_k < len(tokens) or params.top_p < 1.0:
        order = np.argsort(-logits[tokens], kind="stable")
        tokens = tokens[order][: params.top_k or None]
    scaled = logits[tokens].astype(np.float64) / params.temperature
    weights = np.exp(scaled - scaled.max())
    if params.top_p < 1.0:
        reached = np.cumsum(weights)
        kept = int(np.searchsorted(reached, params.top_p * reached[-1], side="left")) + 1
        tokens, weights = tokens[:kept], weights[:kept]
    return tokens, weights
