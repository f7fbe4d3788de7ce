"""Op lists by shape and their programs by plan, kept for replay."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from dsv4lab.backends.base import Ops
from dsv4lab.config.model import ModelConfig
from dsv4lab.kv.pool import KvPool
from dsv4lab.model.builder import OpListBuilder, Shape, StepInputs
from dsv4lab.model.rope import RopeFrequencies
from dsv4lab.overlap.arena import Arena
from dsv4lab.overlap.compile import CompiledProgram, compile_program
from dsv4lab.overlap.ops import Op
from dsv4lab.overlap.plan import OFF, OverlapPlan
from dsv4lab.parallel.groups import ALONE, Parallel
from dsv4lab.parallel.order import check_order

MAX_SHAPES = 128
MAX_PLANS = 16
"""Programs of a shape: more than plan auto tries."""


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Where a model runs: the backend's ops, their device, and the dtype of activations and plain KV rows."""

    ops: Ops
    device: torch.device
    dtype: torch.dtype


Lister = Callable[[OpListBuilder], list[Op]]


@dataclass(slots=True, eq=False)
class _Entry:
    ops: list[Op]
    compiled: OrderedDict[OverlapPlan, CompiledProgram] = field(default_factory=OrderedDict)


class Programs:
    """What ``lister`` lists for a model, a pool and an arena, by shape; the least recently used shapes are dropped.

    With several ranks, ``model`` has this rank's heads, and every program is checked to keep the order of collectives.
    ``late_sides`` as in :func:`compile_program`.
    """

    def __init__(
        self,
        model: ModelConfig,
        ops: Ops,
        arena: Arena,
        pool: KvPool,
        lister: Lister,
        parallel: Parallel = ALONE,
        *,
        late_sides: bool = False,
    ) -> None:
        self.inputs = StepInputs(arena.device)
        self.arena = arena
        self._model = model
        self._ops = ops
        self._pool = pool
        self._lister = lister
        self._parallel = parallel
        self._late_sides = late_sides
        self._frequencies = RopeFrequencies(model, arena.device)
        self._entries: OrderedDict[Shape, _Entry] = OrderedDict()

    def builder(self, shape: Shape) -> OpListBuilder:
        """An empty builder of this shape: the way to the buffers that its ops bind."""
        return OpListBuilder(
            self._model, self._ops, self.arena, self._pool, self.inputs, self._frequencies, shape, self._parallel
        )

    def ops(self, shape: Shape) -> list[Op]:
        """Ops of this shape in program order."""
        return self._entry(shape).ops

    def compiled(self, shape: Shape, plan: OverlapPlan = OFF) -> CompiledProgram:
        """Program of this shape under ``plan``."""
        entry = self._entry(shape)
        compiled = entry.compiled.get(plan)
        if compiled is None:
            compiled = compile_program(entry.ops, plan, shape.mode, shape.tokens, late_sides=self._late_sides)
            check_order(compiled.program)
            entry.compiled[plan] = compiled
            if len(entry.compiled) > MAX_PLANS:
                entry.compiled.popitem(last=False)
        entry.compiled.move_to_end(plan)
        return compiled

    def _entry(self, shape: Shape) -> _Entry:
        entry = self._entries.get(shape)
        if entry is None:
            entry = self._entries[shape] = _Entry(self._lister(self.builder(shape)))
            if len(self._entries) > MAX_SHAPES:
                self._entries.popitem(last=False)
        self._entries.move_to_end(shape)
        return entry
