"""What a forward needs to know about its tokens, derived once and shared by all layers (dsv4-spec section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

import numpy as np
import torch

from dsv4lab.errors import PoolError
from dsv4lab.kv.compress_plan import compress_arrays
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.index_streams import (
    Ints,
    Ragged,
    Tokens,
    compressed_rows,
    decode_window,
    indptr_of,
    join,
    places,
    prefill_ring_store,
    prefill_window,
)

Mode = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class BatchItem:
    """Tokens of one request in this forward, at positions ``start, start + 1, ...``; earlier ones are in the pool."""

    slot: int
    pages: tuple[int, ...]
    start: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class IndexStream:
    """Token ``t`` reads rows ``indices[indptr[t]:indptr[t + 1]]``. Both int32: ``[T + 1]`` and ``[indptr[T]]``."""

    indptr: torch.Tensor
    indices: torch.Tensor


@dataclass(frozen=True, eq=False, slots=True)
class CsaStream:
    """The part of the ratio-4 stream that is known before top-k.

    ``indices`` holds the window rows, and -1 where the compressed rows go; ``tail`` int64 ``[csa_len.sum()]`` are those
    places, token by token. A layer copies ``indices`` and writes the rows of its selection to ``tail``.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    tail: torch.Tensor


@dataclass(frozen=True, eq=False, slots=True)
class CompressPlan:
    """The ``n`` compressed entries that this forward completes, and the state rows that it leaves behind.

    int64 but for ``from_flat`` (bool). ``out_slot[n]``, ``out_row[n]``: where each entry goes (index keys and pool);
    ``position[n]``: its rope position. The inputs of an entry are in order of position, ``W`` = 8 or 128 of them: the
    ape row of input ``j`` is ``j % ratio``, and of ratio 4 the first four give their A halves. Input ``j`` of entry
    ``i`` is flat row ``gather_flat[i, j]`` where ``from_flat``, else state row ``gather_state[i, j]``, which is the
    sentinel for tokens before the beginning.
    After compressing, flat rows ``state_src[M]`` go to state rows ``state_dst[M]``, which are distinct.
    """

    ratio: int
    out_slot: torch.Tensor
    out_row: torch.Tensor
    position: torch.Tensor
    gather_state: torch.Tensor
    gather_flat: torch.Tensor
    from_flat: torch.Tensor
    state_src: torch.Tensor
    state_dst: torch.Tensor

    @property
    def n(self) -> int:
        """Entries."""
        return self.out_slot.shape[0]


@dataclass(frozen=True, eq=False, slots=True)
class StepMetadata:
    """CPU tensors of one forward of ``T`` flat tokens of ``n_items`` requests; int64 unless said.

    ``visible4``, ``visible128`` and ``csa_len`` count compressed entries per token. ``page_table`` is int32
    ``[n_items, P]``, -1 where a request has no page.
    Decode (and verify): ``streams[0]`` is the window and ``streams[128]`` the window with the HCA rows; the K of all
    tokens is stored before attention.
    Prefill: ``prefix[0]`` and ``prefix[128]`` are rows of the pool, ``extend`` flat rows of this forward; the K of rows
    ``ring_store_src`` is stored to ``ring_store_dst`` after attention.
    ``streams``, or ``prefix``, has the key 128 only in a model with ratio-128 layers.
    ``csa`` belongs to decode's stream or prefill's prefix; None in a model without ratio-4 layers.
    """

    mode: Mode
    T: int
    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    request: torch.Tensor
    ring_row: torch.Tensor
    last_rows: torch.Tensor
    page_table: torch.Tensor
    visible4: torch.Tensor
    visible128: torch.Tensor
    csa_len: torch.Tensor
    ring_store_src: torch.Tensor
    ring_store_dst: torch.Tensor
    compress: Mapping[int, CompressPlan]
    csa: CsaStream | None
    streams: Mapping[int, IndexStream] = field(default_factory=dict)
    prefix: Mapping[int, IndexStream] = field(default_factory=dict)
    extend: IndexStream | None = None

    @property
    def n_items(self) -> int:
        """Requests in this forward."""
        return self.last_rows.shape[0]

    @property
    def window(self) -> IndexStream:
        """The decode window stream, shared by all layers."""
        return self.streams[0]

    @property
    def csa_indptr(self) -> torch.Tensor:
        """int32 ``[T + 1]``: bounds of the decode stream of ratio-4 layers."""
        return self._csa_of("decode").indptr

    @property
    def csa_prefix_indptr(self) -> torch.Tensor:
        """int32 ``[T + 1]``: bounds of the prefill prefix of ratio-4 layers."""
        return self._csa_of("prefill").indptr

    def _csa_of(self, mode: Mode) -> CsaStream:
        if self.csa is None or self.mode != mode:
            raise PoolError(f"no ratio-4 {mode} stream in the metadata of a {self.mode} forward")
        return self.csa


