"""Completion of a layer's CSA index stream after its top-k, in plain torch (dsv4-spec 4.1)."""

from __future__ import annotations

import torch


def csa_stream_reference(
    indices: torch.Tensor,
    tail: torch.Tensor,
    topk: torch.Tensor,
    page_table: torch.Tensor,
    request: torch.Tensor,
    *,
    entries_per_page: int,
    first_row: int,
    out: torch.Tensor,
) -> None:
    """Copy the known part of the stream to ``out`` and put the rows of the selected entries at its ``tail`` places.

    ``indices [N]`` int32: window rows, with holes for the selection; ``tail`` int64: the holes, token by token.
    ``topk`` int32 ``[T, k]``: selected entries per token, front-packed, -1 padded. Entry ``e`` of a token of request
    ``request[t]`` lies in row ``first_row + page_table[request[t], e // entries_per_page] * entries_per_page + e %
    entries_per_page``. ``out`` is int32 with room for ``N`` values.
    """
    out[: indices.numel()] = indices
    token, place = (topk >= 0).nonzero(as_tuple=True)
    entry = topk[token, place].long()
    page = page_table[request[token], entry // entries_per_page].long()
    out[tail] = (first_row + page * entries_per_page + entry % entries_per_page).to(out.dtype)
