"""Programs of spinning kernels on a device: what a probe runs, measured as the queue model counts it.

A program is a document as ``simulate --program`` takes it (docs/queue-model.md) with streams ``main``, ``side0``, ...;
every op spins for its ``duration_us``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dsv4lab.errors import UnavailableError
from dsv4lab.overlap.arena import Arena
from dsv4lab.overlap.compile import CompiledProgram, compile_program
from dsv4lab.overlap.device_api import DeviceApi
from dsv4lab.overlap.graphs import GraphCache
from dsv4lab.overlap.ops import Op
from dsv4lab.overlap.plan import OverlapPlan, Rule
from dsv4lab.overlap.streams_device import DeviceStreams

HOST_CALLS = 500
LEAD_US = 200.0
"""What the device spins before a graph is timed, so that the host is through with launching it when time begins."""


class SpinBench:
    """Measures documents on ``api``; a document is captured or compiled once, and run ``rounds`` times."""

    def __init__(self, api: DeviceApi, rounds: int = 7) -> None:
        self._api = api
        self._rounds = rounds
        self.streams = DeviceStreams(api)
        self._graphs = GraphCache(self.streams)
        self._arena = Arena(1)
        api.spin(1.0)  # outside any capture, since the first one measures the clock
        api.synchronize()

    def distinct_streams(self, most: int) -> int:
        """How many side streams the process can have, up to ``most``."""
        self.streams.stream("main")
        for n in range(most):
            try:
                self.streams.stream(f"side{n}")
            except UnavailableError:
                return n
        return most

    def measure(self, document: Mapping[str, Any], clock: str = "gpu") -> float:
        """Median microseconds: ``gpu`` from first start to last end, ``host`` from the call until all has ended.

        An eager document's first start is the host's first call: the device waits for it.
        """
        compiled = _compile(document, self._api)
        issue = self._launcher(document, compiled)
        if clock == "gpu":
            graph = document.get("launch", "graph") != "eager"
            times = [self._gpu_us(compiled, issue, graph) for _ in self._turns()]
        else:
            times = [self._host_us(issue) for _ in self._turns()]
        return statistics.median(times[1:])

    def host_us(self) -> dict[str, float]:
        """Microseconds of the host's thread for one call each: kernel, event recorded, event waited for, graph of one
        kernel.
        """
        api, main, side = self._api, self.streams.stream("main"), self.streams.stream("side0")
        event = api.event()
        api.record(event, main)
        one = _compile({"ops": [{"name": "k", "stream": "main", "duration_us": 0.1}]}, api)
        graph = self._graphs.get("one", one, self._arena).graph
        calls: dict[str, Callable[[], None]] = {
            "launch": partial(api.run, main, partial(api.spin, 0.1)),
            "event_record": partial(api.record, event, main),
            "event_wait": partial(api.wait, side, event),
            "graph_launch": partial(api.replay, graph, main),
        }
        return {name: self._call_us(call) for name, call in calls.items()}

    def _turns(self) -> range:
        return range(self._rounds + 1)

    def _launcher(self, document: Mapping[str, Any], compiled: CompiledProgram) -> Callable[[], None]:
        repeat = int(document.get("repeat", 1))
        if document.get("launch", "graph") == "eager":
            slots = self.streams.prepared(compiled).schedule.slots
            events = [self._api.event() for _ in range(slots)]
            once = partial(self.streams.issue, compiled, self._arena, events, [])
        else:
            graph = self._graphs.get(compiled, compiled, self._arena).graph
            once = partial(self._api.replay, graph, self.streams.stream("main"))

        def issue() -> None:
            for _ in range(repeat):
                once()

        return issue

    def _gpu_us(self, compiled: CompiledProgram, issue: Callable[[], None], graph: bool) -> float:
        api, main = self._api, self.streams.stream("main")
        begin, end = api.event(timed=True), api.event(timed=True)

        def work() -> None:
            if graph:
                api.run(main, partial(api.spin, LEAD_US))
            api.record(begin, main)
            issue()
            api.record(end, main)

        self.streams.bracket(self.streams.prepared(compiled).whole, work).us()
        return api.elapsed_us(begin, end)

    def _host_us(self, issue: Callable[[], None]) -> float:
        self._api.synchronize()
        begun = time.perf_counter_ns()
        issue()
        self._api.synchronize()
        return (time.perf_counter_ns() - begun) / 1e3

    def _call_us(self, call: Callable[[], None]) -> float:
        times = []
        for _ in self._turns():
            self._api.synchronize()
            begun = time.perf_counter_ns()
            for _ in range(HOST_CALLS):
                call()
            times.append((time.perf_counter_ns() - begun) / 1e3 / HOST_CALLS)
        self._api.synchronize()
        return statistics.median(times[1:])


def _compile(document: Mapping[str, Any], api: DeviceApi) -> CompiledProgram:
    """The program: op ``i`` writes resource ``i`` and reads those that it comes after, which makes its waits."""
    ops: list[Op] = []
    rules: list[Rule] = []
    last: dict[str, int] = {}
    for op in document["ops"]:
        reads = tuple(str(last[name]) for name in op.get("after", ()))
        for _ in range(int(op.get("count", 1))):
            number, run = len(ops), partial(_spin, api, float(op["duration_us"]))
            ops.append(Op(f"k{number}", run, reads, (str(number),)))
            rules.append(Rule(f"k{number}", op["stream"]))
            reads = ()
        last[op["name"]] = len(ops) - 1
    plan = OverlapPlan(str(document.get("name", "probe")), tuple(rules))
    late = document.get("launch", "graph") != "eager"
    return compile_program(ops, plan, "probe", 1, late_sides=late)


def _spin(api: DeviceApi, us: float, _: object) -> None:
    api.spin(us)
