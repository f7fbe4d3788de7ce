"""Sampling kernels: a row is split over programs; the one that arrives last puts the parts together."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import arrives_last, ordered_key, uniforms_of

WAYS = tl.constexpr(32)
MASS_ONE = tl.constexpr(4294967296.0)


@triton.jit
def _choose_kernel(
    logits_ptr, temperature_ptr, floor_ptr, seed_ptr, index_ptr, best_ptr, at_ptr, counter_ptr, out_ptr,
    vocab, logits_stride, parts,
    PDL: tl.constexpr, FILTERED: tl.constexpr, PARTS_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The best token of row ``program 1``; part ``program 0`` looks at ``BLOCK`` of them."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row, part = tl.program_id(1), tl.program_id(0)
    token = part * BLOCK + tl.arange(0, BLOCK)
    mask = token < vocab
    x = tl.load(logits_ptr + row.to(tl.int64) * logits_stride + token, mask=mask, other=float("-inf")).to(tl.float32)
    temperature = tl.load(temperature_ptr + row)
    ranked = x
    if temperature != 0.0:
        u = uniforms_of(tl.load(seed_ptr + row), part * BLOCK, tl.load(index_ptr + row), 0, BLOCK)
        ranked = tl.div_rn(x, temperature) - tl.log(-tl.log(u))
        if FILTERED:
            ranked = tl.where(ordered_key(x) >= tl.load(floor_ptr + row), ranked, float("-inf"))
    ranked = tl.where(x == float("-inf"), float("-inf"), ranked)
    bad = tl.max(((x != x) | (x == float("inf"))).to(tl.int32), axis=0)
    best, at = tl.max(ranked, axis=0, return_indices=True)
    best = tl.where(bad != 0, float("inf"), best)
    tl.store(best_ptr + row * parts + part, best)
    tl.store(at_ptr + row * parts + part, part * BLOCK + at)
    if arrives_last(counter_ptr + row, parts):
        each = tl.arange(0, PARTS_PAD)
        bests = tl.load(best_ptr + row * parts + each, mask=each < parts, other=float("-inf"), cache_modifier=".cg")
        places = tl.load(at_ptr + row * parts + each, mask=each < parts, other=0, cache_modifier=".cg")
        top = tl.max(bests, axis=0)
        found = tl.min(tl.where(bests == top, places, 2147483647), axis=0)
        token_of = tl.where((top == float("inf")) | (top == float("-inf")), -1, found)
        tl.store(out_ptr + row, token_of.to(tl.int64))


@triton.jit
def _largest_kernel(logits_ptr, state_ptr, counter_ptr, largest_ptr, floor_ptr, vocab, logits_stride, parts,
                    BLOCK: tl.constexpr):  # fmt: skip
    """Key of the largest logit of each row into ``largest``; ``floor`` starts at key 0, below every logit."""
    row, part = tl.program_id(1), tl.program_id(0)
    token = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + row.to(tl.int64) * logits_stride + token, mask=token < vocab, other=float("-inf"))
    tl.atomic_max(state_ptr + row * 33 + 32, tl.max(ordered_key(x.to(tl.float32)), axis=0))
    if arrives_last(counter_ptr + row, parts):
        tl.store(largest_ptr + row, tl.load(state_ptr + row * 33 + 32, cache_modifier=".cg"))
        tl.store(state_ptr + row * 33 + 32, 0)
        tl.store(floor_ptr + row, 0)


@triton.jit
def _narrow_kernel(
    logits_ptr, temperature_ptr, wanted_ptr, largest_ptr, floor_ptr, base_ptr, target_ptr, state_ptr, counter_ptr,
    vocab, logits_stride, parts, shift,
    MASS: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Narrow each row's floor down by five bits: the highest of 32 keys that still has enough tokens (or mass) above.

    ``floor`` is the key found so far; ``base`` the key below which nothing counts (the floor of top-k for top-p);
    ``target`` float64, set by the first pass. ``state``: 32 sums a row, int64, zero before and after.
    """
    row, part = tl.program_id(1), tl.program_id(0)
    token = part * BLOCK + tl.arange(0, BLOCK)
    mask = token < vocab
    x = tl.load(logits_ptr + row.to(tl.int64) * logits_stride + token, mask=mask, other=float("-inf")).to(tl.float32)
    key = ordered_key(x)
    if FIRST:
        low = tl.zeros((), tl.int64)
    else:
        low = tl.load(floor_ptr + row)
    if MASS:
        temperature = tl.load(temperature_ptr + row)
        bits = (tl.load(largest_ptr + row) - 2147483648).to(tl.int32)
        top = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)
        scaled = (x - top) / tl.where(temperature == 0.0, 1.0, temperature)
        weight = (tl.exp(tl.where(scaled == scaled, scaled, float("-inf"))) * MASS_ONE).to(tl.int64)
        weight = tl.where(mask & (key >= tl.load(base_ptr + row)), weight, 0)
    else:
        weight = mask.to(tl.int64)
    way = tl.arange(0, WAYS)
    edge = low + (way.to(tl.int64) << shift)
    sums = tl.sum(tl.where(key[None, :] >= edge[:, None], weight[None, :], 0), axis=1)
    tl.atomic_add(state_ptr + row * 33 + way, sums, mask=sums > 0)
    if arrives_last(counter_ptr + row, parts):
        total = tl.load(state_ptr + row * 33 + way, cache_modifier=".cg")
        tl.store(state_ptr + row * 33 + way, tl.zeros((WAYS,), tl.int64))
        if FIRST:
            if MASS:
                whole = tl.max(total, axis=0).to(tl.float64)
                target = tl.load(wanted_ptr + row).to(tl.float64) * whole
            else:
                k = tl.load(wanted_ptr + row)
                target = tl.where(k == 0, vocab, tl.minimum(k, vocab)).to(tl.float64)
            tl.store(target_ptr + row, target)
        else:
            target = tl.load(target_ptr + row)
        enough = total.to(tl.float64) >= target
        tl.store(floor_ptr + row, tl.max(tl.where(enough, edge, low), axis=0))
