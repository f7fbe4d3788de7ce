"""The front ends: a workload and a machine give a layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dsv4lab.queues import graph_cuda, graph_hip
from dsv4lab.queues.costs import Machine
from dsv4lab.queues.layout import Layout
from dsv4lab.queues.order import needed_edges, predecessors
from dsv4lab.queues.policies import HIGH, NORMAL, DynamicPool, QueuePool, torch_pool_size
from dsv4lab.queues.workload import Workload

NULL = "null"
SHARED_NOTE = (
    "the graph's branches sit on the queue of its launch stream, as seen on 7.2.4: they run one after the other; "
    "other streams made before them may put them apart (--graph-streams apart)"
)


def place(workload: Workload, machine: Machine, *, torch: bool = False) -> Layout:
    """Lanes and queues of ``workload`` (one step, or many of a kind) on ``machine``.

    ``torch``: the process is PyTorch's, which makes its stream pools eagerly and runs ``main`` on the default stream,
    or on its first side stream when it replays graphs.
    """
    if workload.graphs and machine.runtime.graph == "cuda_lanes":
        return _cuda_graph(workload, machine)
    if workload.graphs and machine.runtime.graph == "hip_segments":
        return _hip_graph(workload, machine, torch)
    return _streams(workload, machine, torch)


class _Process:
    """The streams of one process and the queues they got, a pool per priority."""

    def __init__(self, machine: Machine, torch: bool) -> None:
        self.machine = machine
        self.torch = torch
        self._fixed: dict[int, QueuePool] = {}
        self._dynamic: dict[int, DynamicPool] = {}
        self.cpu = machine.runtime.family == "cpu"
        if not self.cpu and machine.runtime.family == "hip":
            self.acquire(NULL)
            for priority in (NORMAL, HIGH) if torch else ():
                for n in range(torch_pool_size(machine.hw_queues, priority, machine.runtime.torch_pool)):
                    self._make(f"torch{priority}.{n}", priority)

    def acquire(self, stream: str, priority: int = NORMAL, exclude: frozenset[int] = frozenset()) -> int:
        """Queue of ``stream``, numbered across the pools."""
        if self.machine.runtime.policy.startswith("dynamic"):
            pool = self._dynamic_pool(priority)
            return self._number(priority, pool.acquire(stream, exclude))
        return self._number(priority, self._pool(priority).acquire(stream))

    def _make(self, stream: str, priority: int) -> None:
        """Create a stream: bound now by reference count, at its first submission by the dynamic rule."""
        if not self.machine.runtime.policy.startswith("dynamic"):
            self._pool(priority).acquire(stream)

    def written(self, stream: str, priority: int = NORMAL) -> None:
        """One more packet of ``stream`` is in its ring."""
        if self.machine.runtime.policy.startswith("dynamic"):
            self._dynamic_pool(priority).submit(stream)

    def mapped(self) -> int:
        """Hardware queues that the process holds."""
        maps = [p.mapping for p in self._fixed.values()] + [p.mapping for p in self._dynamic.values()]
        return sum(len(set(m.values())) for m in maps)

    def _pool(self, priority: int) -> QueuePool:
        if priority not in self._fixed:
            self._fixed[priority] = QueuePool(self.machine.hw_queues, self.machine.runtime.policy)
        return self._fixed[priority]

    def _dynamic_pool(self, priority: int) -> DynamicPool:
        if priority not in self._dynamic:
            mode = int(self.machine.runtime.policy.removeprefix("dynamic"))
            pipes = int(self.machine["pipes"])
            self._dynamic[priority] = DynamicPool(self.machine.hw_queues, mode if priority == NORMAL else 1, pipes)
        return self._dynamic[priority]

    def _number(self, priority: int, queue: int) -> int:
        return queue + self.machine.hw_queues * {NORMAL: 0, HIGH: 1}.get(priority, 2)


def _streams(workload: Workload, machine: Machine, torch: bool) -> Layout:
    """Eager launches: a stream is a lane and gets its queue when it first submits, in the order of submission."""
    process = _Process(machine, torch)
    order = {s: k for k, s in enumerate(workload.lanes)}
    names = {s: _own_name(s, k, process) for s, k in order.items()}
    queue: dict[str, int] = {}
    for stream in workload.lanes if process.cpu else workload.streams:
        priority = workload.priorities.get(stream, NORMAL)
        if stream not in queue:
            queue[stream] = process.acquire(names[stream], priority)
        process.written(names[stream], priority)
    lanes = [order[s] for s in workload.streams]
    queues = tuple(queue[s] for s in workload.lanes)
    waits: Sequence[tuple[int, ...]] = needed_edges(lanes, predecessors(workload))
    if machine.runtime.family != "hip":  # HIP does not ask whether producer and consumer share a ring
        waits = _crossing(waits, [queues[k] for k in lanes], machine)
    return Layout(tuple(lanes), tuple(waits), queues, workload.lanes, tuple(range(len(workload))), process.mapped())


def _own_name(stream: str, number: int, process: _Process) -> str:
    """What a stream of the program is in the process: PyTorch's main is the null stream, its sides are pooled."""
    if process.cpu or not process.torch or process.machine.runtime.family != "hip":
        return stream
    if number == 0:
        return NULL
    size = torch_pool_size(process.machine.hw_queues, NORMAL, process.machine.runtime.torch_pool)
    return f"torch{NORMAL}.{(number - 1) % size}"