def build_metadata(geometry: Geometry, index_topk: int, items: Sequence[BatchItem], mode: Mode) -> StepMetadata:
    """Derive a forward's metadata. Raises :class:`PoolError` for an item that the pool cannot hold."""
    if mode not in ("prefill", "decode"):
        raise PoolError(f"mode {mode!r}: takes prefill or decode")
    _check_items(geometry, items, mode)
    tokens = _flatten(geometry, items)
    visible4, visible128 = (geometry.visible(tokens.position, ratio) for ratio in (4, 128))
    csa_len = np.minimum(visible4, index_topk)
    ring_row = geometry.ring_row(tokens.slot, tokens.position)
    if mode == "decode":
        window = pool_window = decode_window(geometry, tokens)
        store = np.arange(len(ring_row))
    else:
        pool_window, window = prefill_window(geometry, tokens)
        store = prefill_ring_store(geometry, tokens)
    pool_streams = {0: _stream(pool_window)}
    if 128 in geometry.ratios:
        pool_streams[128] = _stream(join(pool_window, compressed_rows(geometry, tokens, visible128, 128)))
    return StepMetadata(
        mode=mode,
        T=len(ring_row),
        token_ids=_int64(np.fromiter(chain.from_iterable(i.tokens for i in items), np.int64, len(ring_row))),
        positions=_int64(tokens.position),
        slots=_int64(tokens.slot),
        request=_int64(tokens.item),
        ring_row=_int64(ring_row),
        last_rows=_int64(tokens.first_row + tokens.length - 1),
        page_table=_int32(tokens.page_table),
        visible4=_int64(visible4),
        visible128=_int64(visible128),
        csa_len=_int64(csa_len),
        ring_store_src=_int64(store),
        ring_store_dst=_int64(ring_row[store]),
        compress={r: _compress_plan(geometry, tokens, r, mode) for r in geometry.ratios},
        csa=_csa_stream(pool_window, csa_len) if 4 in geometry.ratios else None,
        streams=pool_streams if mode == "decode" else {},
        prefix=pool_streams if mode == "prefill" else {},
        extend=_stream(window) if mode == "prefill" else None,
    )


def _check_items(geometry: Geometry, items: Sequence[BatchItem], mode: Mode) -> None:
    if not items:
        raise PoolError("a forward takes at least one item")
    limit = geometry.max_verify_tokens
    for item in items:
        count = len(item.tokens)
        what = f"{mode} item of slot {item.slot}"
        if not 0 < item.slot < geometry.slots:
            raise PoolError(f"{what}: takes a slot in 1..{geometry.slots - 1}")
        if count < 1 or item.start < 0:
            raise PoolError(f"{what}: takes at least one token from a position >= 0, got {count} from {item.start}")
        if mode == "decode" and count > limit:
            raise PoolError(f"{what}: has {count} tokens; these rings take at most {limit} to a request and step")
        if len(item.pages) < (need := geometry.pages_for(item.start + count)):
            raise PoolError(f"{what}: has {len(item.pages)} pages; {item.start + count} tokens take {need}")
    if len({item.slot for item in items}) < len(items):
        raise PoolError(f"{mode} forward has two items of one slot: {sorted(item.slot for item in items)}")


def _flatten(geometry: Geometry, items: Sequence[BatchItem]) -> Tokens:
    facts = np.array([(i.slot, i.start, len(i.tokens)) for i in items], np.int64)
    used = [geometry.pages_for(i.start + len(i.tokens)) for i in items]
    table = np.full((len(items), max(used)), -1, np.int64)
    for row, item, count in zip(table, items, used, strict=True):
        row[:count] = item.pages[:count]
        if row[:count].min() < 1 or row[:count].max() >= geometry.pages:
            raise PoolError(f"item of slot {item.slot} has a page outside 1..{geometry.pages - 1}: {item.pages}")
    return Tokens.build(facts[:, 0], facts[:, 1], facts[:, 2], table)


def _csa_stream(window: Ragged, csa_len: Ints) -> CsaStream:
    heads = np.diff(window.indptr)
    indptr = indptr_of(heads + csa_len)
    indices = np.full(indptr[-1], -1, np.int32)
    indices[places(indptr, window.indptr, heads)] = window.indices
    return CsaStream(_int32(indptr), torch.from_numpy(indices), _int64(np.flatnonzero(indices < 0)))


def _compress_plan(geometry: Geometry, tokens: Tokens, ratio: int, mode: Mode) -> CompressPlan:
    a = compress_arrays(geometry, tokens, ratio, keep_all=mode == "decode")
    return CompressPlan(
        ratio=ratio,
        out_slot=_int64(a.out_slot),
        out_row=_int64(a.out_row),
        position=_int64(a.position),
        gather_state=_int64(a.gather_state),
        gather_flat=_int64(a.gather_flat),
        from_flat=torch.from_numpy(a.from_flat),
        state_src=_int64(a.state_src),
        state_dst=_int64(a.state_dst),
    )


def _stream(ragged: Ragged) -> IndexStream:
    return IndexStream(_int32(ragged.indptr), _int32(ragged.indices))


def _int64(array: Ints) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def _int32(array: Ints) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int32))
