"""From logits to the next token: greedy, or softmax with cuts and counter-based noise (docs/text.md, dsv4-spec 7.2).

The noise of a request's ``index``-th new token is a function of ``(seed, index)`` alone, so neither the batch around
it, nor a preemption or restart that replays it, changes what it draws.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dsv4lab.engine.penalties import TokenHistory, adjusted
from dsv4lab.engine.sampling_params import SamplingParams
from dsv4lab.errors import EngineError

_MASK = 2**63 - 1
_FEW, _PROBES = 1024, 64
PLAIN_LANE, DRAFT_LANE, VERIFY_LANE = 0, 1, 2  # noise of plain sampling, and of drafts and their verification


def uniforms(seed: int, index: int, lane: int, count: int) -> NDArray[np.float64]:
    """``count`` numbers of [0, 1) for the ``index``-th new token of a request with ``seed``, in noise ``lane``.

    Each ``(seed, index, lane)`` has a stream of its own: Philox counters that no other comes to.
    """
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, index, lane, 0])).random(count)


def derived_seed(engine_seed: int, number: int) -> int:
    """The seed of the ``number``-th request of an engine that gave none: well mixed, in [0, 2**63)."""
    mixed = np.random.SeedSequence([engine_seed, number]).generate_state(1, np.uint64)
    return int(mixed[0]) & _MASK


def sample(
    logits: NDArray[np.float32], params: SamplingParams, seed: int, index: int, history: TokenHistory | None = None
) -> int:
    """The token chosen from the model's ``logits`` float32 ``[vocab]``: the first in a race of exponential times.

    Token ``t`` has the rate of its weight, and noise that is a function of ``(seed, index, t)`` (the Gumbel trick), so
    each wins with its probability, and close distributions mostly agree on the winner. ``history`` is needed where
    ``params.penalises``. Raises :class:`EngineError` if the logits are not finite: a token drawn from them would mean
    nothing.
    """
    logits = adjusted(logits, params, index, history)
    best = likeliest(logits)
    if params.greedy:
        return best
    tokens, weights = _candidates(logits, params, float(logits[best]))
    noise = uniforms(seed, index, PLAIN_LANE, len(logits))[tokens]
    with np.errstate(divide="ignore"):  # a number of 0, or a weight that vanished: never first
        return int(tokens[np.argmin(-np.log(noise) / weights)])


def likeliest(logits: NDArray[np.float32]) -> int:
    """The token with the largest logit, the lowest id on a tie. Raises :class:`EngineError` if that is not finite."""
    best = int(np.argmax(logits))
    return checked(best, float(logits[best]))


def checked(token: int, logit: float) -> int:
    """``token``, whose logit is the largest. Raises :class:`EngineError` if that is not finite."""
    if not np.isfinite(logit):
        raise EngineError(f"the model's logits are not finite (largest is {logit}); no token can be chosen")
    return token


def distribution(
    logits: NDArray[np.float32], params: SamplingParams, index: int = 0, history: TokenHistory | None = None
) -> NDArray[np.float64]:
    """The probabilities that :func:`sample` draws from, float64 ``[vocab]``; of a greedy choice, 1 for its token."""
    logits = adjusted(logits, params, index, history)
    best = likeliest(logits)
    dense = np.zeros(len(logits))
    if params.greedy:
        dense[best] = 1.0
        return dense
    tokens, weights = _candidates(logits, params, float(logits[best]))
    dense[tokens] = weights / weights.sum()
    return dense


def _candidates(
    logits: NDArray[np.float32], params: SamplingParams, best: float
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Token ids that may be drawn, ascending, and their weights: float64, 1 for the likeliest, with logit ``best``.

    Each cut is a least weight, so tokens that tie with the last one kept are kept: the set does not depend on an order.
    """
    tokens = None
    if 0 < params.top_k < len(logits):
        tokens = np.flatnonzero(logits >= np.partition(logits, -params.top_k)[-params.top_k])
    with np.errstate(over="ignore"):  # a tiny temperature makes all but the likeliest -inf, as it should
        weights = (logits if tokens is None else logits[tokens]).astype(np.float64)
        weights -= best
        weights /= params.temperature
        np.exp(weights, out=weights)
    least = params.min_p
    if params.top_p < 1.0:
        least = max(least, _nucleus(weights, params.top_p))
    if least > 0.0:
        kept = np.flatnonzero(weights >= least)
        tokens, weights = kept if tokens is None else tokens[kept], weights[kept]
    return np.arange(len(logits)) if tokens is None else tokens, weights


def _nucleus(weights: NDArray[np.float64], top_p: float) -> float:
    """The least of the largest weights whose sum reaches ``top_p`` of all.

    Narrows the weights down to a few around it, as quickselect does, and sorts only these.
    """
    wanted, above, active = top_p * float(weights.sum()), 0.0, weights
    while len(active) > _FEW:
        pivot = float(np.sort(active[:: len(active) // _PROBES])[-_PROBES // 8])
        upper = active[active >= pivot]
        if len(upper) == len(active):  # the pivot is the least of them
            upper = active[active > pivot]
        mass = above + float(upper.sum())
        if mass >= wanted and len(upper):
            active = upper
        elif len(upper):
            above, active = mass, active[active < float(upper.min())]
        else:
            return pivot
    ordered = np.sort(active)[::-1]
    place = int(np.searchsorted(above + np.cumsum(ordered), wanted, side="left"))
    return float(ordered[min(place, len(ordered) - 1)])  # rounding can keep the sum just below
