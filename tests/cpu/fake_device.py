"""A device that records what it is given and knows what comes before what; ops run on the CPU as they are issued.

An item is one launch. A set of items is an integer with one bit per item: ``before[i]`` holds all that is surely over
when item ``i`` runs. In a capture, launches become nodes of the graph; a replay makes an item of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Work = Callable[[], None]


@dataclass(eq=False)
class FakeEvent:
    timed: bool = False
    seen: int | None = None  # items, or in a capture nodes, that it stands for
    owner: FakeGraph | None = None  # the capture that it was recorded in
    at_us: float = 0.0


@dataclass(eq=False)
class FakeGraph:
    pool: object
    nodes: list[tuple[int, Work | None, int]] = field(default_factory=list)  # stream, work, nodes before it
    seen: dict[int, int] = field(default_factory=dict)  # nodes before the next one, by capturing stream

    @property
    def streams(self) -> int:
        return len({stream for stream, _, _ in self.nodes})


class FakeDevice:
    """``distinct`` streams are handed out in turn, as torch's pool does. Stream 0 is the caller's."""

    def __init__(self, kind: str = "cuda", distinct: int = 32) -> None:
        self.kind = kind
        self.before: list[int] = []
        self.stream_of: list[int] = []
        self.calls: list[str] = []
        self.host_waits = 0
        self.waits = 0
        self.item = -1
        self.time_us = 0.0
        self.price: Callable[[FakeGraph], float] = lambda graph: 1.0
        self.grows: Callable[[FakeGraph], int] = lambda graph: 1
        self.fail_at: int | None = None
        self.spun_us = 0.0
        self.done = False  # whether the device has reached every event
        self._distinct = distinct
        self._made = 0
        self._seen: dict[int, int] = {}
        self._all = 0
        self._graph: FakeGraph | None = None

    def ordered(self, first: int, second: int) -> bool:
        return bool(self.before[second] >> first & 1)

    def stream(self, *, high: bool = False) -> int:
        self._made += 1
        self.calls.append(f"stream{' high' if high else ''}")
        return 1 + (self._made - 1) % self._distinct

    def current(self) -> int:
        return 0

    def run(self, stream: int, work: Work) -> None:
        if self._graph is None:
            self._launch(stream, work, self._seen.get(stream, 0))
            return
        graph = self._graph
        assert stream in graph.seen, "a launch in a capture on a stream that was not forked from it"
        if self.fail_at is not None and len(graph.nodes) >= self.fail_at:
            raise RuntimeError("operation not permitted when stream is capturing")
        graph.nodes.append((stream, work, graph.seen[stream]))
        graph.seen[stream] |= 1 << (len(graph.nodes) - 1)

    def spin(self, us: float) -> None:
        self.spun_us += us

    def event(self, *, timed: bool = False) -> FakeEvent:
        self.calls.append("event")
        return FakeEvent(timed)

    def record(self, event: FakeEvent, stream: int) -> None:
        graph = self._graph
        assert event.owner in (None, graph), "an event of one capture was recorded in another place"
        if graph is not None:
            assert stream in graph.seen, "an event recorded in a capture on a stream that was not forked from it"
            assert event.seen is None or event.owner is graph, "an event of eager runs was recorded in a capture"
            event.owner, event.seen = graph, graph.seen[stream]
            return
        event.seen, event.at_us = self._seen.get(stream, 0), self.time_us

    def wait(self, stream: int, event: FakeEvent) -> None:
        self.waits += 1
        assert event.seen is not None, "a wait for an event that was never recorded"
        assert event.owner is self._graph, "a capture and what is outside it wait for each other"
        seen = self._seen if self._graph is None else self._graph.seen
        seen[stream] = seen.get(stream, 0) | event.seen

    def passed(self, event: FakeEvent) -> bool:
        return self.done

    def elapsed_us(self, begin: FakeEvent, end: FakeEvent) -> float:
        assert begin.timed, "the beginning is not timed"
        assert end.timed, "the end is not timed"
        self.synchronize()
        return end.at_us - begin.at_us

    def synchronize(self) -> None:
        assert self._graph is None, "the host waited inside a capture"
        self.host_waits += 1
        self._seen = dict.fromkeys([*self._seen, *range(self._distinct + 1)], self._all)

    def pool(self) -> object:
        self.calls.append("pool")
        return object()

    def capture(self, stream: int, pool: Any, work: Work) -> tuple[FakeGraph, int]:
        self.calls.append("capture")
        assert self._graph is None, "a capture in a capture"
        self.synchronize()
        graph = self._graph = FakeGraph(pool, seen={stream: 0})
        try:
            work()
            whole = (1 << len(graph.nodes)) - 1
            assert graph.seen[stream] == whole, "the capture ended with a stream that was not joined"
        finally:
            left = {s: n for s, n in graph.seen.items() if n & ~graph.seen[stream]}
            self._graph = None
        assert not left, f"streams {sorted(left)} were left forked"
        return graph, self.grows(graph)

    def replay(self, graph: FakeGraph, stream: int) -> None:
        self.calls.append("replay")
        start, first = self._seen.get(stream, 0), len(self.before)
        for on, work, nodes in graph.nodes:
            self._launch(on, work, start | nodes << first, enqueue=False)
        self._seen[stream] = start | ((1 << len(graph.nodes)) - 1) << first
        self.time_us += self.price(graph)

    def _launch(self, stream: int, work: Work | None, before: int, *, enqueue: bool = True) -> None:
        self.item = len(self.before)
        self.before.append(before)
        self.stream_of.append(stream)
        self._all |= 1 << self.item
        if enqueue:
            self._seen[stream] = before | 1 << self.item
        if work is not None:
            work()
