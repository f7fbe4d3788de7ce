"""A probe of the CPU device: what a handoff between two queue threads costs, and how far two of them slow each other.

Numpy and threads only, as the CPU device's queues are threads that wait on locks.
"""

from __future__ import annotations

import statistics
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

WEIGHTS_MIB = 16


@dataclass(frozen=True, slots=True)
class CpuProbe:
    """``handoff_us``: from a released lock to the thread that waited for it. ``slowdown``: time of a memory-bound
    product beside another one, over its time alone (1 to 2).
    """

    handoff_us: float
    slowdown: float


def probe_cpu(repeats: int = 15) -> CpuProbe:
    """Measure this machine; about half a second."""
    return CpuProbe(handoff_us(40 * repeats), corun_slowdown(repeats))


def handoff_us(turns: int = 400) -> float:
    """Median of one way of a ping-pong between two threads, in microseconds."""
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
    return statistics.median(times)


def corun_slowdown(repeats: int = 15) -> float:
    """Median time of a product while another thread does the same, over its median alone."""
    rows = WEIGHTS_MIB * (1 << 20) // 4 // 2048
    weights = [np.ones((rows, 2048), np.float32) for _ in range(2)]
    vector = np.ones(2048, np.float32)

    def work(which: int) -> Callable[[], None]:
        return partial(_product, weights[which], vector, np.empty(rows, np.float32))

    alone = statistics.median(_timed(work(0)) for _ in range(repeats))
    stop = threading.Event()
    other = threading.Thread(target=_busy, args=(work(1), stop), daemon=True)
    other.start()
    together = statistics.median(_timed(work(0)) for _ in range(repeats))
    stop.set()
    other.join()
    return min(2.0, max(1.0, together / alone))


def _product(weights: NDArray[np.float32], vector: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    np.dot(weights, vector, out=out)


def _busy(work: Callable[[], None], stop: threading.Event) -> None:
    while not stop.is_set():
        work()


def _timed(work: Callable[[], None]) -> float:
    begun = time.perf_counter_ns()
    work()
    return float(time.perf_counter_ns() - begun)
