"""Compiled loops of KV compression, entry by entry."""

from __future__ import annotations

import math

import numpy as np

from dsv4_kernels.native import native, native_part


@native
def compress(
    ks, state, ape, norm_weight, frequencies, eps, gather_state, gather_flat, from_flat, positions, pool, rows
):
    """The entries of ``compress_reference``, those of row -1 left out; the state ring is left alone."""
    entries, width = from_flat.shape
    ratio, d = ape.shape[0], norm_weight.shape[0]
    c = ape.shape[1]  # keys lie in front, scores from c on
    keys = np.empty((width, d), np.float32)
    scores = np.empty((width, d), np.float32)
    entry = np.empty(d, np.float32)
    for i in range(entries):
        if rows[i] == -1:
            continue
        for w in range(width):
            inside = (
                0 <= gather_flat[i, w] < ks.shape[0] if from_flat[i, w] else 0 <= gather_state[i, w] < state.shape[0]
            )
            if not inside or not 0 <= rows[i] < pool.shape[0]:
                raise IndexError("an entry or an input of it lies outside its tensor")
            half = d if c == 2 * d and w >= ratio else 0
            source = ks[gather_flat[i, w]] if from_flat[i, w] else state[gather_state[i, w]]
            for j in range(d):
                keys[w, j] = source[half + j]
                scores[w, j] = source[c + half + j] + ape[w % ratio, half + j]
        _pool(keys, scores, entry)
        _finish(entry, norm_weight, positions[i], frequencies, eps, pool[rows[i]])


@native
def carry(ks, state, src, dst):
    """``state[dst] = ks[src]`` where ``dst`` is not -1."""
    for i in range(src.shape[0]):
        if dst[i] == -1:
            continue
        if not (0 <= src[i] < ks.shape[0] and 0 <= dst[i] < state.shape[0]):
            raise IndexError("a carried row lies outside its tensor")
        for j in range(ks.shape[1]):
            state[dst[i], j] = ks[src[i], j]


@native_part
def _pool(keys, scores, entry):
    width, d = keys.shape
    for j in range(d):
        top = scores[0, j]
        for w in range(1, width):
            top = max(top, scores[w, j])
        total, value = np.float32(0.0), np.float32(0.0)
        for w in range(width):
            p = math.exp(scores[w, j] - top)
            total += p
            value += p * keys[w, j]
        entry[j] = value / total


@native_part
def _finish(entry, norm_weight, position, frequencies, eps, out):
    d, half = entry.shape[0], frequencies.shape[0]
    squares = np.float32(0.0)
    for j in range(d):
        squares += entry[j] * entry[j]
    r = np.float32(1.0) / math.sqrt(squares / np.float32(d) + eps)
    for j in range(d):
        out[j] = entry[j] * r * norm_weight[j]
    for j in range(half):
        a = d - 2 * half + 2 * j
        angle = position * frequencies[j]
        c, s = np.float32(math.cos(angle)), np.float32(math.sin(angle))
        even, odd = out[a], out[a + 1]
        out[a] = even * c - odd * s
        out[a + 1] = even * s + odd * c
