"""The first rank of an attention group: what it does to pool and programs, its followers are told to do too."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary, finalize

import torch

from dsv4lab.engine import rank_messages as r
from dsv4lab.engine.crew import Crew, Member
from dsv4lab.engine.forward_result import ForwardResult
from dsv4lab.engine.runner import Runner
from dsv4lab.engine.snapshots import RequestSnapshot
from dsv4lab.engine.step import Resume
from dsv4lab.engine.torch_recording import EXPORT_S
from dsv4lab.errors import EngineError
from dsv4lab.kv.metadata import BatchItem, Mode
from dsv4lab.kv.pool import KvPool
from dsv4lab.overlap.plan import OverlapPlan
from dsv4lab.overlap.run_record import RunRecord
from dsv4lab.parallel.groups import Parallel
from dsv4lab.spec.draft import Anchor, Choose, Committed, Drafter, Proposal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsv4lab.config.engine import EngineConfig
    from dsv4lab.config.model import ModelConfig
    from dsv4lab.model.builder import Shape
    from dsv4lab.model.weights import Named

_TIMES_S = 30.0


class LeadRunner(Runner):
    """A :class:`Runner` with followers, members of ``crew``.

    Items are checked before any other rank is told; an error after that ends the run.
    """

    def __init__(
        self,
        model: ModelConfig,
        tensors: Named,
        config: EngineConfig,
        taps: tuple[int, ...],
        parallel: Parallel,
        crew: Crew,
    ) -> None:
        self.crew = crew
        self._followers: tuple[Member, ...] = ()  # they set plan and streams by themselves at first
        self._forwards = 0
        self._hidden: torch.Tensor | None = None
        self._numbers: WeakKeyDictionary[RequestSnapshot, int] = WeakKeyDictionary()  # of snapshots, on all ranks
        self._saved = 0
        self._profiles: dict[int, str] = {}  # files by rank
        self._dropped: deque[int] = deque()  # since the followers were last told
        super().__init__(model, tensors, config, taps, parallel)
        self.pool = cast(KvPool, MirroredPool(self.pool, self.tell))
        self._followers = crew.of_group(parallel.layout)

    @property
    def rank(self) -> int:
        """Of this process."""
        return self.parallel.layout.rank

    def tell(self, command: r.Command) -> None:
        """Tell the followers."""
        payload = r.encode(command)
        for member in self._followers:
            member.process.send_bytes(payload)

    def set_plan(self, plan: str | Mapping[str, Any] | OverlapPlan) -> None:
        """See :meth:`Runner.set_plan`."""
        super().set_plan(plan)
        self.tell(r.UsePlan(self.plan.to_json()))

    def set_streams(self, kind: str, hw_queues: int, policy: str, intra_op_threads: int) -> None:
        """See :meth:`Runner.set_streams`."""
        super().set_streams(kind, hw_queues, policy, intra_op_threads)
        self.tell(r.UseStreams(kind, hw_queues, policy, intra_op_threads))

    def hidden_rows(self, tokens: int) -> torch.Tensor:
        """See :meth:`Runner.hidden_rows`."""
        self._hidden = super().hidden_rows(tokens)
        return self._hidden

    def save_slot(self, slot: int, length: int) -> RequestSnapshot:
        """See :meth:`Runner.save_slot`; every rank keeps its own part, for as long as somebody has what is returned."""
        self._saved += 1
        dropped = [self._dropped.popleft() for _ in range(len(self._dropped))]
        self.tell(r.Save(self._saved, slot, length, dropped))
        snapshot = super().save_slot(slot, length)
        self._numbers[snapshot] = self._saved
        finalize(snapshot, self._dropped.append, self._saved).atexit = False
        return snapshot

    def restore_slot(self, resume: Resume) -> None:
        """See :meth:`Runner.restore_slot`."""
        number = self._numbers[cast(RequestSnapshot, resume.snapshot)]
        self.tell(r.Restore(number, resume.slot, resume.pages, resume.length, resume.following))
        with self.crew.fatal(self.rank):
            super().restore_slot(resume)

    def profile_ranks(self, path: Path | None) -> dict[int, str]:
        """See :meth:`Runner.profile_ranks`."""
        if path is not None:
            self._profiles = {m.rank: str(path.with_name(f"rank{m.rank:03}-{path.name}")) for m in self._followers}
            for member in self._followers:
                member.process.send_bytes(r.encode(r.Profile(self._profiles[member.rank])))
            return self._profiles
        self.tell(r.EndProfile())
        for member in self._followers:
            try:
                problem = member.profiles.get(timeout=EXPORT_S).problem
            except Empty:
                problem = f"nothing was written within {EXPORT_S:.0f} s"
            if problem:
                raise EngineError(f"profile of rank {member.rank}: {problem}")
        return self._profiles

    def told_rows(self, committed: Sequence[Committed]) -> r.Observe:
        """``committed`` for the followers, which have the hidden rows of the last forward themselves."""
        kept = self._hidden
        rows = []
        for c in committed:
            if kept is None or c.hidden.untyped_storage().data_ptr() != kept.untyped_storage().data_ptr():
                raise EngineError("followers have no hidden rows but those of the last forward")
            rows.append(r.Rows(c.slot, c.pages, c.start, c.following, c.hidden.storage_offset() // kept.stride(0)))
        return r.Observe(0 if kept is None else kept.shape[0], rows)

    def launch(self, shape: Shape) -> ForwardResult:
        """See :meth:`Runner.launch`."""
        with self.crew.fatal(self.rank):
            result = super().launch(shape)
        return replace(result, others=FollowersRecords(self._followers, self._forwards, result.record))

    def idle_round(self) -> tuple[RunRecord, Mapping[int, RunRecord]] | None:
        """:meth:`Runner.idle_forward` of the whole group, and the followers' records."""
        self._forwards += 1
        self.tell(r.Idle(self._forwards))
        with self.crew.fatal(self.rank):
            record = self.idle_forward()
        return None if record is None else (record, FollowersRecords(self._followers, self._forwards, record))

    def close(self) -> None:
        """Let the crew go, then end as any runner."""
        self.crew.close()
        super().close()

    def _agree(self, tokens: int) -> int:
        with self.crew.fatal(self.rank):
            return super()._agree(tokens)

    def _announce(self, items: Sequence[BatchItem], mode: Mode, *, all_rows: bool, wide_items: int) -> None:
        self._forwards += 1
        self.tell(r.Forward(self._forwards, list(items), mode, all_rows, wide_items))


