"""The memory of the KV pool (dsv4-spec 3.1, 3.4 to 3.7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from dsv4lab.errors import PoolError
from dsv4lab.kv.formats import PoolFormat
from dsv4lab.kv.geometry import Geometry

PLAIN_DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


def ring(layer: int) -> str:
    """Resource name of the rings of ``layer``: rows ``[0, swa_rows)`` of its pool."""
    return f"kv.{layer}.ring"


def rows(layer: int) -> str:
    """Resource name of the compressed rows of ``layer``: rows from ``swa_rows`` on."""
    return f"kv.{layer}.rows"


def index_k(layer: int) -> str:
    """Resource name of the indexer keys of a ratio-4 layer."""
    return f"index_k.{layer}"


def state(layer: int) -> str:
    """Resource name of the compressor state of ``layer``."""
    return f"state.{layer}"


def index_state(layer: int) -> str:
    """Resource name of the indexer's compressor state of a ratio-4 layer."""
    return f"index_state.{layer}"


class RowStore(Protocol):
    """Packed rows, numbered like those of a tensor; ``dsv4_kernels.rows`` has them."""

    @property
    def dtype(self) -> torch.dtype:
        """``uint8``."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and values of a row."""
        ...

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        """Values of ``rows`` (int64, any shape), float32 ``[..., d]``."""
        ...

    def put(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Quantise ``values [n, d]`` into ``rows``."""
        ...

    def poison(self, rows: torch.Tensor) -> None:
        """Make ``rows`` decode to NaN."""
        ...


Rows = torch.Tensor | RowStore


@dataclass(frozen=True, slots=True, eq=False)
class KvMemory:
    """Rows of one layer, and the tensors that its rings and its compressed rows lie in: disjoint, all of its memory."""

    rows: Rows
    ring: tuple[torch.Tensor, ...]
    compressed: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class IndexMemory:
    """Index keys of one layer, and the tensors that they lie in."""

    rows: Rows
    tensors: tuple[torch.Tensor, ...]


class PackedMemory(Protocol):
    """Where packed rows come from: :data:`dsv4lab.backends.rows.PACKED_ROWS`."""

    def kv(self, form: PoolFormat, geometry: Geometry, ratio: int, device: torch.device) -> KvMemory:
        """Zeroed fp8 rows of a layer of ``ratio``."""
        ...

    def index(self, form: PoolFormat, geometry: Geometry, device: torch.device) -> IndexMemory:
        """Zeroed fp8 or fp4 index keys of a ratio-4 layer."""
        ...


class KvPool:
    """All KV memory of a model.

    Per layer ``L``: ``unified[L]`` ``[rows, head_dim]``; ``index_k[L]`` ``[pages * entries, index_head_dim]`` (ratio
    4); ``state[L]`` fp32 ``[slots * ring + 1, 2 * coff * head_dim]`` (ratio 4 and 128) and ``index_state[L]`` of the
    indexer (ratio 4); None where a layer has no such thing. ``dtype`` is that of the activations beside the pool. Rows
    and keys are tensors of it, or as ``form`` says: packed ones are row stores, which ``packed`` makes. A state row is
    ``[K | S]``, S without ape. The last row is the sentinel, K = 0 and S = -inf, and so is every state row that a
    request has not written. Everything else begins as zeros: masked lanes may read it. ``geometry`` must be what
    ``form.fit`` gives.
    """

    def __init__(
        self,
        geometry: Geometry,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        form: PoolFormat | None = None,
        packed: PackedMemory | None = None,
    ) -> None:
        self.geometry = geometry
        self.dtype = dtype
        self.form = form
        self.device = torch.device(device)
        self.poisoned, ratios = False, geometry.compress_ratios
        self._kv = tuple(self._kv_memory(r, dtype, packed) for r in ratios)
        self._index = tuple(self._index_memory(dtype, packed) if r == 4 else None for r in ratios)
        self.unified = tuple(m.rows for m in self._kv)
        self.index_k = tuple(None if m is None else m.rows for m in self._index)
        self.state = tuple(self._state(r, index=False) if r else None for r in ratios)
        self.index_state = tuple(self._state(r, index=True) if r == 4 else None for r in ratios)
        if form is not None and form.fit(geometry) != geometry:
            raise PoolError(f"rings of {geometry.ring_rows} rows do not fit the {form.layout} layout")

    @property
    def index_rotated(self) -> bool:
        """Whether index keys are stored rotated, so that queries must be rotated too."""
        return self.form is not None and self.form.index_rotated

    def _kv_memory(self, ratio: int, dtype: torch.dtype, packed: PackedMemory | None) -> KvMemory:
        g, form = self.geometry, self.form
        if form is not None and form.packed_kv:
            return _given(packed, form).kv(form, g, ratio, self.device)
        tensor = self._zeros(g.rows(ratio), g.head_dim, dtype if form is None else PLAIN_DTYPES[form.kv])
        return KvMemory(tensor, (tensor[: g.swa_rows],), (tensor[g.swa_rows :],))

    def _index_memory(self, dtype: torch.dtype, packed: PackedMemory | None) -> IndexMemory:
        g, form = self.geometry, self.form
        if form is not None and form.index_rotated:
            return _given(packed, form).index(form, g, self.device)
        dtype = dtype if form is None else PLAIN_DTYPES[form.index]
        tensor = self._zeros(g.compressed_slots(4), g.index_head_dim, dtype)
        return IndexMemory(tensor, (tensor,))

    def _zeros(self, count: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(count, width, dtype=dtype, device=self.device)

    def _state(self, ratio: int, *, index: bool) -> torch.Tensor:
        shape = (self.geometry.state_rows(ratio), self.geometry.state_width(ratio, index=index))
        return _clear_state(torch.empty(shape, dtype=torch.float32, device=self.device))

    def resources(self) -> dict[str, tuple[torch.Tensor, ...]]:
        """Every resource name with the memory it stands for; all tensors are disjoint and cover the pool."""
        out: dict[str, tuple[torch.Tensor, ...]] = {}
        for layer, kv in enumerate(self._kv):
            out[ring(layer)] = kv.ring
            if self.geometry.compress_ratios[layer]:
                out[rows(layer)] = kv.compressed
            if (keys := self._index[layer]) is not None:
                out[index_k(layer)] = keys.tensors
            for name, tensor in ((state, self.state[layer]), (index_state, self.index_state[layer])):
                if tensor is not None:
                    out[name(layer)] = (tensor,)
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for tensors in self.resources().values() for t in tensors)

    def reset_slot(self, slot: int) -> None:
        """Forget the compressor state of ``slot``; do it whenever a request takes the slot (dsv4-spec 3.8)."""
        self._check_slot(slot)
        for tensor in self._state_rows(slot):
            _clear_state(tensor)

    def forget_rejected(self, slot: int, committed: int, written: int) -> None:
        """After a verify step wrote positions up to ``written`` and only those below ``committed`` were accepted.

        Clears the rejected tokens' ratio-128 state, as the seeds do (dsv4-spec 3.8); all other rejected rows are
        rewritten before anything reads them.
        """
        self._check_slot(slot)
        if not 0 <= committed <= written:
            raise PoolError(f"slot {slot}: {committed} tokens committed of {written} written")
        positions = torch.arange(committed, written, dtype=torch.int64, device=self.device)
        for ratio, tensor in zip(self.geometry.compress_ratios, self.state, strict=True):
            if ratio == 128 and tensor is not None and positions.numel():
                ring_size = self.geometry.state_ring(ratio)
                gone = slot * ring_size + positions % ring_size
                half = tensor.shape[1] // 2
                tensor[gone, :half] = 0.0
                tensor[gone, half:] = -math.inf

    def poison(self) -> None:
        """Debug mode: NaN into everything that no request owns yet, and from now on into all that is released.

        A forward that reads a row it should not then yields NaN. Takes a pool without live requests.
        """
        self.poisoned = True
        for slot in range(self.geometry.slots):
            self._poison_slot(slot)
        self._poison_pages(range(self.geometry.pages))

    def release(self, slot: int | None, pages: Sequence[int]) -> None:
        """The slot (if any) and the pages lost their owner: poison them in debug mode, else nothing."""
        if slot is not None:
            self._check_slot(slot)
            if self.poisoned:
                self._poison_slot(slot)
        if self.poisoned:
            self._poison_pages(pages)

    def check_live(self, slot: int, pages: Sequence[int], tokens: int) -> None:
        """Raise :class:`PoolError` unless all that a request with ``tokens`` tokens can read next is finite."""
        self._check_slot(slot)
        g = self.geometry
        if len(pages) < g.pages_for(tokens):
            raise PoolError(f"slot {slot}: {tokens} tokens take {g.pages_for(tokens)} pages, got {len(pages)}")
        window = [g.ring_row(slot, p) for p in range(max(0, tokens - g.window + 1), tokens)]
        for layer, ratio in enumerate(g.compress_ratios):
            _check_finite(self.unified[layer], window, f"layer {layer} ring", slot)
            if not ratio:
                continue
            slots = [g.compressed_slot(pages, w, ratio) for w in range(tokens // ratio)]
            _check_finite(self.unified[layer], [g.swa_rows + s for s in slots], f"layer {layer} compressed", slot)
            _check_finite(self.index_k[layer], slots, f"layer {layer} index key", slot)
            kept = [g.state_row(slot, p, ratio) for p in range(max(0, g.state_keep_from(tokens, ratio)), tokens)]
            _check_finite(self.state[layer], kept, f"layer {layer} state", slot)
            _check_finite(self.index_state[layer], kept, f"layer {layer} index state", slot)

    def _check_slot(self, slot: int) -> None:
        if not 0 < slot < self.geometry.slots:
            raise PoolError(f"slot {slot}: takes a slot in 1..{self.geometry.slots - 1}")

    def _state_rows(self, slot: int) -> list[torch.Tensor]:
        """The state rings of ``slot``, of all layers."""
        out = []
        for ratio, main, index in zip(self.geometry.compress_ratios, self.state, self.index_state, strict=True):
            size = self.geometry.state_ring(ratio) if ratio else 0
            out += [t[slot * size : (slot + 1) * size] for t in (main, index) if t is not None]
        return out

    def _poison_slot(self, slot: int) -> None:
        size = self.geometry.ring_rows
        for unified in self.unified:
            _poison_rows(unified, torch.arange(slot * size, (slot + 1) * size, device=self.device))
        for tensor in self._state_rows(slot):
            tensor.fill_(math.nan)

    def _poison_pages(self, pages: Sequence[int]) -> None:
        first = torch.tensor(list(pages), dtype=torch.int64, device=self.device)[:, None]
        for layer, ratio in enumerate(self.geometry.compress_ratios):
            if not ratio:
                continue
            per_page = self.geometry.entries_per_page(ratio)
            entries = (first * per_page + torch.arange(per_page, device=self.device)).flatten()
            _poison_rows(self.unified[layer], entries + self.geometry.swa_rows)
            if (keys := self.index_k[layer]) is not None:
                _poison_rows(keys, entries)


def _given(packed: PackedMemory | None, form: PoolFormat) -> PackedMemory:
    if packed is None:
        raise PoolError(f"a pool of {form.kv} rows and {form.index} index keys needs a backend's packed memory")
    return packed


def _poison_rows(store: Rows, where: torch.Tensor) -> None:
    if isinstance(store, torch.Tensor):
        store.index_fill_(0, where, math.nan)
    else:
        store.poison(where)


def _clear_state(tensor: torch.Tensor) -> torch.Tensor:
    half = tensor.shape[1] // 2
    tensor[:, :half] = 0.0
    tensor[:, half:] = -math.inf
    return tensor


def _check_finite(store: Rows | None, where: list[int], what: str, slot: int) -> None:
    if store is None or not where:
        return
    bad = ~torch.isfinite(store[torch.tensor(where, dtype=torch.int64)]).all(dim=1)
    if bool(bad.any()):
        row = where[int(bad.nonzero()[0, 0])]
        raise PoolError(f"slot {slot}: {what} row {row} is not finite ({int(bad.sum())} of {len(where)} live rows)")
