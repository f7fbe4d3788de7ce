"""A probe of the CPU device: what a handoff between two queue threads costs, and how far two of them slow each other.

Numpy and threads only, as the CPU device's queues are threads that wait on locks. Two threads each read arrays that no
cache holds, as products of one token read their weights; alone and together take turns, so that whatever else the
machine does meets both, and the least disturbed quarter counts.
"""

from __future__ import annotations

import threading
import time
from _thread import allocate_lock
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 21
"""Numbers (float32) of one reading: 8 MiB, about a product of the demo model."""

CHUNKS = 10
"""Arrays that a thread goes through, so that each reading comes from memory."""


@dataclass(frozen=True, slots=True)
class CpuProbe:
    """``handoff_us``: from a released lock to the thread that waited for it. ``slowdown``: time of a memory-bound
    reading beside another one, over its time alone (1 to 2).
    """

    handoff_us: float
    slowdown: float


def probe_cpu(repeats: int = 15) -> CpuProbe:
    """Measure this machine; about a second, and 160 MiB."""
    return CpuProbe(handoff_us(40 * repeats), corun_slowdown(repeats))


def low(times: list[float]) -> float:
    """The lower quartile: what a time is when nothing else gets in its way."""
    return float(np.quantile(times, 0.25))


def handoff_us(turns: int = 400) -> float:
    """One way of a ping-pong between two threads, in microseconds."""
    ping, pong = allocate_lock(), allocate_lock()
    ping.acquire()
    pong.acquire()

    def answer() -> None:
        for _ in range(turns):
            ping.acquire()
            pong.release()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    times = []
    for _ in range(turns):
        begun = time.perf_counter_ns()
        ping.release()
        pong.acquire()
        times.append((time.perf_counter_ns() - begun) / 2e3)
    thread.join()
    return low(times)


def corun_slowdown(repeats: int = 15) -> float:
    """Time of a reading while another thread does the same, over its time alone."""
    own, other = ([np.ones(CHUNK, np.float32) for _ in range(CHUNKS)] for _ in range(2))
    go, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=_read_while, args=(other, go, stop), daemon=True)
    thread.start()
    alone: list[float] = []
    together: list[float] = []
    for _ in range(repeats):
        go.clear()
        alone += _timed(own)
        go.set()
        together += _timed(own)
    stop.set()
    go.set()
    thread.join()
    return min(2.0, max(1.0, low(together) / low(alone)))


def _read_while(arrays: list[NDArray[np.float32]], go: threading.Event, stop: threading.Event) -> None:
    at = 0
    while not stop.is_set():
        go.wait()
        arrays[at % CHUNKS].max()
        at += 1


def _timed(arrays: list[NDArray[np.float32]]) -> list[float]:
    times = []
    for array in arrays:
        begun = time.perf_counter_ns()
        array.max()
        times.append(float(time.perf_counter_ns() - begun))
    return times[1:]
