"""Verify kernels: parts of each row's softmax, then acceptance and the race for the next token."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import arrives_last, uniform_of, uniforms_of

NEGATIVE = tl.constexpr(-3.0e38)


@triton.jit
def _parts_kernel(
    logits_ptr, temperature_ptr, top_ptr, sum_ptr, at_ptr, vocab, k, logits_stride_s, logits_stride_k, parts,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Maximum, its token, and the sum of ``exp((x - max) / temperature)`` of a part (program 0) of a row."""
    row, part = tl.program_id(1), tl.program_id(0)
    s, i = row // k, row % k
    token = part * BLOCK + tl.arange(0, BLOCK)
    base = logits_ptr + s.to(tl.int64) * logits_stride_s + i * logits_stride_k
    x = tl.load(base + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
    temperature = tl.load(temperature_ptr + s)
    top, at = tl.max(x, axis=0, return_indices=True)
    shift = tl.maximum(top, NEGATIVE)
    total = tl.sum(tl.exp((x - shift) / tl.where(temperature == 0.0, 1.0, temperature)), axis=0)
    tl.store(top_ptr + row * parts + part, top)
    tl.store(sum_ptr + row * parts + part, total)
    tl.store(at_ptr + row * parts + part, part * BLOCK + at)


@triton.jit
def _softmax_of(top_ptr, sum_ptr, at_ptr, row, parts, temperature, PARTS_PAD: tl.constexpr):
    """Maximum, sum and argmax of a row from its parts, added in order of the parts."""
    each = tl.arange(0, PARTS_PAD)
    there = each < parts
    tops = tl.load(top_ptr + row * parts + each, mask=there, other=float("-inf"))
    sums = tl.load(sum_ptr + row * parts + each, mask=there, other=0.0)
    places = tl.load(at_ptr + row * parts + each, mask=there, other=2147483647)
    top = tl.maximum(tl.max(tops, axis=0), NEGATIVE)
    total = tl.sum(tl.where(tops > NEGATIVE, sums * tl.exp((tops - top) / temperature), 0.0), axis=0)
    best = tl.min(tl.where(tops == tl.max(tops, axis=0), places, 2147483647), axis=0)
    return top, total, best


@triton.jit
def _verify_kernel(
    logits_ptr, draft_ptr, probs_ptr, temperature_ptr, seed_ptr, index_ptr, top_ptr, sum_ptr, at_ptr,
    best_ptr, place_ptr, counter_ptr, accepted_ptr, tokens_ptr, vocab, k, logits_stride_s, logits_stride_k,
    draft_stride, probs_stride_s, probs_stride_k, tokens_stride, parts, race_parts,
    HAS_PROBS: tl.constexpr, PARTS_PAD: tl.constexpr, RACE_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Acceptance of a request, which every part works out for itself, and one part (program 0) of the race."""
    s, part = tl.program_id(1), tl.program_id(0)
    temperature = tl.load(temperature_ptr + s)
    greedy = temperature == 0.0
    divisor = tl.where(greedy, 1.0, temperature)
    seed, number = tl.load(seed_ptr + s), tl.load(index_ptr + s)
    base = logits_ptr + s.to(tl.int64) * logits_stride_s
    count = 0
    going = 1
    for i in range(k - 1):
        top, total, best = _softmax_of(top_ptr, sum_ptr, at_ptr, s * k + i, parts, divisor, PARTS_PAD)
        token = tl.load(draft_ptr + s * draft_stride + i)
        x = tl.load(base + i * logits_stride_k + token).to(tl.float32)
        p = tl.exp((x - top) / divisor) / total
        q = 1.0
        if HAS_PROBS:
            q = tl.load(probs_ptr + s.to(tl.int64) * probs_stride_s + i * probs_stride_k + token)
        u = uniform_of(seed, number + i, 1)
        holds = tl.where(greedy, best.to(tl.int64) == token, u * q < p)
        going = going * holds.to(tl.int32)
        count += going
    top, total, argmax = _softmax_of(top_ptr, sum_ptr, at_ptr, s * k + count, parts, divisor, PARTS_PAD)
    token = part * BLOCK + tl.arange(0, BLOCK)
    mask = token < vocab
    x = tl.load(base + count * logits_stride_k + token, mask=mask, other=float("-inf")).to(tl.float32)
    weight = tl.where(mask, tl.exp((x - top) / divisor) / total, 0.0)
    rejected = count < k - 1
    if HAS_PROBS:
        where = probs_ptr + s.to(tl.int64) * probs_stride_s + count * probs_stride_k
        q = tl.load(where + token, mask=mask & rejected, other=0.0)
        weight = tl.maximum(weight - q, 0.0)
    else:
        refused = tl.load(draft_ptr + s * draft_stride + count, mask=rejected, other=-1)
        weight = tl.where(token == refused, 0.0, weight)
    u = uniforms_of(seed, part * BLOCK, number + count, 2, BLOCK)
    lap = tl.where(weight > 0.0, tl.log(weight) - tl.log(-tl.log(u)), float("-inf"))
    best, at = tl.max(lap, axis=0, return_indices=True)
    tl.store(best_ptr + s * race_parts + part, best)
    tl.store(place_ptr + s * race_parts + part, part * BLOCK + at)
    if arrives_last(counter_ptr + s, race_parts):
        each = tl.arange(0, RACE_PAD)
        there = each < race_parts
        bests = tl.load(best_ptr + s * race_parts + each, mask=there, other=float("-inf"), cache_modifier=".cg")
        places = tl.load(place_ptr + s * race_parts + each, mask=there, other=0, cache_modifier=".cg")
        lead = tl.max(bests, axis=0)
        winner = tl.min(tl.where(bests == lead, places, 2147483647), axis=0)
        last = tl.where(greedy | (lead == float("-inf")), argmax, winner).to(tl.int64)
        for i in range(k):
            old = tl.load(draft_ptr + s * draft_stride + i, mask=i < k - 1, other=-1)
            tl.store(tokens_ptr + s * tokens_stride + i, tl.where(i < count, old, tl.where(i == count, last, -1)))
        tl.store(accepted_ptr + s, count)