def _crossing(
    waits: Sequence[tuple[int, ...]], queue_of_op: Sequence[int], machine: Machine
) -> Sequence[tuple[int, ...]]:
    """Without what goes without saying: a packet behind its producer in a ring whose packets end in order."""
    if machine.runtime.barrier_elision:
        return waits
    return [tuple(w for w in ws if queue_of_op[w] != queue_of_op[i]) if ws else ws for i, ws in enumerate(waits)]


def _cuda_graph(workload: Workload, machine: Machine) -> Layout:
    found = graph_cuda.lanes(workload)
    count = len(found.opened_by)
    queues = tuple(k % machine.hw_queues for k in range(count))
    waits = _crossing(needed_edges(found.of, predecessors(workload)), [queues[k] for k in found.of], machine)
    names = tuple(f"lane{k}" for k in range(count))
    notes = (f"the graph replays on {count} lanes",)
    return Layout(found.of, tuple(waits), queues, names, (0,) * len(workload), min(count, machine.hw_queues), notes)


def _hip_graph(workload: Workload, machine: Machine, torch: bool) -> Layout:
    """Slot 0 is the launch stream; the others are internal streams, made when the graph is instantiated."""
    direct = predecessors(workload)
    found = graph_hip.segment(workload, machine.runtime.graph_queues, direct, hybrid=machine.runtime.graph_hybrid)
    notes: tuple[str, ...] = ()
    if graph_hip.collapses(workload, found, machine):
        found = replace(found, slot=(0,) * len(found.slot))
        notes = ("the runtime folds this graph onto one queue: its parallel work is not worth the packets",)
    used = 1 + max(found.slot, default=0)
    process = _Process(machine, torch)
    launch = f"torch{NORMAL}.0" if torch else workload.lanes[0]
    if not torch:
        for stream in workload.lanes:  # the streams it was captured on
            process.acquire(stream) if machine.runtime.policy == "refcount" else None
    queues = [process.acquire(launch)]
    if torch and machine.runtime.graph_shared:
        queues *= used
    for slot in range(len(queues), used):
        exclude = frozenset(queues) if machine.runtime.graph_exclusive else frozenset()
        queues.append(process.acquire(f"graph.{slot}", NORMAL, exclude))
    lanes = [found.slot[s] for s in found.of]
    waits = needed_edges(lanes, direct)
    if len(set(queues)) == 1 < len(queues):
        notes += (SHARED_NOTE,)
    elif len(set(queues)) < len(queues):
        notes += (f"{len(queues)} branches of the graph share {len(set(queues))} hardware queues",)
    names = ("launch", *(f"graph.{k}" for k in range(1, used)))
    return Layout(tuple(lanes), tuple(waits), tuple(queues), names, found.of, process.mapped(), notes)
