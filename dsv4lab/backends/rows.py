"""Memory of packed pools: row stores over byte tensors, and which bytes belong to which resource."""

from __future__ import annotations

import torch
from dsv4_kernels.paged_rows import Fp8Pages, IndexFp4Pages, IndexFp8Pages
from dsv4_kernels.rows import Fp8Rows, JoinedRows

from dsv4lab.config.engine import THREE_POOL
from dsv4lab.kv.formats import PoolFormat
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.pool import IndexMemory, KvMemory


class PackedRows:
    """See :class:`dsv4lab.kv.pool.PackedMemory`."""

    def kv(self, form: PoolFormat, geometry: Geometry, ratio: int, device: torch.device) -> KvMemory:
        """See :meth:`dsv4lab.kv.pool.PackedMemory.kv`."""
        return (_three_pool if form.layout == THREE_POOL else _two_pools)(form, geometry, ratio, device)

    def index(self, form: PoolFormat, geometry: Geometry, device: torch.device) -> IndexMemory:
        """See :meth:`dsv4lab.kv.pool.PackedMemory.index`."""
        per_page = geometry.entries_per_page(4)
        pages = _bytes(geometry.pages, per_page * form.index_bytes, device)
        kind = IndexFp8Pages if form.index == "fp8" else IndexFp4Pages
        return IndexMemory(kind(pages, per_page, form.index_head_dim), (pages,))


PACKED_ROWS = PackedRows()
"""The one instance; it holds no state."""


def _bytes(rows: int, width: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(rows, width, dtype=torch.uint8, device=device)


def _two_pools(form: PoolFormat, geometry: Geometry, ratio: int, device: torch.device) -> KvMemory:
    count, split = geometry.rows(ratio), geometry.swa_rows
    nope = _bytes(count, form.row_bytes - 2 * form.rope_dim, device)
    rope = torch.zeros(count, form.rope_dim, dtype=torch.bfloat16, device=device)
    store = Fp8Rows(nope, rope, form.head_dim - form.rope_dim)
    return KvMemory(store, (nope[:split], rope[:split]), (nope[split:], rope[split:]))


def _three_pool(form: PoolFormat, geometry: Geometry, ratio: int, device: torch.device) -> KvMemory:
    """Window pages and compressed pages apart, under the unified numbering of rows."""

    def pages(count: int, per_page: int) -> Fp8Pages:
        page_bytes = Fp8Pages.page_bytes(per_page, form.head_dim, form.rope_dim)
        return Fp8Pages(_bytes(count, page_bytes, device), per_page, form.head_dim, form.rope_dim)

    window = pages(geometry.swa_rows // geometry.page_size, geometry.page_size)
    if not ratio:
        return KvMemory(window, (window.pages,), ())
    entries = pages(geometry.pages, geometry.entries_per_page(ratio))
    return KvMemory(JoinedRows(window, entries, geometry.swa_rows), (window.pages,), (entries.pages,))
