"""A request's slot at a page boundary, in the model's pool and in the drafter's, and its way back (dsv4-spec 3.9)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dsv4lab.engine.step import Resume
from dsv4lab.errors import EngineError
from dsv4lab.kv.geometry import PAGE_SIZE
from dsv4lab.kv.pool import KvPool
from dsv4lab.kv.slot_snapshot import SlotSnapshot, restore_slot, save_slot
from dsv4lab.spec.draft import Committed, Drafter


@dataclass(frozen=True, slots=True, eq=False)
class DraftSnapshot:
    """The drafter's rings, and what it read of the target at the token before the boundary."""

    rings: SlotSnapshot
    hidden: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RequestSnapshot:
    """Both parts; ``draft`` is None without a drafter."""

    target: SlotSnapshot
    draft: DraftSnapshot | None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.target.nbytes + (self.draft.rings.nbytes + self.draft.hidden.nbytes if self.draft else 0)


class DraftEdges:
    """The drafter's half of snapshots: it remembers, by slot, what was observed of the last full page's last token."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._last: dict[int, tuple[int, torch.Tensor]] = {}

    def note(self, committed: list[Committed]) -> None:
        """These tokens have just been observed."""
        for c in committed:
            edge = (c.start + len(c.following)) // PAGE_SIZE * PAGE_SIZE
            if edge > c.start:
                self._last[c.slot] = (edge, c.hidden[edge - 1 - c.start].clone())

    def save(self, slot: int, length: int) -> DraftSnapshot:
        """See :func:`save`."""
        edge, hidden = self._last.get(slot, (0, torch.empty(0)))
        if edge != length:
            raise EngineError(f"slot {slot}: a draft snapshot at {length} tokens, the last full page ends at {edge}")
        return DraftSnapshot(save_slot(self._drafter.pool, slot, length), hidden)

    def restore(self, resume: Resume, snapshot: DraftSnapshot) -> None:
        """The row before the boundary depends on the token after it (MTP), so it is made anew."""
        restore_slot(self._drafter.pool, resume.slot, snapshot.rings)
        before, following = resume.length - 1, (resume.following,)
        hidden = snapshot.hidden.unsqueeze(0)
        self._drafter.observe([Committed(resume.slot, resume.pages, before, following, hidden)])
        self._last[resume.slot] = (resume.length, snapshot.hidden)


def save(pool: KvPool, edges: DraftEdges | None, slot: int, length: int) -> RequestSnapshot:
    """What the request in ``slot`` needs to go on at ``length``, a page boundary that it has just passed.

    ``edges`` are the drafter's, where there is one.
    """
    draft = None if edges is None else edges.save(slot, length)
    return RequestSnapshot(save_slot(pool, slot, length), draft)


def restore(pool: KvPool, edges: DraftEdges | None, resume: Resume) -> None:
    """Put a snapshot into a slot that has just been cleared."""
    snapshot = resume.snapshot
    assert isinstance(snapshot, RequestSnapshot)
    restore_slot(pool, resume.slot, snapshot.target)
    if edges is not None:
        if snapshot.draft is None:
            raise EngineError(f"slot {resume.slot}: the snapshot was taken without a drafter")
        edges.restore(resume, snapshot.draft)
