"""Index streams of a forward, and a layer's CSA stream after its top-k, in plain torch (dsv4-spec 4.1, 4.2)."""

from __future__ import annotations

import torch


def csa_stream_reference(
    indices: torch.Tensor,
    indptr: torch.Tensor,
    topk: torch.Tensor,
    page_table: torch.Tensor,
    request: torch.Tensor,
    *,
    entries_per_page: int,
    first_row: int,
    out: torch.Tensor,
) -> None:
    """Copy the known part of the stream to ``out`` and put the rows of the selected entries behind each token's.

    Token ``t`` has ``indices[indptr[t]:indptr[t + 1]]`` (int32): window rows, then as many holes as it has selected
    entries. ``topk`` int32 ``[T, k]``: selected entries per token, front-packed, -1 padded. Entry ``e`` of a token of
    request ``request[t]`` lies in row ``first_row + page_table[request[t], e // entries_per_page] * entries_per_page +
    e % entries_per_page``. ``out`` is int32 with room for all of ``indices``.
    """
    out[: indices.numel()] = indices
    chosen = topk >= 0
    token, place = chosen.nonzero(as_tuple=True)
    entry = topk[token, place].long()
    page = page_table[request[token], entry // entries_per_page].long()
    tail = indptr[1:].long() - chosen.sum(1)
    out[tail[token] + place] = (first_row + page * entries_per_page + entry % entries_per_page).to(out.dtype)


def index_streams_reference(
    positions: torch.Tensor,
    slots: torch.Tensor,
    starts: torch.Tensor,
    first_rows: torch.Tensor,
    request: torch.Tensor,
    page_table: torch.Tensor,
    *,
    window: int,
    ring_rows: int,
    swa_rows: int,
    topk: int,
    hca_entries_per_page: int,
    pool_indptr: torch.Tensor,
    pool_indices: torch.Tensor,
    hca_indptr: torch.Tensor | None,
    hca_indices: torch.Tensor | None,
    csa_indptr: torch.Tensor | None,
    csa_indices: torch.Tensor | None,
    extend_indptr: torch.Tensor | None,
    extend_indices: torch.Tensor | None,
    ring_row: torch.Tensor,
) -> None:
    """Every list of a forward, written to the front of int32 buffers with room for the longest.

    Per token, int64 ``[T]``: ``positions``, ``slots``, ``starts`` (first position of its request in this forward, or
    for decode, where all K is stored before attention, any position after its own), ``first_rows`` (flat row of that
    position), ``request``. ``pool``: window rows that the ring holds; ``hca``: the same and the rows of all visible
    ratio-128 entries; ``csa``: the same and -1 for each entry that top-k will choose; ``extend``: flat rows of this
    forward's part of the window. ``ring_row`` int64 ``[T]``: where each token's own row goes.
    """
    low = (positions + 1 - window).clamp(min=0)
    extend = (positions + 1 - starts).clamp(min=0).clamp(max=window)
    before = positions + 1 - low - extend
    ring_row.copy_(slots * ring_rows + positions % ring_rows)
    streams: list[list[torch.Tensor]] = [[], [], [], []]
    for t in range(positions.shape[0]):
        at = low[t] + torch.arange(int(before[t]), device=positions.device)
        ring = slots[t] * ring_rows + at % ring_rows
        entry = torch.arange(int(positions[t] + 1) // 128, device=positions.device)
        page = page_table[request[t], entry // hca_entries_per_page].long()
        holes = ring.new_full((min(int(positions[t] + 1) // 4, topk),), -1)
        flat = first_rows[t] + positions[t] - starts[t] - extend[t] + 1
        streams[0].append(ring)
        streams[1].append(torch.cat((ring, swa_rows + page * hca_entries_per_page + entry % hca_entries_per_page)))
        streams[2].append(torch.cat((ring, holes)))
        streams[3].append(flat + torch.arange(int(extend[t]), device=positions.device))
    buffers = (
        (pool_indptr, pool_indices),
        (hca_indptr, hca_indices),
        (csa_indptr, csa_indices),
        (extend_indptr, extend_indices),
    )
    for lists, (indptr, indices) in zip(streams, buffers, strict=True):
        if indptr is None or indices is None:
            continue
        lengths = torch.tensor([0, *(len(rows) for rows in lists)], device=indptr.device)
        indptr.copy_(lengths.cumsum(0))
        joined = torch.cat(lists) if lists else indices[:0]
        indices[: joined.numel()] = joined.to(indices.dtype)
