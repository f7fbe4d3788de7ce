"""The tensors of the unified KV pool (dsv4-spec 3.1, 3.6, 3.7)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from dsv4lab.errors import PoolError
from dsv4lab.kv.geometry import Geometry


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


class KvPool:
    """All KV memory of a model.

    Per layer ``L``: ``unified[L]`` ``[rows, head_dim]`` of ``dtype``; ``index_k[L]`` ``[pages * entries,
    index_head_dim]`` of ``dtype`` (ratio 4); ``state[L]`` fp32 ``[slots * ring + 1, 2 * coff * head_dim]`` (ratio 4 and
    128) and ``index_state[L]`` of the indexer (ratio 4); None where a layer has no such thing. A state row is
    ``[K | S]``, S without ape. The last row is the sentinel, K = 0 and S = -inf, and so is every state row that a
    request has not written. Everything else begins as zeros: masked lanes may read it.
    """

    def __init__(self, geometry: Geometry, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.geometry = geometry
        self.dtype = dtype
        self.device = torch.device(device)
        self.poisoned = False
        g, ratios = geometry, geometry.compress_ratios
        self.unified = tuple(self._zeros(g.rows(r), g.head_dim) for r in ratios)
        self.index_k = tuple(self._zeros(g.compressed_slots(4), g.index_head_dim) if r == 4 else None for r in ratios)
        self.state = tuple(self._state(r, index=False) if r else None for r in ratios)
        self.index_state = tuple(self._state(r, index=True) if r == 4 else None for r in ratios)

    def _zeros(self, count: int, width: int) -> torch.Tensor:
        return torch.zeros(count, width, dtype=self.dtype, device=self.device)

    def _state(self, ratio: int, *, index: bool) -> torch.Tensor:
        shape = (self.geometry.state_rows(ratio), self.geometry.state_width(ratio, index=index))
        return _clear_state(torch.empty(shape, dtype=torch.float32, device=self.device))

    def resources(self) -> dict[str, torch.Tensor]:
        """Every resource name with the memory it stands for; the views are disjoint and cover the pool."""
        out: dict[str, torch.Tensor] = {}
        for layer, unified in enumerate(self.unified):
            out[ring(layer)] = unified[: self.geometry.swa_rows]
            optional = {rows: unified[self.geometry.swa_rows :] if self.geometry.compress_ratios[layer] else None}
            optional |= {index_k: self.index_k[layer], state: self.state[layer], index_state: self.index_state[layer]}
            out |= {name(layer): tensor for name, tensor in optional.items() if tensor is not None}
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for t in self.resources().values())

    def reset_slot(self, slot: int) -> None:
        """Forget the compressor state of ``slot``; do it whenever a request takes the slot (dsv4-spec 3.8)."""
        self._check_slot(slot)
        for tensor in self._state_rows(slot):
            _clear_state(tensor)

    def poison(self) -> None:
        """Debug mode: NaN into everything that no request owns yet, and from now on into all that is released.

        A forward that reads a row it should not then yields NaN. Takes a pool without live requests.
        """
        self.poisoned = True
        for slot in range(self.geometry.slots):
            self._poison_slot(slot)
        self._poison_pages(range(self.geometry.pages))

    def release(self, slot: int, pages: Sequence[int]) -> None:
        """The slot and the pages lost their owner: poison them in debug mode, else nothing."""
        self._check_slot(slot)
        if self.poisoned:
            self._poison_slot(slot)
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
            unified[slot * size : (slot + 1) * size] = math.nan
        for tensor in self._state_rows(slot):
            tensor.fill_(math.nan)

    def _poison_pages(self, pages: Sequence[int]) -> None:
        where = torch.tensor(list(pages), dtype=torch.int64, device=self.device)
        for layer, ratio in enumerate(self.geometry.compress_ratios):
            shape = (self.geometry.pages, self.geometry.entries_per_page(ratio), -1)
            if ratio:
                self.unified[layer][self.geometry.swa_rows :].view(shape)[where] = math.nan
            if (keys := self.index_k[layer]) is not None:
                keys.view(shape)[where] = math.nan


def _clear_state(tensor: torch.Tensor) -> torch.Tensor:
    half = tensor.shape[1] // 2
    tensor[:, :half] = 0.0
    tensor[:, half:] = -math.inf
    return tensor


def _check_finite(tensor: torch.Tensor | None, where: list[int], what: str, slot: int) -> None:
    if tensor is None or not where:
        return
    bad = ~torch.isfinite(tensor[where]).all(dim=1)
    if bool(bad.any()):
        row = where[int(bad.nonzero()[0, 0])]
        raise PoolError(f"slot {slot}: {what} row {row} is not finite ({int(bad.sum())} of {len(where)} live rows)")
