"""Compiled loops of rotation and of its table."""

from __future__ import annotations

import math

import numpy as np

from dsv4_kernels.native import native


@native
def rotate(x, cos, sin, sign):
    """Rotate the tail of ``x [T, H, d]`` in place; ``sign`` -1 turns back."""
    tokens, heads, d = x.shape
    half = cos.shape[1]
    for t in range(tokens):
        for h in range(heads):
            for j in range(half):
                a = d - 2 * half + 2 * j
                c, s = cos[t, j], sin[t, j] * sign
                even, odd = x[t, h, a], x[t, h, a + 1]
                x[t, h, a] = even * c - odd * s
                x[t, h, a + 1] = even * s + odd * c


@native
def table(positions, frequencies, out):
    """See ``rope_table``; ``out [T, 2, rope_dim / 2]``."""
    for t in range(positions.shape[0]):
        for j in range(frequencies.shape[0]):
            angle = positions[t] * frequencies[j]
            out[t, 0, j] = np.float32(math.cos(angle))
            out[t, 1, j] = np.float32(math.sin(angle))
