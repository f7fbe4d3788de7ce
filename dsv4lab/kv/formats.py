"""In which number formats and in which layout the pool keeps its rows, and what they cost: integers only, no tensors.

Unified rows are plain bf16 (or float32), or the two pools of fp8 (dsv4-spec 3.1, 3.4). The former layout keeps fp8 rows
in three pools of pages (dsv4-spec 3.5): window rows, and compressed rows of either ratio. Index keys have formats of
their own (dsv4-spec 3.6).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsv4lab.config.engine import INDEX_CACHE_DTYPES, KV_CACHE_DTYPES, KV_LAYOUTS, THREE_POOL
from dsv4lab.errors import ConfigError
from dsv4lab.kv.geometry import Geometry, ceil_div

if TYPE_CHECKING:
    from dsv4lab.config.engine import EngineConfig
    from dsv4lab.config.model import ModelConfig

TILE = 64  # values of a KV row that share a scale
SNAPSHOT_STATE = 4  # tokens before a page boundary whose ratio-4 state goes on
FP4_GROUP = 32  # values of an fp4 index key that share a scale
_NOPE_ALIGN, _SCALE_ALIGN = 64, 8  # bytes
_PLAIN = {"float32": 4, "bf16": 2}
_MODEL_DTYPES = {"float32": "float32", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class PoolFormat:
    """Formats of one pool. ``kv``: float32, bf16 or fp8; ``index``: those or fp4; ``layout``: unified or three_pool."""

    kv: str
    index: str
    layout: str
    head_dim: int
    index_head_dim: int
    rope_dim: int

    @classmethod
    def choose(
        cls,
        config: ModelConfig,
        *,
        kv: str = "auto",
        index: str = "auto",
        layout: str = "unified",
        dtype: str = "float32",
        device: str = "cpu",
    ) -> PoolFormat:
        """The formats asked for, ``auto`` decided.

        Rows are ``dtype`` (``float32`` or ``bfloat16``) by themselves, fp8 in the three-pool layout; index keys are
        ``dtype`` on the CPU device and fp8 on GPUs. Raises :class:`ConfigError` naming what does not go together.
        """
        _check_names(kv, index, layout)
        own = _MODEL_DTYPES[dtype]
        if kv == "auto":
            kv = "fp8" if layout == THREE_POOL else own
        if index == "auto":
            index = own if device == "cpu" else "fp8"
        if layout == THREE_POOL and kv != "fp8":
            raise ConfigError(f"kv_cache_dtype = {kv!r}: the three_pool layout holds fp8 rows; it takes auto or fp8")
        chosen = cls(kv, index, layout, config.head_dim, config.index_head_dim, config.qk_rope_head_dim)
        chosen._check_dims()
        return chosen

    @classmethod
    def for_engine(cls, model: ModelConfig, config: EngineConfig) -> PoolFormat:
        """The formats of an engine's pool; errors as :meth:`choose`."""
        return cls.choose(
            model,
            kv=config.kv_cache_dtype,
            index=config.index_cache_dtype,
            layout=config.kv_layout,
            dtype=config.dtype,
            device=config.device,
        )

    def _check_dims(self) -> None:
        dim = self.index_head_dim
        if self.index_rotated and dim & (dim - 1):
            raise ConfigError(f"index_cache_dtype = {self.index!r}: keys of {dim} values; it takes a power of two")
        if self.index == "fp4" and dim % FP4_GROUP:
            raise ConfigError(f"index_cache_dtype = 'fp4': keys of {dim} values; it takes a multiple of {FP4_GROUP}")

    @property
    def packed_kv(self) -> bool:
        """Whether KV rows are fp8."""
        return self.kv not in _PLAIN

    @property
    def index_rotated(self) -> bool:
        """Whether index keys are quantised, and therefore stored rotated: queries then are rotated too."""
        return self.index not in _PLAIN

    @property
    def row_bytes(self) -> int:
        """Bytes of a KV row, page padding aside: 1024, 640 or 584 at 512 values."""
        if not self.packed_kv:
            return self.head_dim * _PLAIN[self.kv]
        nope = self.head_dim - self.rope_dim
        tiles = ceil_div(nope, TILE)
        if self.layout == THREE_POOL:
            return nope + 2 * self.rope_dim + ceil_div(tiles, _SCALE_ALIGN) * _SCALE_ALIGN
        return ceil_div(nope + 2 * tiles, _NOPE_ALIGN) * _NOPE_ALIGN + 2 * self.rope_dim

    @property
    def index_bytes(self) -> int:
        """Bytes of an index key: 256, 132 or 68 at 128 values."""
        if self.index == "fp8":
            return self.index_head_dim + 4
        if self.index == "fp4":
            return self.index_head_dim // 2 + self.index_head_dim // FP4_GROUP
        return self.index_head_dim * _PLAIN[self.index]

    def rows_bytes(self, rows: int) -> int:
        """Bytes of a page of ``rows`` KV rows: three-pool pages are padded to a multiple of 576 (at 512 values)."""
        if self.layout != THREE_POOL:
            return rows * self.row_bytes
        align = self.head_dim + self.rope_dim
        return ceil_div(rows * self.row_bytes, align) * align

    def page_bytes(self, geometry: Geometry) -> int:
        """Bytes of a page over all layers."""
        rows = sum(len(geometry.layers_of(r)) * self.rows_bytes(geometry.entries_per_page(r)) for r in geometry.ratios)
        return rows + len(geometry.layers_of(4)) * geometry.entries_per_page(4) * self.index_bytes

    def token_bytes(self, geometry: Geometry) -> int:
        """Bytes of a cached token over all layers, rounded up (dsv4-spec 3.11)."""
        return ceil_div(self.page_bytes(geometry), geometry.page_size)

    def ring_bytes(self, geometry: Geometry) -> int:
        """Bytes of one slot's window rows over all layers."""
        if self.layout == THREE_POOL:
            one = geometry.ring_rows // geometry.page_size * self.rows_bytes(geometry.page_size)
        else:
            one = geometry.ring_rows * self.row_bytes
        return one * len(geometry.compress_ratios)

    def slot_bytes(self, geometry: Geometry) -> int:
        """Bytes of a request slot: window rows and fp32 compressor state."""
        return self.ring_bytes(geometry) + sum(geometry.state_bytes(r) for r in geometry.ratios)

    def snapshot_bytes(self, geometry: Geometry) -> int:
        """Bytes of a slot's snapshot at a page boundary: its rings, and the ratio-4 state of four tokens."""
        widths = geometry.state_width(4) + geometry.state_width(4, index=True)
        return self.ring_bytes(geometry) + SNAPSHOT_STATE * widths * 4 * len(geometry.layers_of(4))

    def fixed_bytes(self, geometry: Geometry) -> int:
        """Bytes that all slots take, the reserved one and the state sentinels included."""
        sentinels = sum(geometry.state_bytes(r) // geometry.state_ring(r) for r in geometry.ratios)
        return geometry.slots * self.slot_bytes(geometry) + sentinels

    def pool_bytes(self, geometry: Geometry) -> int:
        """Bytes of the whole pool, to the byte."""
        return self.fixed_bytes(geometry) + geometry.pages * self.page_bytes(geometry)

    def fit(self, geometry: Geometry) -> Geometry:
        """``geometry`` with the rings that this layout has.

        The former layout frees window rows by the page, so a slot holds as many pages as a window can touch.
        """
        rows, page = geometry.ring_rows, geometry.page_size
        if self.layout != THREE_POOL or (rows % page == 0 and rows >= 2 * page):
            return geometry
        return replace(geometry, ring_rows=(ceil_div(rows - 1, page) + 1) * page)


def _check_names(kv: str, index: str, layout: str) -> None:
    given = (("kv_cache_dtype", kv, KV_CACHE_DTYPES), ("index_cache_dtype", index, INDEX_CACHE_DTYPES))
    for name, value, allowed in (*given, ("kv_layout", layout, KV_LAYOUTS)):
        if value not in allowed:
            raise ConfigError(f"{name} = {value!r}: takes one of {', '.join(allowed)}")
