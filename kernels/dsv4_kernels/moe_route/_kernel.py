"""Router kernels: scores of all experts (split over experts, tokens and the hidden dim), then the choice."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import arrives_last, ordered_key

NEGATIVE = tl.constexpr(-3.0e38)


@triton.jit
def _score(logits, SCORING: tl.constexpr):
    """Router scores of float32 logits; softplus by log1p's rule, exact for very negative logits."""
    if SCORING == "sqrtsoftplus":
        tail = tl.exp(-tl.abs(logits))
        # log1p(t) by Kahan: t where 1 + t rounds to 1, else log(u) corrected by the rounding of u.
        u = 1.0 + tail
        log1p = tl.where(u == 1.0, tail, tl.log(u) * (tail / tl.where(u == 1.0, 1.0, u - 1.0)))
        scores = tl.sqrt(tl.maximum(logits, 0.0) + log1p)
    elif SCORING == "sigmoid":
        scores = 1.0 / (1.0 + tl.exp(-logits))
    else:
        shifted = tl.exp(logits - tl.max(logits, axis=1)[:, None])
        scores = shifted / tl.sum(shifted, axis=1)[:, None]
    return scores


@triton.jit
def _choose(
    scores, row, inside, expert, bias_ptr, table_ptr, token_ids_ptr, weights_ptr, experts_ptr,
    n_experts, table_stride, weights_stride, experts_stride, scale,
    HAS_BIAS: tl.constexpr, HAS_TABLE: tl.constexpr, RENORMALISE: tl.constexpr,
    TOP_K: tl.constexpr, K_PAD: tl.constexpr,
):  # fmt: skip
    """Top-k (ties: lowest expert) or table choice of ``scores [BT, BE]``, with weights of the chosen."""
    slot = tl.arange(0, K_PAD)
    chosen = tl.zeros((scores.shape[0], K_PAD), tl.int32)
    ranked = scores
    if HAS_BIAS:
        ranked += tl.load(bias_ptr + expert, mask=expert < n_experts, other=0.0)[None, :]
    ranked = tl.where((expert < n_experts)[None, :] & (ranked == ranked), ranked, NEGATIVE)
    ranked = tl.where((expert >= n_experts)[None, :], float("-inf"), ranked)
    if HAS_TABLE:
        token = tl.load(token_ids_ptr + row, mask=inside, other=0)
        at = table_ptr + token[:, None] * table_stride + slot[None, :]
        chosen = tl.load(at, mask=inside[:, None] & (slot < TOP_K)[None, :], other=0).to(tl.int32)
    else:
        # One maximum per slot: the rank in the high word, the lower expert winning in the low word.
        keys = (ordered_key(ranked) << 31) | (2147483647 - expert)[None, :].to(tl.int64)
        for at in range(TOP_K):
            best = tl.max(keys, axis=1)
            found = 2147483647 - (best & 2147483647).to(tl.int32)
            chosen = tl.where((slot == at)[None, :], found[:, None], chosen)
            keys = tl.where(keys == best[:, None], 0, keys)
    # A sum over one-hot columns: `tl.gather` along experts crashes LLVM for AMD (Triton 3.6).
    hit = (expert[None, :, None] == chosen[:, None, :]) & (slot < TOP_K)[None, None, :]
    weight = tl.sum(tl.where(hit, scores[:, :, None], 0.0), axis=1)
    if RENORMALISE:
        weight = weight / (tl.sum(weight, axis=1) + 1e-20)[:, None]
    mask = inside[:, None] & (slot < TOP_K)[None, :]
    tl.store(weights_ptr + row[:, None] * weights_stride + slot[None, :], weight * scale, mask=mask)
    tl.store(experts_ptr + row[:, None] * experts_stride + slot[None, :], chosen.to(tl.int64), mask=mask)


