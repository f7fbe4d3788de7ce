"""What the pool holds, as plain records for pictures and for the wire. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsv4lab.errors import PoolError
from dsv4lab.kv.allocator import Allocator, Lease
from dsv4lab.kv.geometry import Geometry
from dsv4lab.timeline.records import PoolRequest, PoolSnapshot, QueryReads


def pool_snapshot(
    geometry: Geometry,
    allocator: Allocator,
    requests: Mapping[int, int],
    step: int,
    *,
    dtype_bytes: int,
    row_bytes: int = 0,
) -> PoolSnapshot:
    """The pool after ``step``.

    ``requests`` gives the committed tokens of each request id; a request that it does not name, or that holds no lease,
    is an error. ``dtype_bytes`` is the size of one number of the model, ``row_bytes`` that of a pool row
    where it is not ``head_dim`` of them.
    """
    leases = {lease.request_id: lease for lease in allocator.leases}
    if odd := sorted(leases.keys() ^ requests.keys()):
        raise PoolError(f"snapshot of step {step}: request {odd[0]} has a lease or a length, not both")
    for request_id, tokens in requests.items():
        if not 0 <= geometry.pages_for(tokens) <= len(leases[request_id].pages):
            raise PoolError(
                f"snapshot of step {step}: request {request_id} has {tokens} tokens, more than its pages hold"
            )
    return PoolSnapshot(
        step=step,
        slots=geometry.slots,
        ring_rows=geometry.ring_rows,
        window=geometry.window,
        pages=geometry.pages,
        page_size=geometry.page_size,
        head_dim=geometry.head_dim,
        dtype_bytes=dtype_bytes,
        compress_ratios=geometry.compress_ratios,
        requests=tuple(PoolRequest(r, x.slot, requests[r], x.pages) for r, x in leases.items()),
        free_pages=allocator.free_page_ids,
        free_slots=allocator.free_slot_ids,
        row_bytes=row_bytes,
        cached_pages=allocator.cached_page_ids,
    )


def query_reads(
    geometry: Geometry, lease: Lease, position: int, layer: int, topk_entries: Sequence[int] | None = None
) -> QueryReads:
    """Rows that the query at ``position`` reads in ``layer``, as decode would.

    ``topk_entries`` are the entries that the indexer chose in a ratio-4 layer; without them all visible ones are
    given. Raises :class:`PoolError` for a position without pages, an unknown layer or an entry that is not visible.
    """
    if not 0 <= layer < len(geometry.compress_ratios):
        raise PoolError(f"layer {layer}: takes a layer in 0..{len(geometry.compress_ratios) - 1}")
    if not 0 <= position < len(lease.pages) * geometry.page_size:
        held = len(lease.pages) * geometry.page_size
        raise PoolError(f"position {position} of request {lease.request_id}: its pages hold positions 0..{held - 1}")
    ratio = geometry.compress_ratios[layer]
    visible = geometry.visible(position, ratio) if ratio else 0
    entries = range(visible) if ratio != 4 or topk_entries is None else topk_entries
    if outside := [w for w in entries if not 0 <= w < visible]:
        raise PoolError(f"entry {outside[0]} is not among the {visible} that position {position} may see")
    oldest = max(0, position + 1 - geometry.window)
    return QueryReads(
        request_id=lease.request_id,
        position=position,
        layer=layer,
        ratio=ratio,
        window_rows=tuple(geometry.ring_row(lease.slot, p) for p in range(oldest, position + 1)),
        compressed_rows=tuple(geometry.compressed_row(lease.pages, w, ratio) for w in entries),
    )
