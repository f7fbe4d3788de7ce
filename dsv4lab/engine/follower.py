"""A rank that follows the leader of its attention group: the same forwards, drafts and pool, and no decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatchmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4lab.engine import rank_messages as r
from dsv4lab.engine.runner import Runner
from dsv4lab.engine.snapshots import DraftEdges, RequestSnapshot, restore, save
from dsv4lab.engine.step import Resume
from dsv4lab.engine.torch_recording import TorchRecording
from dsv4lab.errors import EngineError, LabError
from dsv4lab.spec.draft import Committed, Drafter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Follower:
    """Carries out the leader's commands one by one. ``take`` gives the next, None at the end."""

    def __init__(
        self,
        runner: Runner,
        drafter: Drafter | None,
        take: Callable[[], r.Command | None],
        say: Callable[[r.FromRank], None],
    ) -> None:
        self._runner = runner
        self._drafter = drafter
        self._take = take
        self._say = say
        self._edges = None if drafter is None else DraftEdges(drafter)
        self._snapshots: dict[int, RequestSnapshot] = {}
        self._recording: TorchRecording | None = None
        self._problem = ""

    def serve(self) -> None:
        """Until told to stop, or nobody is there to tell."""
        while (command := self._take()) is not None and not isinstance(command, r.Stop):
            self._do(command)

    @singledispatchmethod
    def _do(self, command: Any) -> None:
        raise EngineError(f"a following rank takes no {type(command).__name__} here")

    @_do.register
    def _(self, command: r.Forward) -> None:
        result = self._runner.forward(
            command.items, command.mode, all_rows=command.all_rows, wide_items=command.wide_items
        )
        self._say(r.times_of(command.number, result.record))

    @_do.register
    def _(self, command: r.Idle) -> None:
        record = self._runner.idle_forward()
        if record is not None:
            self._say(r.times_of(command.number, record))

    @_do.register
    def _(self, command: r.Observe) -> None:
        hidden = self._runner.hidden_rows(command.tokens)
        committed = [
            Committed(c.slot, c.pages, c.start, c.following, hidden[c.row : c.row + len(c.following)])
            for c in command.committed
        ]
        self._drafting().observe(committed)
        if self._edges is not None:
            self._edges.note(committed)

    @_do.register
    def _(self, command: r.Propose) -> None:
        places: list[Sequence[int]] = []

        def choose(request: int, place: int, logits: NDArray[np.float32]) -> int:
            while place >= len(places):
                told = self._take()
                if not isinstance(told, r.Chosen):
                    raise EngineError(f"got {type(told).__name__} where the leader's drafts were due")
                places.append(told.tokens)
            return places[place][request]

        self._drafting().propose(command.anchors, None if command.greedy else choose)

    @_do.register
    def _(self, command: r.ResetSlot) -> None:
        self._runner.pool.reset_slot(command.slot)

    @_do.register
    def _(self, command: r.Release) -> None:
        self._runner.pool.release(command.slot, command.pages)

    @_do.register
    def _(self, command: r.Forget) -> None:
        self._runner.pool.forget_rejected(command.slot, command.committed, command.written)

    @_do.register
    def _(self, command: r.Save) -> None:
        for number in command.dropped:
            del self._snapshots[number]
        self._snapshots[command.number] = save(self._runner.pool, self._edges, command.slot, command.length)

    @_do.register
    def _(self, command: r.Restore) -> None:
        snapshot = self._snapshots[command.number]
        resume = Resume(command.slot, command.pages, command.length, command.following, snapshot)
        restore(self._runner.pool, self._edges, resume)

    @_do.register
    def _(self, command: r.Profile) -> None:
        self._recording, self._problem = TorchRecording(self._runner, Path(command.path)), ""
        try:
            self._recording.start()
        except LabError as error:
            self._recording, self._problem = None, str(error)

    @_do.register
    def _(self, command: r.EndProfile) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            try:
                recording.end(None)
            except LabError as error:
                self._problem = str(error)
        self._say(r.Profiled(self._problem))

    @_do.register
    def _(self, command: r.UsePlan) -> None:
        self._runner.set_plan(command.plan)

    @_do.register
    def _(self, command: r.UseStreams) -> None:
        self._runner.set_streams(command.kind, command.hw_queues, command.policy, command.intra_op_threads)

    def _drafting(self) -> Drafter:
        if self._drafter is None:
            raise EngineError("this rank has no drafter")
        return self._drafter