@triton.jit
def _route_kernel(
    x_ptr, gate_ptr, bias_ptr, table_ptr, token_ids_ptr, weights_ptr, experts_ptr, partial_ptr, counter_ptr,
    n_tokens, n_experts, d, x_stride, gate_stride, table_stride, weights_stride, experts_stride, scale,
    PDL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_TABLE: tl.constexpr, SCORING: tl.constexpr,
    RENORMALISE: tl.constexpr,
    TOP_K: tl.constexpr, K_PAD: tl.constexpr, E_PAD: tl.constexpr, SPLIT_D: tl.constexpr, DOT: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr,
    CHOOSE_T: tl.constexpr,
):  # fmt: skip
    """Logits of ``BLOCK_T`` tokens and ``BLOCK_E`` experts over one split of ``d``; the last one of a tile chooses.

    ``partial``: float32 ``[SPLITS, n_tokens, E_PAD]``. Grid: expert tiles, token tiles, splits.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    tile, split = tl.program_id(1), tl.program_id(2)
    row = tile * BLOCK_T + tl.arange(0, BLOCK_T)
    row = row.to(tl.int64)
    inside = row < n_tokens
    expert = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    if DOT:
        acc = tl.zeros((BLOCK_T, BLOCK_E), tl.float32)
        for at in range(0, SPLIT_D, BLOCK_D):
            col = split * SPLIT_D + at + tl.arange(0, BLOCK_D)
            x = tl.load(
                x_ptr + row[:, None] * x_stride + col[None, :], mask=inside[:, None] & (col < d)[None, :], other=0.0
            )
            gate = tl.load(
                gate_ptr + expert[None, :] * gate_stride + col[:, None],
                mask=(expert < n_experts)[None, :] & (col < d)[:, None], other=0.0,
            )  # fmt: skip
            acc = tl.dot(x, gate, acc, input_precision="ieee")
        mask = inside[:, None] & (expert < E_PAD)[None, :]
        tl.store(partial_ptr + (split * n_tokens + row[:, None]) * E_PAD + expert[None, :], acc, mask=mask)
    else:
        for t in tl.static_range(BLOCK_T):
            token = tile * BLOCK_T + t
            sums = tl.zeros((BLOCK_E, BLOCK_D), tl.float32)
            for at in range(0, SPLIT_D, BLOCK_D):
                col = split * SPLIT_D + at + tl.arange(0, BLOCK_D)
                x = tl.load(x_ptr + token.to(tl.int64) * x_stride + col, mask=(col < d) & (token < n_tokens), other=0.0)
                gate = tl.load(
                    gate_ptr + expert[:, None] * gate_stride + col[None, :],
                    mask=(expert < n_experts)[:, None] & (col < d)[None, :], other=0.0,
                )  # fmt: skip
                sums += gate.to(tl.float32) * x.to(tl.float32)[None, :]
            dots = tl.sum(sums, axis=1)
            tl.store(
                partial_ptr + (split * n_tokens + token) * E_PAD + expert, dots,
                mask=(expert < E_PAD) & (token < n_tokens),
            )  # fmt: skip
    if arrives_last(counter_ptr + tile, tl.num_programs(0) * tl.num_programs(2)):
        every = tl.arange(0, E_PAD)
        for first in range(0, tl.minimum(BLOCK_T, n_tokens - tile * BLOCK_T), CHOOSE_T):
            mine = (tile * BLOCK_T + first + tl.arange(0, CHOOSE_T)).to(tl.int64)
            there = mine < n_tokens
            logits = tl.zeros((CHOOSE_T, E_PAD), tl.float32)
            for s in tl.static_range(SPLITS):  # unrolled: the loads wait together
                logits += tl.load(
                    partial_ptr + (s * n_tokens + mine[:, None]) * E_PAD + every[None, :], mask=there[:, None],
                    other=0.0, cache_modifier=".cg",
                )  # fmt: skip
            if SCORING == "softmax":
                logits = tl.where((every < n_experts)[None, :], logits, float("-inf"))
            _choose(
                _score(logits, SCORING), mine, there, every, bias_ptr, table_ptr, token_ids_ptr, weights_ptr,
                experts_ptr, n_experts, table_stride, weights_stride, experts_stride, scale,
                HAS_BIAS, HAS_TABLE, RENORMALISE, TOP_K, K_PAD,
            )  # fmt: skip


@triton.jit
def _hash_route_kernel(
    x_ptr, gate_ptr, table_ptr, token_ids_ptr, weights_ptr, experts_ptr,
    d, x_stride, gate_stride, table_stride, weights_stride, experts_stride, scale,
    PDL: tl.constexpr, SCORING: tl.constexpr, RENORMALISE: tl.constexpr, TOP_K: tl.constexpr, K_PAD: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A token's experts from the table, and only their scores: one program per token."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, K_PAD)
    entry = tl.load(token_ids_ptr + token)
    expert = tl.load(table_ptr + entry * table_stride + slot, mask=slot < TOP_K, other=0).to(tl.int64)
    sums = tl.zeros((K_PAD, BLOCK_D), tl.float32)
    for at in range(0, d, BLOCK_D):
        col = at + tl.arange(0, BLOCK_D)
        x = tl.load(x_ptr + token * x_stride + col, mask=col < d, other=0.0).to(tl.float32)
        gate = tl.load(
            gate_ptr + expert[:, None] * gate_stride + col[None, :],
            mask=(slot < TOP_K)[:, None] & (col < d)[None, :], other=0.0,
        )  # fmt: skip
        sums += gate.to(tl.float32) * x[None, :]
    weight = tl.where(slot < TOP_K, _score(tl.sum(sums, axis=1), SCORING), 0.0)
    if RENORMALISE:
        weight = weight / (tl.sum(weight, axis=0) + 1e-20)
    tl.store(weights_ptr + token * weights_stride + slot, weight * scale, mask=slot < TOP_K)
    tl.store(experts_ptr + token * experts_stride + slot, expert, mask=slot < TOP_K)
