"""Verification of draft tokens against the target's distributions (dsv4-spec 7.2). Pure numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.float64]


def greedy_verify(best: Sequence[int], drafts: Sequence[int]) -> tuple[int, ...]:
    """New tokens of a step: the drafts that the target would have chosen itself, and its own next one.

    ``best[i]`` is the target's choice after the anchor and ``i`` drafts; one longer than ``drafts``.
    """
    accepted = 0
    while accepted < len(drafts) and best[accepted] == drafts[accepted]:
        accepted += 1
    return (*drafts[:accepted], best[accepted])


def chain_verify(
    target: Probabilities, draft: Probabilities, drafts: Sequence[int], noise: Sequence[float]
) -> tuple[int, ...]:
    """Chain rejection: accept draft after draft with probability ``min(1, p / q)``; redraw the first that fails.

    ``target [k + 1, V]``, ``draft [k, V]``: rows that sum to 1; ``noise [2 k + 2]`` in [0, 1): one number to accept and
    one to draw, place by place. The tokens are distributed as the target's own samples.
    """
    for i, token in enumerate(drafts):
        p, q = target[i, token], draft[i, token]
        if noise[2 * i] * q < p:
            continue
        return (*drafts[:i], draw(_residual(target[i], draft[i]), noise[2 * i + 1]))
    last = len(drafts)
    return (*drafts, draw(target[last], noise[2 * last + 1]))


def block_verify(
    target: Probabilities, draft: Probabilities, drafts: Sequence[int], noise: Sequence[float]
) -> tuple[int, ...]:
    """Block verification (arXiv 2403.10444, algorithm 2): decides on whole prefixes, and accepts no fewer on average.

    Arguments as in :func:`chain_verify`.
    """
    k = len(drafts)
    ratio = np.ones(k + 1)
    for i, token in enumerate(drafts):
        ratio[i + 1] = min(ratio[i] * target[i, token] / draft[i, token], 1.0) if draft[i, token] > 0 else 0.0
    accepted = 0
    for i in range(k, 0, -1):
        if i == k:
            chance = ratio[k]
        else:
            excess = np.maximum(ratio[i] * target[i] - draft[i], 0.0).sum()
            rest = excess + 1.0 - ratio[i]
            chance = excess / rest if rest > 0 else 1.0
        if noise[2 * i] < chance:
            accepted = i
            break
    if accepted == k:
        return (*drafts, draw(target[k], noise[2 * k + 1]))
    weights = np.maximum(ratio[accepted] * target[accepted] - draft[accepted], 0.0)
    if weights.sum() <= 0.0:
        weights = target[accepted]
    return (*drafts[:accepted], draw(weights, noise[2 * accepted + 1]))


def _residual(p: Probabilities, q: Probabilities) -> Probabilities:
    """``max(p - q, 0)``, or ``p`` itself where rounding leaves nothing of it."""
    rest = np.maximum(p - q, 0.0)
    return rest if rest.sum() > 0.0 else p


def draw(weights: Probabilities, noise: float) -> int:
    """The token whose share of ``weights`` the number ``noise`` of [0, 1) falls into."""
    total = np.cumsum(weights)
    place = int(np.searchsorted(total, noise * total[-1], side="right"))
    return place if place < len(weights) else int(np.flatnonzero(weights)[-1])  # rounding can pass the last one


def one_hot(tokens: Sequence[int], vocab: int) -> Probabilities:
    """The distribution of drafts that were chosen without noise: ``[k, vocab]``."""
    rows = np.zeros((len(tokens), vocab))
    rows[np.arange(len(tokens)), list(tokens)] = 1.0
    return rows
