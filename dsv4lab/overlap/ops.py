"""Ops: what model code lists in program order, with the named resources each one reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dsv4lab.errors import PlanError
from dsv4lab.overlap.arena import Lane

OpFunction = Callable[[Lane], None]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One unit of work on one stream.

    ``reads`` and ``writes`` name disjoint memory (an arena buffer, ``kv.3.ring``, ``state.3``, ...); a resource that
    an op updates in place stands in both. ``kind`` is the attention kind of its layer (``swa``, ``csa``, ``hca``) or
    ``""`` outside the layers. A fused op lists its ``parts``: ops that do the same work, bit for bit, in order.
    """

    name: str
    run: OpFunction
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    layer: int = -1
    kind: str = ""
    parts: tuple[Op, ...] = ()

    @property
    def label(self) -> str:
        """``L3.compressor.gemm``, or the bare name for ops outside the layers."""
        return f"L{self.layer}.{self.name}" if self.layer >= 0 else self.name


def fuse(name: str, run: OpFunction, parts: Sequence[Op]) -> Op:
    """A fused op whose reads and writes follow from its parts.

    What one part writes and a later part reads is internal: it counts as written, and as read only if some part reads
    it before any part has written it.
    """
    if len(parts) < 2:
        raise PlanError(f"fused op {name} needs at least two parts, got {len(parts)}")
    reads: list[str] = []
    writes: list[str] = []
    for part in parts:
        reads += [r for r in part.reads if r not in writes and r not in reads]
        writes += [w for w in part.writes if w not in writes]
    return Op(name, run, tuple(reads), tuple(writes), parts[0].layer, parts[0].kind, tuple(parts))


def op_names(ops: Iterable[Op]) -> tuple[str, ...]:
    """Distinct names a plan may match, in program order, parts of fused ops included."""
    names: dict[str, None] = {}
    for op in ops:
        names.setdefault(op.name)
        for part in op.parts:
            names.setdefault(part.name)
    return tuple(names)
