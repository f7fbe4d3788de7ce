"""A probe of the CPU device: what a handoff between two queue threads costs, and how far two of them slow each other.

Numpy and threads only, as the CPU device's queues are threads that wait on locks. Two threads each read arrays that no
cache holds, as products of one token read their weights, then do arithmetic in cache. Alone and together take turns, so
that whatever else the machine does meets both, and the least disturbed quarter counts.
"""

from __future__ import annotations

import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 21
"""Numbers (float32) of one reading: 8 MiB, about a product of the demo model."""

CHUNKS = 10
"""Arrays that a thread goes through, so that each reading comes from memory."""

CACHED = 1 << 14
"""Numbers of one array that stays in a core's own cache, all of them together too."""

Work = Callable[[NDArray[np.float32]], object]
"""What a thread does to one array; it has to let go of the interpreter lock."""


@dataclass(frozen=True, slots=True)
class CpuProbe:
    """``handoff_us``: from a released lock to the thread that waited for it and slept. ``slowdown``: time of a
    memory-bound reading beside another one, over its time alone (1 to 2). ``compute_slowdown``: the same of arithmetic
    in cache, above 1 where two cores of a virtual machine are two threads of one.
    """

    handoff_us: float
    slowdown: float
    compute_slowdown: float = 1.0


def probe_cpu(repeats: int = 15) -> CpuProbe:
    """Measure this machine; about a second, and 160 MiB."""
    memory = partial(_arrays, CHUNK, CHUNKS)
    cache = partial(_arrays, CACHED, CHUNKS)
    return CpuProbe(
        handoff_us(4 * repeats), corun_slowdown(memory, np.max, repeats), corun_slowdown(cache, np.sin, repeats)
    )


def _arrays(size: int, count: int) -> list[NDArray[np.float32]]:
    return [np.ones(size, np.float32) for _ in range(count)]


def low(times: list[float]) -> float:
    """The lower quartile: what a time is when nothing else gets in its way."""
    return float(np.quantile(times, 0.25))


def handoff_us(turns: int = 60) -> float:
    """From a released lock to the thread that waited for it, in microseconds, as queue threads meet it: the one that
    waits has slept for about a millisecond, and the one that releases goes on working.
    """
    ping, pong = allocate_lock(), allocate_lock()
    ping.acquire()
    pong.acquire()
    woken: list[int] = []

    def answer() -> None:
        for _ in range(turns):
            ping.acquire()
            woken.append(time.perf_counter_ns())
            pong.release()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    arrays = _arrays(CHUNK, 2)
    released = []
    for _ in range(turns):
        np.max(arrays[0])
        released.append(time.perf_counter_ns())
        ping.release()
        np.max(arrays[1])
        pong.acquire()
    thread.join()
    return low([(to - begun) / 1e3 for begun, to in zip(released, woken, strict=True)])


def corun_slowdown(make: Callable[[], list[NDArray[np.float32]]], work: Work, repeats: int = 15) -> float:
    """Time of ``work`` on an array while another thread does the same to arrays of its own, over its time alone."""
    own, other = make(), make()
    go, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=_work_while, args=(other, work, go, stop), daemon=True)
    thread.start()
    alone: list[float] = []
    together: list[float] = []
    for _ in range(repeats):
        go.clear()
        alone += _timed(own, work)
        go.set()
        together += _timed(own, work)
    stop.set()
    go.set()
    thread.join()
    return min(2.0, max(1.0, low(together) / low(alone)))


def _work_while(arrays: list[NDArray[np.float32]], work: Work, go: threading.Event, stop: threading.Event) -> None:
    at = 0
    while not stop.is_set():
        go.wait()
        work(arrays[at % CHUNKS])
        at += 1


def _timed(arrays: list[NDArray[np.float32]], work: Work) -> list[float]:
    times = []
    for array in arrays:
        begun = time.perf_counter_ns()
        work(array)
        times.append(float(time.perf_counter_ns() - begun))
    return times[1:]
