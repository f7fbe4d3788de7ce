"""The stream program: what an op list and an overlap plan compile to, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAIN = "main"


@dataclass(frozen=True, slots=True)
class ProgramOp:
    """One op as issued.

    ``waits`` are indices (into ``StreamProgram.ops``) of earlier ops on *other* streams that must have completed;
    earlier ops of the same stream are ordered by the stream itself. ``deps`` are all ops whose completion this op
    needs (the full hazard graph, same-stream ones included), before transitive reduction.
    """

    index: int
    name: str
    layer: int
    stream: str
    waits: tuple[int, ...]
    deps: tuple[int, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @property
    def label(self) -> str:
        """``L3.compressor.gemm``, or the bare name for ops outside the layers."""
        return f"L{self.layer}.{self.name}" if self.layer >= 0 else self.name


@dataclass(frozen=True, slots=True)
class StreamProgram:
    """Ops in issue order with their streams and waits. ``streams[0]`` is ``main``; side streams in ``high`` have
    the higher priority.
    """

    ops: tuple[ProgramOp, ...]
    streams: tuple[str, ...]
    plan: str
    mode: str
    tokens: int
    high: tuple[str, ...] = ()

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Cross-stream waits as ``(producer, consumer)`` op indices."""
        return tuple((w, op.index) for op in self.ops for w in op.waits)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the wire and for golden files."""
        return {
            "plan": self.plan,
            "mode": self.mode,
            "tokens": self.tokens,
            "streams": list(self.streams),
            **({"high": list(self.high)} if self.high else {}),
            "ops": [
                {
                    "name": o.name,
                    "layer": o.layer,
                    "stream": o.stream,
                    "waits": list(o.waits),
                    "deps": list(o.deps),
                    "reads": list(o.reads),
                    "writes": list(o.writes),
                }
                for o in self.ops
            ],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StreamProgram:
        """Inverse of :meth:`to_json`."""
        ops = tuple(
            ProgramOp(
                index=i,
                name=o["name"],
                layer=o["layer"],
                stream=o["stream"],
                waits=tuple(o["waits"]),
                deps=tuple(o["deps"]),
                reads=tuple(o["reads"]),
                writes=tuple(o["writes"]),
            )
            for i, o in enumerate(data["ops"])
        )
        high = tuple(data.get("high", ()))
        return cls(ops, tuple(data["streams"]), data["plan"], data["mode"], data["tokens"], high)
