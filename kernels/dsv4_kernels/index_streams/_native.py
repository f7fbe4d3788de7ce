"""Compiled loop of the CSA tail."""

from __future__ import annotations

from dsv4_kernels.native import native


@native
def csa_stream(indices, indptr, topk, page_table, request, per_page, first_row, out):
    """See ``csa_stream_reference``."""
    if indices.shape[0] > out.shape[0]:
        raise IndexError("the stream has no room for its indices")
    for i in range(indices.shape[0]):
        out[i] = indices[i]
    for t in range(topk.shape[0]):
        count = 0
        while count < topk.shape[1] and topk[t, count] >= 0:
            count += 1
        tail = indptr[t + 1] - count
        if tail < 0 or indptr[t + 1] > out.shape[0] or not 0 <= request[t] < page_table.shape[0]:
            raise IndexError("a token's list or request lies outside the stream or the page table")
        for i in range(count):
            e = topk[t, i]
            if e >= page_table.shape[1] * per_page:
                raise IndexError("a selected entry lies outside the page table")
            out[tail + i] = first_row + page_table[request[t], e // per_page] * per_page + e % per_page
