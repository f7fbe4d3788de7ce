"""Compiled loops of the Q and KV path."""

from __future__ import annotations

import math

import numpy as np

from dsv4_kernels.native import native, native_part


@native
def q_norm_rope(q, cos, sin, eps):
    """See ``q_norm_rope_reference``."""
    tokens, heads, d = q.shape
    for t in range(tokens):
        for h in range(heads):
            row = q[t, h]
            r = _inverse_rms(row, eps)
            for j in range(d):
                row[j] *= r
            _rotate(row, cos[t], sin[t])


@native
def kv_norm_rope(kv, weight, cos, sin, eps, out, rows):
    """See ``kv_norm_rope_store_reference``: the row of token ``t`` goes to ``out[rows[t]]``."""
    tokens, d = kv.shape
    for t in range(tokens):
        if not 0 <= rows[t] < out.shape[0]:
            raise IndexError("a row lies outside the pool")
        row = out[rows[t]]
        r = _inverse_rms(kv[t], eps)
        for j in range(d):
            row[j] = kv[t, j] * r * weight[j]
        _rotate(row, cos[t], sin[t])


@native_part
def _inverse_rms(row, eps):
    d = row.shape[0]
    squares = np.float32(0.0)
    for j in range(d):
        squares += row[j] * row[j]
    return np.float32(1.0) / math.sqrt(squares / np.float32(d) + eps)


@native_part
def _rotate(row, cos, sin):
    half = cos.shape[0]
    first = row.shape[0] - 2 * half
    for j in range(half):
        a = first + 2 * j
        even, odd = row[a], row[a + 1]
        row[a] = even * cos[j] - odd * sin[j]
        row[a + 1] = even * sin[j] + odd * cos[j]
