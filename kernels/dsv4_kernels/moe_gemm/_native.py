"""Compiled loops of small experts, token by token: their weights stay in the cache between tokens."""

from __future__ import annotations

import math

import numpy as np

from dsv4_kernels.native import native, native_part


@native
def routed(x, experts, weights, w13, w2, limit, out):
    """See ``moe_gemm_reference``."""
    a = np.empty(w2.shape[2], np.float32)
    for t in range(x.shape[0]):
        out[t] = np.float32(0.0)
        for i in range(experts.shape[1]):
            e = experts[t, i]
            if not 0 <= e < w13.shape[0]:
                raise IndexError("an expert id lies outside the weights")
            _hidden(x[t], w13[e], limit, weights[t, i], a)
            _add(a, w2[e], out[t])


@native
def mlp(x, w13, w2, limit, out):
    """One expert ``w13 [2 I, D]``, ``w2 [D, I]`` for all tokens."""
    a = np.empty(w2.shape[1], np.float32)
    for t in range(x.shape[0]):
        out[t] = np.float32(0.0)
        _hidden(x[t], w13, limit, np.float32(1.0), a)
        _add(a, w2, out[t])


@native_part
def _hidden(x, w13, limit, weight, a):
    inter, d = a.shape[0], x.shape[0]
    for j in range(inter):
        gate, up = np.float32(0.0), np.float32(0.0)
        for k in range(d):
            gate += w13[j, k] * x[k]
            up += w13[inter + j, k] * x[k]
        gate = min(gate, limit)
        gate /= np.float32(1.0) + math.exp(-gate)
        a[j] = weight * gate * max(min(up, limit), -limit)


@native_part
def _add(a, w2, out):
    for r in range(out.shape[0]):
        total = np.float32(0.0)
        for j in range(a.shape[0]):
            total += w2[r, j] * a[j]
        out[r] += total
