"""What the parts of the model write their ops into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from dsv4lab.backends.base import Ops
from dsv4lab.config.model import ModelConfig
from dsv4lab.errors import EngineError
from dsv4lab.kv.metadata import StepMetadata
from dsv4lab.kv.packed import on_device
from dsv4lab.kv.pool import KvPool
from dsv4lab.model.rope import RopeFrequencies
from dsv4lab.overlap.arena import Arena
from dsv4lab.overlap.ops import Op, OpFunction, fuse
from dsv4lab.parallel.groups import ALONE, Parallel


class StepInputs:
    """Metadata of the forward that is about to run, on ``device``: set before a replay, read by the ops inside it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._meta: StepMetadata | None = None
        self.output_rows: torch.Tensor = torch.empty(0, dtype=torch.int64, device=device)

    @property
    def meta(self) -> StepMetadata:
        """Metadata of the present forward; an error outside one."""
        if self._meta is None:
            raise EngineError("an op ran outside a forward: no metadata is set")
        return self._meta

    def set(self, meta: StepMetadata, output_rows: torch.Tensor) -> None:
        """Take over ``meta`` and the flat rows whose logits are wanted (int64), both made on the CPU."""
        self._meta = on_device(meta, self._device)
        self.output_rows = output_rows.to(self._device)

    def place(self, meta: StepMetadata, output_rows: torch.Tensor) -> None:
        """As :meth:`set`, for tensors that lie on the device and are read where they lie: graphs remember addresses."""
        self._meta, self.output_rows = meta, output_rows


@dataclass(frozen=True, slots=True)
class Shape:
    """What an op list depends on: the mode, the flat tokens and the rows of logits.

    ``gathered`` is the number of rows that each peer brings to the experts, its tokens and padding; 0 without peers.
    A forward of mode ``idle`` has no tokens: only the collectives, and this rank's share of the peers' experts.
    """

    mode: str
    tokens: int
    outputs: int
    gathered: int = 0


class OpListBuilder:
    """Collects ops in program order and hands out views of the arena's buffers.

    ``dtype`` is that of activations. A buffer's name is its resource name. ``config`` has this rank's heads and groups
    (:meth:`dsv4lab.parallel.layout.Layout.local`), ``parallel`` the groups that it exchanges tensors with.
    """

    def __init__(
        self,
        config: ModelConfig,
        ops: Ops,
        arena: Arena,
        pool: KvPool,
        inputs: StepInputs,
        frequencies: RopeFrequencies,
        shape: Shape,
        parallel: Parallel = ALONE,
    ) -> None:
        self.config = config
        self.parallel = parallel
        self.ops = ops
        self.arena = arena
        self.pool = pool
        self.inputs = inputs
        self.frequencies = frequencies
        self.shape = shape
        self.dtype = pool.dtype
        self.list: list[Op] = []
        self._layer = -1
        self._kind = ""
        self._pending: tuple[Op, torch.Tensor] | None = None

    def reading(self, inputs: StepInputs) -> OpListBuilder:
        """An empty builder like this one, whose ops read ``inputs``."""
        return OpListBuilder(
            self.config, self.ops, self.arena, self.pool, inputs, self.frequencies, self.shape, self.parallel
        )

    @contextmanager
    def layer(self, index: int) -> Iterator[None]:
        """Ops added within belong to layer ``index``."""
        self._layer, self._kind = index, self.config.kind(index).label
        yield
        self._layer, self._kind = -1, ""

    def buffer(
        self, name: str, *row_shape: int, dtype: torch.dtype | None = None, rows: int | None = None
    ) -> torch.Tensor:
        """``[tokens, *row_shape]`` (or ``rows`` of them) of arena buffer ``name``."""
        return self.arena.view(name, self.shape.tokens if rows is None else rows, row_shape, dtype or self.dtype)

    def op(self, name: str, run: OpFunction, reads: Sequence[str], writes: Sequence[str]) -> Op:
        """An op of the present layer, not yet added."""
        return Op(name, run, tuple(reads), tuple(writes), self._layer, self._kind)

    def add(self, name: str, run: OpFunction, reads: Sequence[str], writes: Sequence[str]) -> None:
        """Append an op."""
        self.append(self.op(name, run, reads, writes))

    def append(self, op: Op) -> None:
        """Append ``op``; a pending one that nothing fused with goes first."""
        self.flush()
        self.list.append(op)

    def defer(self, op: Op, operand: torch.Tensor) -> None:
        """Hold ``op`` back, to be fused with the op that :meth:`add_fused` brings next, which may need ``operand``."""
        self.flush()
        self._pending = op, operand

    def add_fused(self, name: str, op: Op, whole: Callable[[torch.Tensor], OpFunction]) -> None:
        """Append ``op``; if one is pending, both as one op ``name`` that runs ``whole`` of the pending operand."""
        pending, self._pending = self._pending, None
        if pending is None:
            self.list.append(op)
            return
        first, operand = pending
        self.list.append(fuse(name, whole(operand), (first, op)))

    def flush(self) -> None:
        """Append the pending op as it is."""
        if self._pending is not None:
            self.list.append(self._pending[0])
            self._pending = None


def in_order(*parts: Op) -> OpFunction:
    """A function that runs ``parts`` one after the other."""
    runs = tuple(part.run for part in parts)

    def run(lane: object) -> None:
        for part in runs:
            part(lane)  # type: ignore[arg-type]

    return run
