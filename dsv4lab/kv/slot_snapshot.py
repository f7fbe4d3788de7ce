"""What a slot holds at a page boundary, copied and put back bit for bit (dsv4-spec 3.9).

Compressed rows and index keys lie in pages and need no copy. A request that goes on at position ``a``, a multiple of
the page size, also reads the last ``window - 1`` rows of its ring, and the ratio-4 state of the four tokens before
``a``: they give the overlapping half of entry ``a / 4``. No ratio-128 entry is pending at ``a``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dsv4lab.errors import PoolError
from dsv4lab.kv.formats import SNAPSHOT_STATE
from dsv4lab.kv.pool import KvPool, ring


@dataclass(frozen=True, slots=True, eq=False)
class SlotSnapshot:
    """``rings``: each layer's ring as it is stored, stale rows included. ``states``: fp32 ``[4, width]`` of each
    ratio-4 compressor, the indexer's included, in order of position.
    """

    length: int
    rings: tuple[torch.Tensor, ...]
    states: tuple[torch.Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in (*self.rings, *self.states))


def save_slot(pool: KvPool, slot: int, length: int) -> SlotSnapshot:
    """Copy what a request in ``slot`` needs to go on at position ``length``.

    The request may have a few more tokens in the pool already: no more than one verify step brings. Raises
    :class:`PoolError` for a position that is no page boundary.
    """
    if length < 1 or length % pool.geometry.page_size:
        raise PoolError(
            f"slot {slot}: a snapshot at {length} tokens; it takes whole pages of {pool.geometry.page_size}"
        )
    return SlotSnapshot(
        length,
        tuple(t.clone() for t in _rings(pool, slot)),
        tuple(state[rows] for state, rows in _states(pool, slot, length)),
    )


def restore_slot(pool: KvPool, slot: int, snapshot: SlotSnapshot) -> None:
    """Put ``snapshot`` into a slot that has just been cleared."""
    for target, source in zip(_rings(pool, slot), snapshot.rings, strict=True):
        target.copy_(source)
    for (state, rows), source in zip(_states(pool, slot, snapshot.length), snapshot.states, strict=True):
        state[rows] = source


def _rings(pool: KvPool, slot: int) -> list[torch.Tensor]:
    """The part of ``slot`` in every tensor that rings lie in; a slot's part is contiguous in all layouts."""
    resources, slots = pool.resources(), pool.geometry.slots
    tensors = [t for layer in range(len(pool.unified)) for t in resources[ring(layer)]]
    return [t.narrow(0, slot * (t.shape[0] // slots), t.shape[0] // slots) for t in tensors]


def _states(pool: KvPool, slot: int, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Ratio-4 states with the rows of the last four tokens before ``length``."""
    positions = torch.arange(length - SNAPSHOT_STATE, length, device=pool.device)
    size = pool.geometry.state_ring(4)
    rows = slot * size + positions % size
    ratios = pool.geometry.compress_ratios
    pairs = [(m, i) for m, i, r in zip(pool.state, pool.index_state, ratios, strict=True) if r == 4]
    return [(t, rows) for pair in pairs for t in pair if t is not None]
