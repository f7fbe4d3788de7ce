"""A drafter's programs on the engine's streams: one launch at a time, on a GPU as graphs by batch bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from dsv4lab.kv.metadata import StepMetadata
from dsv4lab.kv.packed import PackedMetadata
from dsv4lab.model.builder import Shape, StepInputs
from dsv4lab.model.programs import Programs
from dsv4lab.overlap.arena import Arena
from dsv4lab.overlap.compile import CompiledProgram
from dsv4lab.overlap.plan import OverlapPlan


@dataclass(frozen=True, slots=True)
class DraftShape:
    """A kind of draft forward (``extend``, ``chain``, ``block``, ...) and the requests that it is padded to."""

    kind: str
    requests: int


class DraftRuns(Protocol):
    """How a drafter's programs are run: on the engine's streams. On a GPU nothing here waits on the host."""

    @property
    def on_device(self) -> bool:
        """Whether they run on a GPU's streams."""
        ...

    def bucket(self, requests: int) -> int | None:
        """Requests to pad a forward of ``requests`` to, so that it is a graph; None: it runs eagerly, as it is."""
        ...

    def run(self, compiled: CompiledProgram, arena: Arena, *, prefill: bool) -> None:
        """Run every op once, eagerly; ``prefill``: as prefills do, not for want of a bucket."""
        ...

    def replay(
        self, of: DraftShape, tokens: int, compiled: Callable[[OverlapPlan], CompiledProgram], arena: Arena
    ) -> None:
        """Replay the graph of ``of`` under the plan in force, captured now if there is none.

        ``compiled`` makes the program under a plan. Raises ``EngineError`` if it cannot be captured.
        """
        ...


class Forwards:
    """Forwards of one ``kind``, whose program reads ``steps``, one after the other: by default its own inputs alone.

    ``all_rows``: logits of every flat token, not only of each request's last. ``tokens_at``: where the steps' token ids
    are found, instead of in the metadata: an earlier op of the program writes them there.
    """

    def __init__(
        self,
        kind: str,
        programs: Programs,
        runs: DraftRuns,
        *,
        steps: Sequence[StepInputs] | None = None,
        all_rows: bool = False,
        tokens_at: Callable[[Shape], torch.Tensor] | None = None,
    ) -> None:
        self._kind = kind
        self._programs = programs
        self._runs = runs
        self._steps = (programs.inputs,) if steps is None else tuple(steps)
        self._all_rows = all_rows
        self._tokens_at = tokens_at
        self._fixed: dict[int, tuple[list[PackedMetadata], torch.Tensor]] = {}

    def launch(self, shape: Shape, metas: Sequence[StepMetadata], size: int | None, *, prefill: bool = False) -> None:
        """Run a forward of ``metas``, one for each step: eagerly, or padded to ``size`` requests as a graph."""
        programs, runs = self._programs, self._runs
        ids = None if self._tokens_at is None else self._tokens_at(shape)
        if size is None:
            for inputs, meta in zip(self._steps, metas, strict=True):
                inputs.set(meta, torch.arange(meta.T) if self._all_rows else meta.last_rows)
                self._put(inputs, inputs.meta, inputs.output_rows, ids)
            runs.run(programs.compiled(shape), programs.arena, prefill=prefill)
            return
        packed, rows = self._at(size, metas)
        for inputs, place, meta in zip(self._steps, packed, metas, strict=True):
            place.load(meta)
            self._put(inputs, place.meta, rows if self._all_rows else place.meta.last_rows, ids)
        of = DraftShape(self._kind, size)
        runs.replay(of, shape.tokens, lambda plan: programs.compiled(shape, plan), programs.arena)

    def _put(self, inputs: StepInputs, meta: StepMetadata, rows: torch.Tensor, ids: torch.Tensor | None) -> None:
        inputs.place(meta if ids is None else replace(meta, token_ids=ids), rows)

    def _at(self, size: int, like: Sequence[StepMetadata]) -> tuple[list[PackedMetadata], torch.Tensor]:
        """The inputs of this bucket, at addresses that stay: graphs remember them."""
        found = self._fixed.get(size)
        if found is None:
            device = self._programs.arena.device
            packed = [PackedMetadata(meta, device) for meta in like]
            rows = torch.arange(like[0].T, device=device) if self._all_rows else torch.empty(0, dtype=torch.int64)
            found = self._fixed[size] = (packed, rows)
        return found
