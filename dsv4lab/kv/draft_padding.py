"""Metadata of a drafter's forwards in the shape of a batch bucket, so that a captured graph can be replayed for fewer.

Draft layers read rings only, so requests may bring different numbers of tokens, and no pages are named. Padded rows
are as in :mod:`dsv4lab.kv.padding`: slot 0, position 0, token id 0, one visible row.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn.functional import pad

from dsv4lab.errors import PoolError
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.index_streams import consecutive
from dsv4lab.kv.metadata import IndexStream, StepMetadata


def pad_draft(meta: StepMetadata, geometry: Geometry, requests: int, width: int) -> StepMetadata:
    """``meta`` of a decode forward of up to ``width`` tokens per request, as ``requests * width`` flat tokens.

    Real tokens come first. The last row of a padded request is the last flat row, which is padded too.
    Raises :class:`PoolError` for a forward that is no decode, or does not fit.
    """
    tokens = requests * width
    _check(meta, "decode", requests, tokens)
    extra, window = tokens - meta.T, meta.window
    bounds = torch.cat((window.indptr, window.indptr[-1] + torch.arange(1, extra + 1, dtype=torch.int32)))
    return replace(
        _flat(meta, requests, tokens),
        last_rows=pad(meta.last_rows, (0, requests - meta.n_items), value=tokens - 1),
        ring_store_src=torch.arange(tokens),
        ring_store_dst=pad(meta.ring_row, (0, extra)),
        streams={0: IndexStream(bounds, _indices(window.indices, tokens * geometry.window))},
    )


def pad_block(meta: StepMetadata, geometry: Geometry, requests: int, size: int) -> StepMetadata:
    """``meta`` of one DSpark block of ``size`` tokens per request, as blocks of ``requests``.

    A padded block sees itself and nothing before it. Raises :class:`PoolError` for blocks that do not fit.
    """
    tokens = requests * size
    _check(meta, "prefill", requests, tokens)
    if meta.n_items * size != meta.T:
        raise PoolError(f"{meta.n_items} blocks of {size} tokens have {meta.n_items * size}, got {meta.T}")
    prefix = meta.prefix[0]
    bounds = torch.cat((prefix.indptr, prefix.indptr[-1].repeat(tokens - meta.T)))
    first = torch.arange(requests).repeat_interleave(size) * size
    blocks = consecutive(first.numpy(), torch.full((tokens,), size).numpy())
    return replace(
        _flat(meta, requests, tokens),
        last_rows=torch.arange(size - 1, tokens, size),
        prefix={0: IndexStream(bounds, _indices(prefix.indices, tokens * geometry.window))},
        extend=IndexStream(
            torch.from_numpy(blocks.indptr).to(torch.int32), torch.from_numpy(blocks.indices).to(torch.int32)
        ),
    )


def _check(meta: StepMetadata, mode: str, requests: int, tokens: int) -> None:
    if meta.mode != mode or meta.csa is not None or meta.compress:
        raise PoolError(f"a drafter's bucket takes {mode} forwards of sliding-window layers, got one of {meta.mode}")
    if meta.n_items > requests or tokens < meta.T:
        raise PoolError(f"{meta.T} tokens of {meta.n_items} requests do not fit {tokens} of {requests}")


def _flat(meta: StepMetadata, requests: int, tokens: int) -> StepMetadata:
    """What every token has, and no pages."""
    extra = (0, tokens - meta.T)
    return replace(
        meta,
        T=tokens,
        token_ids=pad(meta.token_ids, extra),
        positions=pad(meta.positions, extra),
        slots=pad(meta.slots, extra),
        request=pad(meta.request, extra),
        ring_row=pad(meta.ring_row, extra),
        page_table=torch.zeros(requests, 1, dtype=torch.int32),
        visible4=pad(meta.visible4, extra),
        visible128=pad(meta.visible128, extra),
        csa_len=pad(meta.csa_len, extra),
    )


def _indices(indices: torch.Tensor, room: int) -> torch.Tensor:
    """Row 0 for padded tokens and for the rest of the ``room``."""
    return pad(indices, (0, room - indices.shape[0]))
