"""Router of a few tokens: programs of one warp, whose reductions need no barrier, and gate rows that come early."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import arrives_last
from dsv4_kernels.moe_route._kernel import NEGATIVE, _score

GONE = tl.constexpr(-0x80000000)


@triton.jit
def _rank(value):
    """int32 in the order of float32 ``value``, greater than ``GONE``; -0 equals 0."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _best(scores, ranked, expert, n_experts, TOP_K: tl.constexpr, K_PAD: tl.constexpr):
    """The ``TOP_K`` experts of the highest ``ranked [BE]`` (ties: the lowest) and their ``scores``, ``[K_PAD]``.

    Every step is a reduction of int32, one instruction inside a warp.
    """
    slot = tl.arange(0, K_PAD)
    chosen = tl.zeros((K_PAD,), tl.int32)
    weight = tl.zeros((K_PAD,), tl.float32)
    key = tl.where(expert < n_experts, _rank(tl.where(ranked == ranked, ranked, NEGATIVE)), GONE)
    bits = scores.to(tl.int32, bitcast=True)
    for at in tl.static_range(TOP_K):
        best = tl.max(key, axis=0)
        found = tl.min(tl.where(key == best, expert, 2147483647), axis=0)
        mine = expert == found
        key = tl.where(mine, GONE, key)
        score = tl.sum(tl.where(mine, bits, 0), axis=0).to(tl.float32, bitcast=True)
        chosen = tl.where(slot == at, found, chosen)
        weight = tl.where(slot == at, score, weight)
    return chosen, weight


@triton.jit
def _part(pointers, inside, EVEN: tl.constexpr):
    """float32 of what lies at ``pointers``, 0 outside."""
    if EVEN:
        part = tl.load(pointers)
    else:
        part = tl.load(pointers, mask=inside, other=0.0)
    return part.to(tl.float32)


@triton.jit
def _route_few_kernel(
    x_ptr, gate_ptr, bias_ptr, weights_ptr, experts_ptr, scores_ptr, counter_ptr,
    n_experts, d, x_stride, gate_stride, weights_stride, experts_stride, scale,
    PDL: tl.constexpr, HAS_BIAS: tl.constexpr, SCORING: tl.constexpr, RENORMALISE: tl.constexpr,
    TOP_K: tl.constexpr, K_PAD: tl.constexpr, E_PAD: tl.constexpr, STEPS: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Scores of one token and ``BLOCK_E`` experts; the last program of a token chooses.

    ``scores``: float32 ``[n_tokens, E_PAD]``, logits if they are scored together (softmax). Grid: expert tiles,
    tokens. Gate and bias are weights: they are on their way before the predecessor has ended. ``EVEN``: there are no
    experts nor dims past the end of a tile.
    """
    token = tl.program_id(1)
    expert = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    every = tl.arange(0, E_PAD)
    col = tl.arange(0, BLOCK_D)
    row = gate_ptr + expert[:, None] * gate_stride + col[None, :]
    gate = _part(row, (expert < n_experts)[:, None] & (col < d)[None, :], EVEN)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + every, mask=every < n_experts, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    x_row = x_ptr + token.to(tl.int64) * x_stride + col
    sums = gate * _part(x_row, col < d, EVEN)[None, :]
    for step in tl.static_range(1, STEPS):
        skip = step * BLOCK_D
        gate = _part(row + skip, (expert < n_experts)[:, None] & (skip + col < d)[None, :], EVEN)
        sums += gate * _part(x_row + skip, skip + col < d, EVEN)[None, :]
    mine = tl.sum(sums, axis=1)
    if SCORING != "softmax":
        mine = _score(mine, SCORING)
    own = scores_ptr + token * E_PAD
    tl.store(own + expert, mine, mask=expert < n_experts)
    if arrives_last(counter_ptr + token, tl.num_programs(0)):
        scores = tl.load(own + every, mask=every < n_experts, other=0.0, cache_modifier=".cg")
        if SCORING == "softmax":
            scores = tl.where(every < n_experts, scores, float("-inf"))
            scores = tl.reshape(_score(scores[None, :], SCORING), (E_PAD,))
        ranked = scores
        if HAS_BIAS:
            ranked += bias
        chosen, weight = _best(scores, ranked, every, n_experts, TOP_K, K_PAD)
        if RENORMALISE:
            weight = weight / (tl.sum(weight, axis=0) + 1e-20)
        slot = tl.arange(0, K_PAD)
        place = token.to(tl.int64)
        tl.store(weights_ptr + place * weights_stride + slot, weight * scale, mask=slot < TOP_K)
        tl.store(experts_ptr + place * experts_stride + slot, chosen.to(tl.int64), mask=slot < TOP_K)
