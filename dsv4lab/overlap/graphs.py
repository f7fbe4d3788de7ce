"""Captured programs: warmed up, captured once each, replayed; the least recently used go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch

from dsv4lab.errors import EngineError
from dsv4lab.overlap.arena import Arena
from dsv4lab.overlap.compile import CompiledProgram
from dsv4lab.overlap.device_api import Event, Graph
from dsv4lab.overlap.streams_device import DeviceStreams, Launched
from dsv4lab.timeline.program import StreamProgram
from dsv4lab.units import bytes_text

MAX_GRAPHS = 64


@dataclass(slots=True, eq=False)
class CapturedGraph:
    """A graph, and what has to live as long as it may run. ``last``: end of its last replay."""

    graph: Graph
    whole: StreamProgram
    compiled: CompiledProgram
    arena: Arena
    events: list[Event]
    kept: list[torch.Tensor] = field(default_factory=list)
    last: Event | None = None


class GraphCache:
    """Graphs of one :class:`DeviceStreams`, by key. They share one pool of memory, since none runs beside another.

    At most ``max_graphs`` are held. When their memory (temporaries of ops; everything else is the arena's) has grown
    beyond ``max_bytes``, all go and the next begins a new pool. A graph that goes is kept until its last replay is
    over.
    """

    def __init__(self, streams: DeviceStreams, max_graphs: int = MAX_GRAPHS, max_bytes: int | None = None) -> None:
        self.captures = 0
        self.replays = 0
        self.bytes = 0
        self._streams = streams
        self._max_graphs = max_graphs
        self._max_bytes = max_bytes
        self._pool = streams.api.pool()
        self._graphs: OrderedDict[Hashable, CapturedGraph] = OrderedDict()
        self._retired: list[CapturedGraph] = []

    def __len__(self) -> int:
        return len(self._graphs)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._graphs

    def get(self, key: Hashable, compiled: CompiledProgram, arena: Arena) -> CapturedGraph:
        """The graph of ``compiled`` under ``key``, captured now if there is none.

        Raises:
            EngineError: it cannot be captured; the text names plan, shape and op. Nothing is run instead.

        """
        found = self._graphs.get(key)
        if found is None:
            self._make_room()
            with self._setup():
                found = self._graphs[key] = self._capture(compiled, arena)
        self._graphs.move_to_end(key)
        return found

    def launch(self, captured: CapturedGraph) -> Launched:
        """Issue a replay; see :class:`Launched`."""
        api = self._streams.api
        main = self._streams.stream("main")
        self._learn(captured)
        tracer = self._streams.tracer
        with nullcontext() if tracer is None else tracer.run(captured.compiled.program, graph=True):
            launched = self._streams.bracket(captured.whole, partial(api.replay, captured.graph, main))
        captured.last = launched.end
        self.replays += 1
        self._sweep()
        return launched

    def time_us(self, captured: CapturedGraph, replays: int) -> float:
        """Microseconds of one of ``replays`` replays in a row, behind one more that hides the host."""
        api, main = self._streams.api, self._streams.stream("main")
        begin, end = api.event(timed=True), api.event(timed=True)

        def work() -> None:
            api.replay(captured.graph, main)
            api.record(begin, main)
            for _ in range(replays):
                api.replay(captured.graph, main)
            api.record(end, main)

        with self._setup():
            captured.last = self._streams.bracket(captured.whole, work).end
        return api.elapsed_us(begin, end) / replays

    def drop(self, key: Hashable) -> None:
        """Let the graph under ``key`` go, if there is one."""
        if (found := self._graphs.pop(key, None)) is not None:
            self._retired.append(found)
        self._sweep()

    def clear(self) -> None:
        """Let all graphs go; the next capture begins a new pool."""
        self._retired += self._graphs.values()
        self._graphs.clear()
        self._pool, self.bytes = self._streams.api.pool(), 0
        self._sweep()

    def _learn(self, captured: CapturedGraph) -> None:
        """Run the ops of ``captured`` once one by one, if a tracer does not know its kernels; they leave the same."""
        tracer, program = self._streams.tracer, captured.compiled.program
        if tracer is not None and not tracer.knows(program):
            with tracer.setup(), tracer.learn(program):
                self._streams.warm(captured.compiled, captured.arena)

    def _setup(self) -> AbstractContextManager[object]:
        tracer = self._streams.tracer
        return nullcontext() if tracer is None else tracer.setup()

    def _capture(self, compiled: CompiledProgram, arena: Arena) -> CapturedGraph:
        streams, api = self._streams, self._streams.api
        prepared = streams.prepared(compiled)
        events = [api.event() for _ in range(prepared.schedule.slots)]
        captured = CapturedGraph(None, prepared.whole, compiled, arena, events)
        program = compiled.program
        try:
            streams.warm(compiled, arena)
            with arena.no_alloc():
                work = partial(streams.issue, compiled, arena, events, captured.kept)
                captured.graph, grown = api.capture(streams.stream("main"), self._pool, work)
        except Exception as error:
            self._pool = streams.api.pool()  # torch's allocator cannot leave a capture that broke: not this pool again
            notes = " ".join(getattr(error, "__notes__", ()))
            raise EngineError(
                f"{program.mode} of {program.tokens} tokens under plan {program.plan} cannot be captured"
                f"{' ' + notes if notes else ''}: {type(error).__name__}: {' '.join(str(error).split())}; "
                f"graphs=False runs without graphs"
            ) from error
        self.captures += 1
        self.bytes += grown
        if self._max_bytes is not None and grown > self._max_bytes:
            raise EngineError(
                f"the graph of {program.mode} of {program.tokens} tokens takes {bytes_text(grown)}: "
                f"graph_memory_bytes allows {bytes_text(self._max_bytes)}"
            )
        return captured

    def _make_room(self) -> None:
        if self._max_bytes is not None and self.bytes > self._max_bytes:
            self.clear()
        while len(self._graphs) >= self._max_graphs:
            self._retired.append(self._graphs.popitem(last=False)[1])
        self._sweep()

    def _sweep(self) -> None:
        """Forget retired graphs whose last replay is over."""
        self._retired = [g for g in self._retired if g.last is not None and not self._streams.api.passed(g.last)]
