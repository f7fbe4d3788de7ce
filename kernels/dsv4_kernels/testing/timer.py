"""Time of one call on a GPU: CUDA-graph replays of several calls over inputs that do not fit the cache together."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dsv4_kernels.registry import Arguments
from dsv4_kernels.testing.compare import clone

_L2_BYTES = 64 * 2**20
_MOST_COPIES = 32
_MOST_BYTES = 48 * 2**30


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call: median of the replays, and the tenth and ninetieth percentile."""

    us: float
    us_p10: float
    us_p90: float
    calls: int
    replays: int


def time_call(
    call: Callable[..., Any], arguments: Arguments, moved: int, *, replays: int = 20, budget_ms: float = 200.0
) -> Timing:
    """Time ``call(**arguments)``: a graph of at least 20 calls (fewer if long), rotating over copies of the arguments.

    As many copies are made as fill twice the L2 with the ``moved`` bytes of a call (at most 32, so the inputs of the
    smallest calls stay in the L2). The outputs are left as the last replay wrote them.
    """
    held = sum(v.numel() * v.element_size() for v in arguments.values() if isinstance(v, torch.Tensor))
    copies = max(1, min(_MOST_COPIES, -(-2 * _L2_BYTES // max(moved, 1)), 1 + _MOST_BYTES // max(held, 1)))
    sets = [arguments, *(clone(arguments) for _ in range(copies - 1))]
    once = _warm_up(call, sets)
    calls = max(copies, min(20, max(1, int(budget_ms / replays / max(once, 1e-3)))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for at in range(calls):
            call(**sets[at % copies])
    graph.replay()
    torch.cuda.synchronize()
    times = [_replay_ms(graph) * 1e3 / calls for _ in range(replays)]
    cuts = statistics.quantiles(times, n=10)
    return Timing(statistics.median(times), cuts[0], cuts[-1], calls, replays)


def _warm_up(call: Callable[..., Any], sets: list[Arguments]) -> float:
    """Milliseconds of a second call, after the first has compiled; on a side stream, as capture wants it."""
    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())  # which may still be making the arguments
    with torch.cuda.stream(stream):
        call(**sets[0])
        stream.synchronize()
        return _timed_ms(lambda: call(**sets[-1]))


def _replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    return _timed_ms(graph.replay)


def _timed_ms(work: Callable[[], object]) -> float:
    """Milliseconds between two events on the current stream around ``work``; waits for the second."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))
