"""Compiled loops of RMSNorm, row by row."""

from __future__ import annotations

import math

import numpy as np

from dsv4_kernels.native import native


@native
def rms_norm(x, weight, eps, out):
    """See ``rms_norm_reference``; ``x`` and ``out`` are ``[T, d]``."""
    tokens, d = x.shape
    for t in range(tokens):
        squares = np.float32(0.0)
        for j in range(d):
            squares += x[t, j] * x[t, j]
        r = np.float32(1.0) / math.sqrt(squares / np.float32(d) + eps)
        for j in range(d):
            out[t, j] = x[t, j] * r * weight[j]
