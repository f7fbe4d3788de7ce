"""Decode metadata of one shape per batch bucket, so that a captured graph can be replayed for fewer requests.

Padded rows follow dsv4-spec 4.7 and 6.8: slot 0, position 0, token id 0, one visible row, page 0. They read and write
what nobody owns. Lists that are longer than needed end in entries that no ``indptr`` reaches; compressed entries and
state rows that do not exist have row -1, which kernels skip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import pad

from dsv4lab.errors import PoolError
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.metadata import CompressPlan, CsaStream, IndexStream, StepMetadata


@dataclass(frozen=True, slots=True)
class Bucket:
    """``requests`` of ``width`` tokens each (1: decode; more: verify), with at most ``pages`` pages to a request."""

    requests: int
    width: int
    pages: int

    @property
    def tokens(self) -> int:
        """Flat tokens."""
        return self.requests * self.width


def pad_decode(meta: StepMetadata, geometry: Geometry, index_topk: int, bucket: Bucket) -> StepMetadata:
    """``meta`` of a decode or verify forward, every tensor with the shape that ``bucket`` alone determines.

    Raises :class:`PoolError` for a forward that is no decode, has another width, or does not fit the bucket.
    """
    if meta.mode != "decode" or meta.n_items * bucket.width != meta.T:
        raise PoolError(
            f"a bucket of width {bucket.width} takes decode forwards of so many tokens per request, "
            f"got {meta.T} tokens of {meta.n_items} requests in {meta.mode}"
        )
    if meta.n_items > bucket.requests or meta.page_table.shape[1] > bucket.pages:
        raise PoolError(
            f"{meta.n_items} requests of up to {meta.page_table.shape[1]} pages do not fit a bucket of "
            f"{bucket.requests} requests of {bucket.pages} pages"
        )
    extra, window = bucket.tokens - meta.T, geometry.window
    entries = bucket.pages * geometry.entries_per_page(128) if 128 in geometry.ratios else 0
    return replace(
        meta,
        T=bucket.tokens,
        token_ids=pad(meta.token_ids, (0, extra)),
        positions=pad(meta.positions, (0, extra)),
        slots=pad(meta.slots, (0, extra)),
        request=torch.arange(bucket.requests).repeat_interleave(bucket.width),
        ring_row=pad(meta.ring_row, (0, extra)),
        last_rows=torch.arange(bucket.width - 1, bucket.tokens, bucket.width),
        page_table=_table(meta.page_table, bucket),
        visible4=pad(meta.visible4, (0, extra)),
        visible128=pad(meta.visible128, (0, extra)),
        csa_len=pad(meta.csa_len, (0, extra)),
        ring_store_src=torch.arange(bucket.tokens),
        ring_store_dst=pad(meta.ring_row, (0, extra)),
        compress={ratio: _compress(plan, bucket.tokens) for ratio, plan in meta.compress.items()},
        csa=None if meta.csa is None else _csa(meta.csa, extra, bucket.tokens, window, index_topk),
        streams=_streams(meta.streams, extra, bucket.tokens, {0: window, 128: window + entries}),
    )


def _table(table: torch.Tensor, bucket: Bucket) -> torch.Tensor:
    """Page 0 for padded requests, -1 for pages that a real one lacks."""
    out = torch.full((bucket.requests, bucket.pages), -1, dtype=torch.int32)
    out[table.shape[0] :] = 0
    out[: table.shape[0], : table.shape[1]] = table
    return out


def _streams(
    streams: Mapping[int, IndexStream], extra: int, tokens: int, widths: Mapping[int, int]
) -> dict[int, IndexStream]:
    return {
        ratio: IndexStream(_bounds(stream.indptr, extra), _indices(stream, extra, tokens * widths[ratio]))
        for ratio, stream in streams.items()
    }


def _csa(csa: CsaStream, extra: int, tokens: int, window: int, topk: int) -> CsaStream:
    room = tokens * (window + topk)
    indices = _indices(IndexStream(csa.indptr, csa.indices), extra, room)
    return CsaStream(_bounds(csa.indptr, extra), indices, pad(csa.tail, (0, tokens * topk - csa.tail.shape[0])))


def _bounds(indptr: torch.Tensor, extra: int) -> torch.Tensor:
    """One row for each padded token."""
    return torch.cat((indptr, indptr[-1] + torch.arange(1, extra + 1, dtype=torch.int32)))


def _indices(stream: IndexStream, extra: int, room: int) -> torch.Tensor:
    """``stream``'s rows, row 0 for each padded token and for the rest of the ``room``."""
    if stream.indices.shape[0] + extra > room:
        raise PoolError(f"{stream.indices.shape[0] + extra} index entries do not fit the bucket's {room}")
    return pad(stream.indices, (0, room - stream.indices.shape[0]))


def _compress(plan: CompressPlan, tokens: int) -> CompressPlan:
    missing, states = tokens - plan.n, tokens - plan.state_src.shape[0]
    return CompressPlan(
        ratio=plan.ratio,
        out_slot=pad(plan.out_slot, (0, missing), value=-1),
        out_row=pad(plan.out_row, (0, missing), value=-1),
        position=pad(plan.position, (0, missing)),
        gather_state=pad(plan.gather_state, (0, 0, 0, missing)),
        gather_flat=pad(plan.gather_flat, (0, 0, 0, missing)),
        from_flat=pad(plan.from_flat, (0, 0, 0, missing)),
        state_src=pad(plan.state_src, (0, states)),
        state_dst=pad(plan.state_dst, (0, states), value=-1),
    )
