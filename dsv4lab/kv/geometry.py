"""Where everything lies in the unified KV pool: integers only, no tensors (dsv4-spec 3.1 to 3.3, 3.7, 3.11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from dsv4lab.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsv4lab.config.model import ModelConfig

N = TypeVar("N", "int", "NDArray[np.int64]")

RATIOS = (4, 128)
STATE_WINDOW = {4: 8, 128: 128}  # tokens that one entry is made from
OVERLAP = {4: 2, 128: 1}  # halves per token row: ratio 4 keeps A and B
PAGE_SIZE = 256
MAX_ROWS = 2**31 - 1  # row numbers travel as int32; products of row numbers never do


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shape of the pool, shared by every layer.

    Rows ``[0, swa_rows)`` of a layer hold the rings: position ``p`` of slot ``s`` is row
    ``s * ring_rows + p % ring_rows``. Rows ``[swa_rows, rows(ratio))`` hold compressed entries,
    ``entries_per_page(ratio)`` to a page. Slot 0 and page 0 are reserved. The state rings hold compressor inputs, one
    row per token.
    """

    window: int
    ring_rows: int
    slots: int
    pages: int
    head_dim: int
    index_head_dim: int
    compress_ratios: tuple[int, ...]
    page_size: int = PAGE_SIZE
    state4_ring: int = 8
    state128_ring: int = 128

    def __post_init__(self) -> None:
        low = {"ring_rows": self.window, "slots": 2, "pages": 2, "state4_ring": 8, "state128_ring": 128}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "compress_ratios" and (type(value) is not int or value < low.get(field.name, 1)):
                raise ConfigError(f"geometry {field.name} = {value!r}: takes an integer >= {low.get(field.name, 1)}")
        if self.page_size % 128:
            raise ConfigError(f"geometry page_size = {self.page_size}: takes a multiple of 128 tokens")
        if not self.compress_ratios or set(self.compress_ratios) - {0, *RATIOS}:
            raise ConfigError(f"geometry compress_ratios = {self.compress_ratios}: takes 0, 4 or 128 for each layer")
        rows = max(self.rows(ratio) for ratio in self.compress_ratios)
        if rows > MAX_ROWS:
            raise ConfigError(f"geometry needs {rows} rows in a layer; at most {MAX_ROWS}: use fewer slots or pages")

    @classmethod
    def plan(
        cls,
        config: ModelConfig,
        max_requests: int,
        max_tokens: int,
        *,
        verify_tokens: int = 1,
        page_size: int = PAGE_SIZE,
    ) -> Geometry:
        """The smallest pool for ``max_requests`` requests that hold ``max_tokens`` tokens together.

        ``verify_tokens`` is how many tokens of one request a decode step may carry: 1 without speculation, else the
        whole verify width. Rings grow with it (dsv4-spec 3.2, 3.7). Raises :class:`ConfigError`.
        """
        given = {"max_requests": max_requests, "max_tokens": max_tokens, "verify_tokens": verify_tokens}
        for name, value in given.items():
            if value < 1:
                raise ConfigError(f"{name} = {value}: takes an integer >= 1")
        return cls(
            window=config.sliding_window,
            ring_rows=config.sliding_window + verify_tokens - 1,
            slots=max_requests + 1,
            pages=ceil_div(max_tokens, page_size) + 1,
            head_dim=config.head_dim,
            index_head_dim=config.index_head_dim,
            compress_ratios=config.compress_ratios,
            page_size=page_size,
            state4_ring=_state_ring_for(4, verify_tokens),
            state128_ring=_state_ring_for(128, verify_tokens),
        )

    @property
    def swa_rows(self) -> int:
        """Rows of all rings; the first compressed row."""
        return self.slots * self.ring_rows

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit in the pages that can be handed out."""
        return (self.pages - 1) * self.page_size

    @property
    def ratios(self) -> tuple[int, ...]:
        """The compression ratios that some layer has, ascending, without 0."""
        return tuple(r for r in RATIOS if r in self.compress_ratios)

    @property
    def max_verify_tokens(self) -> int:
        """Tokens of one request that a decode step may carry, all of which but the first may be rolled back."""
        state = [self.state_ring(r) - STATE_WINDOW[r] + 2 for r in self.ratios]
        return min([self.ring_rows - self.window + 1, *state])

    def entries_per_page(self, ratio: int) -> int:
        """Compressed entries to a page; 0 for ratio 0."""
        return self.page_size // ratio if ratio else 0

    def compressed_slots(self, ratio: int) -> int:
        """Compressed entries of the whole pool, those of page 0 included."""
        return self.pages * self.entries_per_page(ratio)

    def rows(self, ratio: int) -> int:
        """Rows of a layer of this ratio."""
        return self.swa_rows + self.compressed_slots(ratio)

    def pages_for(self, tokens: int) -> int:
        """Pages that hold ``tokens`` tokens of one request."""
        return ceil_div(tokens, self.page_size)

    def ring_row(self, slot: N, position: N) -> N:
        """Row of a raw token in every layer."""
        return slot * self.ring_rows + position % self.ring_rows

    def compressed_slot(self, pages: Sequence[int], entry: int, ratio: int) -> int:
        """Slot of entry ``entry`` of a request holding ``pages``; also its row of the index keys (ratio 4)."""
        per_page = self.entries_per_page(ratio)
        return pages[entry // per_page] * per_page + entry % per_page

    def compressed_row(self, pages: Sequence[int], entry: int, ratio: int) -> int:
        """Row of entry ``entry`` in a layer of this ratio."""
        return self.swa_rows + self.compressed_slot(pages, entry, ratio)

    def visible(self, position: N, ratio: int) -> N:
        """Compressed entries that a query at ``position`` may see: those whose last token is not after it."""
        return (position + 1) // ratio

    def state_ring(self, ratio: int) -> int:
        """Rows of a slot's compressor state ring."""
        return {4: self.state4_ring, 128: self.state128_ring}[ratio]

    def state_rows(self, ratio: int) -> int:
        """Rows of the state pool; the last one is the sentinel."""
        return self.slots * self.state_ring(ratio) + 1

    def state_row(self, slot: N, position: N, ratio: int) -> N:
        """State row of a raw token."""
        ring = self.state_ring(ratio)
        return slot * ring + position % ring

    def state_keep_from(self, length: N, ratio: int) -> N:
        """First position whose state later entries need when ``[0, length)`` is committed; may be negative."""
        return length // ratio * ratio - (STATE_WINDOW[ratio] - ratio)

    def state_width(self, ratio: int, *, index: bool = False) -> int:
        """Width of a state row ``[K | S]``, of the main compressor or of the indexer's."""
        return 2 * OVERLAP[ratio] * (self.index_head_dim if index else self.head_dim)

    def layers_of(self, ratio: int) -> tuple[int, ...]:
        """Layers of this ratio."""
        return tuple(layer for layer, r in enumerate(self.compress_ratios) if r == ratio)

    def state_bytes(self, ratio: int) -> int:
        """Bytes of one slot's fp32 compressor state over all layers of this ratio, the indexer's included."""
        width = self.state_width(ratio) + (self.state_width(ratio, index=True) if ratio == 4 else 0)
        return self.state_ring(ratio) * width * 4 * len(self.layers_of(ratio))


def ceil_div(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


def _state_ring_for(ratio: int, verify_tokens: int) -> int:
    """Smallest multiple of the entry window that survives a rolled back verify step."""
    window = STATE_WINDOW[ratio]
    return window * max(1, ceil_div(window + verify_tokens - 2, window))
