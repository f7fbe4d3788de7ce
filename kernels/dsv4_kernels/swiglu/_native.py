"""Compiled loop of the clamped SwiGLU."""

from __future__ import annotations

import math

import numpy as np

from dsv4_kernels.native import native


@native
def swiglu(gate, up, limit, out):
    """See ``swiglu_reference``; all ``[T, I]``."""
    tokens, inter = gate.shape
    for t in range(tokens):
        for j in range(inter):
            g = min(gate[t, j], limit)
            g /= np.float32(1.0) + math.exp(-g)
            out[t, j] = g * max(min(up[t, j], limit), -limit)
