"""What is simulated: ops on streams with their dependencies and costs, from a stream program or from JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dsv4lab.errors import UsageError
from dsv4lab.queues.policies import HIGH
from dsv4lab.timeline.program import MAIN, StreamProgram

PACKETS = ("kernel", "collective", "copy")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one op asks of the device when it runs alone.

    ``us``: its duration. ``occupancy``: the share of CUs that its workgroups touch. ``bandwidth`` and ``compute``: the
    shares of the device's memory rate and of its arithmetic that it uses meanwhile. All shares are 0 to 1. ``blocks``:
    workgroups, 0 if not known; ``footprint`` and ``shared``: shares of a CU and of its shared memory that one takes;
    ``prefers``: the share of its memory that it asks a CU to have as shared memory, 0 if it does not ask.
    """

    us: float
    occupancy: float = 0.0
    bandwidth: float = 0.0
    compute: float = 0.0
    blocks: int = 0
    footprint: float = 0.0
    shared: float = 0.0
    prefers: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Ops in the order in which the host issues (or records) them.

    ``waits[i]``: earlier ops on other streams that op ``i`` waits for. ``costs[i]`` and ``kinds[i]`` (``kernel``,
    ``collective``, ``copy``) belong to op ``i``, ``steps[i]`` numbers its step. ``graphs`` says that each step is one
    launch of a captured graph; else ops are launched one by one. ``priorities`` by stream; 0 where it says nothing.
    ``synchronise``: the host waits for every stream at the end, one after the other.
    """

    names: tuple[str, ...]
    layers: tuple[int, ...]
    streams: tuple[str, ...]
    waits: tuple[tuple[int, ...], ...]
    costs: tuple[Cost, ...]
    kinds: tuple[str, ...]
    steps: tuple[int, ...]
    graphs: bool = True
    priorities: Mapping[str, int] = field(default_factory=dict)
    synchronise: bool = False
    label: str = ""
    lead_us: tuple[float, ...] = ()
    """Time before each op that no packet explains (a late host in the trace that it comes from); empty: none."""
    early: tuple[bool, ...] = ()
    """Whether an op may be launched while the one before it on its stream runs (programmatic launch): it takes its
    places then, and works from that one's end; empty: none."""
    late_us: tuple[float, ...] = ()
    """What such an op starts later by if another lane keeps it until after that end; empty: nothing."""
    ahead_us: tuple[float, ...] = ()
    """What such an op takes longer then, as it has done nothing ahead; empty: nothing."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def lanes(self) -> tuple[str, ...]:
        """Streams in order of first use, ``main`` first if there is one."""
        found = dict.fromkeys(self.streams)
        return (MAIN, *(s for s in found if s != MAIN)) if MAIN in found else tuple(found)

    def with_streams(self, streams: Sequence[str], waits: Sequence[tuple[int, ...]]) -> Workload:
        """The same ops on other streams."""
        return replace(self, streams=tuple(streams), waits=tuple(waits))


def from_program(program: StreamProgram, costs: Sequence[Cost], *, graphs: bool = True, steps: int = 1) -> Workload:
    """``program`` with a cost per op, repeated ``steps`` times.

    Raises:
        UsageError: there is not exactly one cost for each op.

    """
    n = len(program.ops)
    if len(costs) != n:
        raise UsageError(f"the program has {n} ops, got {len(costs)} costs")
    one = tuple(tuple(o.waits) for o in program.ops)
    return Workload(
        names=tuple(o.name for o in program.ops) * steps,
        layers=tuple(o.layer for o in program.ops) * steps,
        streams=tuple(o.stream for o in program.ops) * steps,
        waits=tuple(tuple(w + s * n for w in waits) for s in range(steps) for waits in one),
        costs=tuple(costs) * steps,
        kinds=tuple("collective" if o.name.endswith("all_reduce") else "kernel" for o in program.ops) * steps,
        steps=tuple(s for s in range(steps) for _ in range(n)),
        graphs=graphs,
        priorities=dict.fromkeys(program.high, HIGH),
        label=program.plan,
    )


def repeat(workload: Workload, steps: int) -> Workload:
    """``workload`` (one step) ``steps`` times, each after all of the one before."""
    n = len(workload)
    return replace(
        workload,
        names=workload.names * steps,
        layers=workload.layers * steps,
        streams=workload.streams * steps,
        waits=tuple(tuple(w + s * n for w in waits) for s in range(steps) for waits in workload.waits),
        costs=workload.costs * steps,
        kinds=workload.kinds * steps,
        steps=tuple(s for s in range(steps) for _ in range(n)),
        lead_us=workload.lead_us * steps,
        early=workload.early * steps,
        late_us=workload.late_us * steps,
        ahead_us=workload.ahead_us * steps,
    )


def op_rows(data: Any) -> list[Mapping[str, Any]]:
    """The ops of a program document, or an error that says what it takes."""
    if not isinstance(data, Mapping) or not isinstance(data.get("ops"), list) or not data["ops"]:
        raise UsageError('a program is {"ops": [{"name", "stream", "after"?, "duration_us"?, ...}, ...]}')
    for i, op in enumerate(data["ops"]):
        if not isinstance(op, Mapping):
            raise UsageError(f"program op {i} must be an object, got {type(op).__name__}")
    return list(data["ops"])
