"""Index streams on the device: all lists of a forward in one launch, and a layer's CSA tail after its top-k."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.jit import follow


@triton.jit
def _counts(position, start, window, topk):
    """Rows of a token in the pool before the forward, of the forward itself, and its compressed entries."""
    low = tl.maximum(position + 1 - window, 0)
    extend = tl.minimum(tl.maximum(position + 1 - start, 0), window)
    before = position + 1 - low - extend
    return low, before, extend, (position + 1) // 128, tl.minimum((position + 1) // 4, topk)


@triton.jit(do_not_specialize=["n_tokens"])
def _streams_kernel(
    positions_ptr, slots_ptr, starts_ptr, first_rows_ptr, request_ptr, page_table_ptr,
    pool_indptr, pool_indices, hca_indptr, hca_indices, csa_indptr, csa_indices, extend_indptr, extend_indices,
    ring_row_ptr, n_tokens, window, ring_rows, swa_rows, topk, page_table_stride,
    HCA_PER_PAGE: tl.constexpr, HCA: tl.constexpr, CSA: tl.constexpr, EXTEND: tl.constexpr, PDL: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per token; each sums the lengths of all tokens before it, which is what saves a second launch."""
    follow(PDL)
    token = tl.program_id(0)
    pool_begin = 0
    hca_sum = 0
    csa_sum = 0
    extend_begin = 0
    for at in range(0, token, BLOCK_T):
        t = at + tl.arange(0, BLOCK_T)
        p = tl.load(positions_ptr + t, t < token, -1).to(tl.int32)
        s = tl.load(starts_ptr + t, t < token, 0).to(tl.int32)
        _, before, extend, n128, n4 = _counts(p, s, window, topk)
        live = t < token
        pool_begin += tl.sum(tl.where(live, before, 0), 0)
        hca_sum += tl.sum(tl.where(live, n128, 0), 0)
        csa_sum += tl.sum(tl.where(live, n4, 0), 0)
        extend_begin += tl.sum(tl.where(live, extend, 0), 0)
    position = tl.load(positions_ptr + token).to(tl.int32)
    slot = tl.load(slots_ptr + token).to(tl.int32)
    start = tl.load(starts_ptr + token).to(tl.int32)
    low, before, extend, n128, n4 = _counts(position, start, window, topk)
    last = token == n_tokens - 1
    tl.store(ring_row_ptr + token, (slot * ring_rows + position % ring_rows).to(tl.int64))

    tl.store(pool_indptr + token, pool_begin)
    tl.store(pool_indptr + token + 1, pool_begin + before, last)
    hca_begin = pool_begin + hca_sum
    csa_begin = pool_begin + csa_sum
    if HCA:
        tl.store(hca_indptr + token, hca_begin)
        tl.store(hca_indptr + token + 1, hca_begin + before + n128, last)
    if CSA:
        tl.store(csa_indptr + token, csa_begin)
        tl.store(csa_indptr + token + 1, csa_begin + before + n4, last)
    k = tl.arange(0, BLOCK)
    for at in range(0, before, BLOCK):
        i = at + k
        row = slot * ring_rows + (low + i) % ring_rows
        tl.store(pool_indices + pool_begin + i, row, i < before)
        if HCA:
            tl.store(hca_indices + hca_begin + i, row, i < before)
        if CSA:
            tl.store(csa_indices + csa_begin + i, row, i < before)
    if CSA:
        for at in range(0, n4, BLOCK):
            tl.store(csa_indices + csa_begin + before + at + k, tl.full((BLOCK,), -1, tl.int32), at + k < n4)
    if HCA:
        pages = page_table_ptr + tl.load(request_ptr + token) * page_table_stride
        for at in range(0, n128, BLOCK):
            e = at + k
            page = tl.load(pages + e // HCA_PER_PAGE, e < n128, 0)
            row = swa_rows + page * HCA_PER_PAGE + e % HCA_PER_PAGE
            tl.store(hca_indices + hca_begin + before + e, row, e < n128)
    if EXTEND:
        tl.store(extend_indptr + token, extend_begin)
        tl.store(extend_indptr + token + 1, extend_begin + extend, last)
        flat = tl.load(first_rows_ptr + token).to(tl.int32) + position - start - extend + 1
        for at in range(0, extend, BLOCK):
            tl.store(extend_indices + extend_begin + at + k, flat + at + k, at + k < extend)


@triton.jit
def _csa_stream_kernel(
    indices_ptr, indptr_ptr, topk_ptr, page_table_ptr, request_ptr, out_ptr, topk_stride, page_table_stride, first_row,
    K: tl.constexpr, BLOCK_KK: tl.constexpr, PER_PAGE: tl.constexpr, PDL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per token: copy the window part, write the selected entries' rows behind it."""
    follow(PDL)
    token = tl.program_id(0)
    begin = tl.load(indptr_ptr + token)
    end = tl.load(indptr_ptr + token + 1)
    request = tl.load(request_ptr + token)
    k = tl.arange(0, BLOCK_KK)
    entry = tl.load(topk_ptr + token.to(tl.int64) * topk_stride + k, k < K, -1)
    tail = end - tl.sum((entry >= 0).to(tl.int32), 0)
    page = tl.load(page_table_ptr + request * page_table_stride + entry // PER_PAGE, entry >= 0, 0)
    tl.store(out_ptr + tail + k, first_row + page * PER_PAGE + entry % PER_PAGE, entry >= 0)
    for at in range(begin, tail, BLOCK):
        i = at + tl.arange(0, BLOCK)
        tl.store(out_ptr + i, tl.load(indices_ptr + i, i < tail, 0), i < tail)
