"""Verify kernels: parts of each row's softmax, then acceptance and the race for the next token."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import arrives_last, uniform_of, uniforms_of

NEGATIVE = tl.constexpr(-3.0e38)


@triton.jit
def _parts_kernel(
    logits_ptr, temperature_ptr, top_ptr, sum_ptr, at_ptr, vocab, k, logits_stride_s, logits_stride_k, parts,
    PDL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Maximum, its token, and the sum of ``exp((x - max) / temperature)`` of a part (program 0) of a row."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
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
def _softmaxes_of(top_ptr, sum_ptr, at_ptr, first, k, parts, temperature, K_PAD: tl.constexpr, PARTS_PAD: tl.constexpr):
    """Maxima, sums and argmaxes, ``[K_PAD]`` each, of the ``k`` rows from ``first`` on, from their parts."""
    row, each = tl.arange(0, K_PAD), tl.arange(0, PARTS_PAD)
    there = (row < k)[:, None] & (each < parts)[None, :]
    at = (first + row)[:, None] * parts + each[None, :]
    tops = tl.load(top_ptr + at, mask=there, other=float("-inf"))
    sums = tl.load(sum_ptr + at, mask=there, other=0.0)
    places = tl.load(at_ptr + at, mask=there, other=2147483647)
    highest = tl.max(tops, axis=1)
    top = tl.maximum(highest, NEGATIVE)
    shares = tl.where(tops > NEGATIVE, sums * tl.exp((tops - top[:, None]) / temperature), 0.0)
    best = tl.min(tl.where(tops == highest[:, None], places, 2147483647), axis=1)
    return top, tl.sum(shares, axis=1), best


@triton.jit
def _of_row(values, mine):
    """The one of ``values`` that is ``mine``."""
    return tl.sum(tl.where(mine, values, 0), axis=0)


@triton.jit
def _verify_kernel(
    logits_ptr, draft_ptr, probs_ptr, temperature_ptr, seed_ptr, index_ptr, top_ptr, sum_ptr, at_ptr,
    best_ptr, place_ptr, counter_ptr, accepted_ptr, tokens_ptr, vocab, k, logits_stride_s, logits_stride_k,
    draft_stride, probs_stride_s, probs_stride_k, tokens_stride, parts,
    HAS_PROBS: tl.constexpr, K_PAD: tl.constexpr, PARTS_PAD: tl.constexpr, PDL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Acceptance of a request, which every part works out for itself, and one part (program 0) of the race."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    s, part = tl.program_id(1), tl.program_id(0)
    temperature = tl.load(temperature_ptr + s)
    greedy = temperature == 0.0
    divisor = tl.where(greedy, 1.0, temperature)
    seed, number = tl.load(seed_ptr + s), tl.load(index_ptr + s)
    base = logits_ptr + s.to(tl.int64) * logits_stride_s
    i = tl.arange(0, K_PAD)
    drafted = i < k - 1
    tops, totals, bests = _softmaxes_of(top_ptr, sum_ptr, at_ptr, s * k, k, parts, divisor, K_PAD, PARTS_PAD)
    draft = tl.load(draft_ptr + s * draft_stride + i, mask=drafted, other=-1)
    x = tl.load(base + i * logits_stride_k + draft, mask=drafted, other=0.0).to(tl.float32)
    p = tl.exp((x - tops) / divisor) / totals
    q = 1.0
    if HAS_PROBS:
        of_drafts = probs_ptr + s.to(tl.int64) * probs_stride_s + i * probs_stride_k
        q = tl.load(of_drafts + draft, mask=drafted, other=1.0)
    u = uniform_of(seed, number + i, 1)
    holds = tl.where(greedy, bests.to(tl.int64) == draft, u * q < p)
    count = tl.min(tl.where(drafted & (holds == 0), i, k - 1), axis=0)
    mine = i == count
    top, total, argmax = _of_row(tops, mine), _of_row(totals, mine), _of_row(bests, mine)
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
        weight = tl.where(token == _of_row(draft, mine), 0.0, weight)  # -1 if all are accepted
    u = uniforms_of(seed, part * BLOCK, number + count, 2, BLOCK)
    lap = tl.where(weight > 0.0, tl.log(weight) - tl.log(-tl.log(u)), float("-inf"))
    best, at = tl.max(lap, axis=0, return_indices=True)
    tl.store(best_ptr + s * parts + part, best)
    tl.store(place_ptr + s * parts + part, part * BLOCK + at)
    if arrives_last(counter_ptr + s, parts):
        each = tl.arange(0, PARTS_PAD)
        there = each < parts
        laps = tl.load(best_ptr + s * parts + each, mask=there, other=float("-inf"), cache_modifier=".cg")
        places = tl.load(place_ptr + s * parts + each, mask=there, other=0, cache_modifier=".cg")
        lead = tl.max(laps, axis=0)
        winner = tl.min(tl.where(laps == lead, places, 2147483647), axis=0)
        last = tl.where(greedy | (lead == float("-inf")), argmax, winner).to(tl.int64)
        chosen = tl.where(i < count, draft, tl.where(mine, last, -1))
        tl.store(tokens_ptr + s * tokens_stride + i, chosen, mask=i < k)
        tl.store(accepted_ptr + s, count)