class FollowersRecords(Mapping[int, RunRecord]):
    """Records of one forward by rank; they are waited for when they are asked for, within half a minute."""

    def __init__(self, followers: Sequence[Member], number: int, own: RunRecord) -> None:
        self._followers = {m.rank: m for m in followers}
        self._number = number
        self._own = own
        self._found: dict[int, RunRecord] = {}

    def __getitem__(self, rank: int) -> RunRecord:
        if rank not in self._found:
            times = self._followers[rank].times(self._number, _TIMES_S)
            if times is None:
                raise EngineError(f"rank {rank} did not tell the times of forward {self._number}")
            self._found[rank] = r.record_of(times, self._own.program)
        return self._found[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self._followers)

    def __len__(self) -> int:
        return len(self._followers)


class MirroredPool:
    """A pool whose changes the followers make too; all else is the pool's own."""

    def __init__(self, pool: KvPool, tell: Callable[[r.Command], None]) -> None:
        self._pool = pool
        self._tell = tell

    def reset_slot(self, slot: int) -> None:
        """See :meth:`KvPool.reset_slot`."""
        self._pool.reset_slot(slot)
        self._tell(r.ResetSlot(slot))

    def release(self, slot: int | None, pages: Sequence[int]) -> None:
        """See :meth:`KvPool.release`."""
        self._pool.release(slot, pages)
        self._tell(r.Release(slot, list(pages)))

    def forget_rejected(self, slot: int, committed: int, written: int) -> None:
        """See :meth:`KvPool.forget_rejected`."""
        self._pool.forget_rejected(slot, committed, written)
        self._tell(r.Forget(slot, committed, written))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


class MirroredDrafter:
    """See :class:`Drafter`. The followers draft with it, from the tokens that are chosen here."""

    def __init__(self, own: Drafter, lead: LeadRunner) -> None:
        self._own = own
        self._lead = lead

    @property
    def drafts(self) -> int:
        """See :attr:`Drafter.drafts`."""
        return self._own.drafts

    @property
    def pool(self) -> KvPool:
        """See :attr:`Drafter.pool`."""
        return self._own.pool

    def observe(self, committed: Sequence[Committed]) -> None:
        """See :meth:`Drafter.observe`."""
        self._lead.tell(self._lead.told_rows(committed))
        with self._lead.crew.fatal(self._lead.rank):
            self._own.observe(committed)

    def propose(self, anchors: Sequence[Anchor], choose: Choose | None) -> Proposal:
        """See :meth:`Drafter.propose`."""
        self._lead.tell(r.Propose(list(anchors), greedy=choose is None))
        with self._lead.crew.fatal(self._lead.rank):
            return self._own.propose(anchors, None if choose is None else self._telling(choose, len(anchors)))

    def _telling(self, choose: Choose, anchors: int) -> Choose:
        """``choose``, and the followers are told of every place."""
        chosen: list[int] = []

        def choose_for_all(request: int, place: int, logits: NDArray[np.float32]) -> int:
            token = choose(request, place, logits)
            chosen.append(token)
            if len(chosen) == anchors:
                self._lead.tell(r.Chosen(list(chosen)))
                chosen.clear()
            return token

        return choose_for_all
