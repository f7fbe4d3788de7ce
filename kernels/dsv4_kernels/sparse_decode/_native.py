"""Compiled loop of sparse attention over float32 rows, token by token."""

from __future__ import annotations

import math

import numpy as np

from dsv4_kernels.native import native, native_part


@native
def attend(q, pool, indices, indptr, sink, scale, out):
    """See ``sparse_decode_reference``."""
    tokens, heads, d = q.shape
    longest = 0
    for t in range(tokens):
        if not 0 <= indptr[t] <= indptr[t + 1] <= indices.shape[0]:
            raise IndexError("bounds of a list lie outside the indices")
        longest = max(longest, indptr[t + 1] - indptr[t])
    p = np.empty((longest, heads), np.float32)
    for t in range(tokens):
        first, last = indptr[t], indptr[t + 1]
        top = np.full(heads, np.float32(-np.inf))
        for i in range(first, last):
            row = indices[i]
            if row >= pool.shape[0]:
                raise IndexError("a listed row lies outside the pool")
            for h in range(heads):
                total = np.float32(-np.inf)
                if row >= 0:
                    total = np.float32(0.0)
                    for j in range(d):
                        total += q[t, h, j] * pool[row, j]
                    total *= scale
                p[i - first, h] = total
                top[h] = max(top[h], total)
        for h in range(heads):
            _weigh(p[: last - first, h], top[h], sink[h])
        out[t] = np.float32(0.0)
        for i in range(first, last):
            row = indices[i]
            if row >= 0:
                for h in range(heads):
                    weight = p[i - first, h]
                    for j in range(d):
                        out[t, h, j] += weight * pool[row, j]


@native_part
def _weigh(p, top, sink):
    """Logits to shares, in place; the sink takes its own."""
    bound = max(top, sink)
    if bound == np.float32(-np.inf):
        p[:] = np.float32(0.0)
        return
    total = math.exp(sink - bound)
    for i in range(p.shape[0]):
        p[i] = math.exp(p[i] - bound)
        total += p[i]
    for i in range(p.shape[0]):
        p[i] /= total
