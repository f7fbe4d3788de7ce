"""Compiled loops of expert selection."""

from __future__ import annotations

import math

import numpy as np

from dsv4_kernels.native import native


@native
def scores_of(logits):
    """``sqrt(softplus)`` of ``logits [T, E]``, in place."""
    zero = np.float32(0.0)
    for t in range(logits.shape[0]):
        for e in range(logits.shape[1]):
            x = logits[t, e]
            logits[t, e] = math.sqrt(max(x, zero) + math.log1p(math.exp(-abs(x))))


@native
def best(scores, bias, experts):
    """The ``k`` experts ``[T, k]`` of the highest score + bias, best first, of equal ones the lowest."""
    tokens, choices = scores.shape
    k = experts.shape[1]
    ranked = np.empty(choices, np.float32)
    for t in range(tokens):
        for e in range(choices):
            ranked[e] = scores[t, e] + bias[e]
        for place in range(k):
            top = 0
            for e in range(1, choices):
                if ranked[e] > ranked[top]:
                    top = e
            experts[t, place] = top
            ranked[top] = np.float32(-np.inf)


@native
def weigh(scores, experts, scale, renormalise, weights):
    """See ``moe_route_reference``: weights ``[T, k]`` of the chosen ``experts``."""
    tokens, k = experts.shape
    for t in range(tokens):
        total = np.float32(1e-20)
        for i in range(k):
            if not 0 <= experts[t, i] < scores.shape[1]:
                raise IndexError("an expert id of the table lies outside the gate")
            weights[t, i] = scores[t, experts[t, i]]
            total += weights[t, i]
        factor = scale / total if renormalise else scale
        for i in range(k):
            weights[t, i] *= factor
