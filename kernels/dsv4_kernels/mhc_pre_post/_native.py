"""Compiled loops of the hyper-connections, token by token."""

from __future__ import annotations

import math

import numpy as np

from dsv4_kernels.native import native, native_part


@native
def pre(x, m, base, scale, rms_eps, hc_eps, iters, out, post, comb):
    """``m = fn @ flattened x``, not normalised yet; see ``mhc_pre_reference``."""
    one = np.float32(1.0)
    tokens, n = x.shape[:2]
    mix = np.empty(n, np.float32)
    for t in range(tokens):
        r = _inverse_rms(x[t], rms_eps)
        for i in range(n):
            mix[i] = one / (one + math.exp(-(m[t, i] * r * scale[0] + base[i]))) + hc_eps
            post[t, i] = np.float32(2.0) / (one + math.exp(-(m[t, n + i] * r * scale[1] + base[n + i])))
        c = comb[t]
        for i in range(n):
            top = np.float32(-np.inf)
            for j in range(n):
                k = 2 * n + i * n + j
                c[i, j] = m[t, k] * r * scale[2] + base[k]
                top = max(top, c[i, j])
            total = np.float32(0.0)
            for j in range(n):
                c[i, j] = math.exp(c[i, j] - top)
                total += c[i, j]
            for j in range(n):
                c[i, j] = c[i, j] / total + hc_eps
        _columns(c, hc_eps)
        for _ in range(iters - 1):
            _rows(c, hc_eps)
            _columns(c, hc_eps)
        _collapse(x[t], mix, out[t])


@native
def head(x, m, base, scale, rms_eps, hc_eps, out):
    """``m = fn @ flattened x``, not normalised yet; see ``mhc_head_reference``."""
    one = np.float32(1.0)
    tokens, n = x.shape[:2]
    mix = np.empty(n, np.float32)
    for t in range(tokens):
        r = _inverse_rms(x[t], rms_eps)
        for i in range(n):
            mix[i] = one / (one + math.exp(-(m[t, i] * r * scale + base[i]))) + hc_eps
        _collapse(x[t], mix, out[t])


@native
def spread(y, post, comb, x):
    """See ``mhc_post_reference``; at most 8 streams."""
    tokens, n, d = x.shape
    old = np.empty(n, np.float32)
    for t in range(tokens):
        c, p = comb[t], post[t]
        for j in range(d):
            for i in range(n):
                old[i] = x[t, i, j]
            for i in range(n):
                value = p[i] * y[t, j]
                for k in range(n):
                    value += c[k, i] * old[k]
                x[t, i, j] = value


@native_part
def _inverse_rms(x, eps):
    n, d = x.shape
    squares = np.float32(0.0)
    for i in range(n):
        for j in range(d):
            squares += x[i, j] * x[i, j]
    return np.float32(1.0) / math.sqrt(squares / np.float32(n * d) + eps)


@native_part
def _collapse(x, mix, out):
    n, d = x.shape
    for j in range(d):
        out[j] = mix[0] * x[0, j]
    for i in range(1, n):
        for j in range(d):
            out[j] += mix[i] * x[i, j]


@native_part
def _rows(c, eps):
    n = c.shape[0]
    for i in range(n):
        total = eps
        for j in range(n):
            total += c[i, j]
        total = np.float32(1.0) / total
        for j in range(n):
            c[i, j] *= total


@native_part
def _columns(c, eps):
    n = c.shape[0]
    for j in range(n):
        total = eps
        for i in range(n):
            total += c[i, j]
        total = np.float32(1.0) / total
        for i in range(n):
            c[i, j] *= total
