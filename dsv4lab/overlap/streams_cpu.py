"""The CPU device: N worker threads are the hardware queues."""

from __future__ import annotations

import threading
import time
import weakref
from _thread import LockType, allocate_lock
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np
import torch

from dsv4lab.errors import EngineError
from dsv4lab.overlap.arena import Arena, Lane
from dsv4lab.overlap.compile import CompiledProgram
from dsv4lab.overlap.ops import OpFunction
from dsv4lab.overlap.run_record import RunRecord
from dsv4lab.overlap.streams import SerialStreams, traced
from dsv4lab.overlap.tracer import Tracer
from dsv4lab.queues.policies import QueuePool


@dataclass(frozen=True, slots=True)
class _Packet:
    """One op in a queue. ``waits`` are ops on other queues; ``signals`` says whether another queue waits for it."""

    index: int
    run: OpFunction
    lane: Lane
    waits: tuple[int, ...]
    signals: bool


@dataclass(slots=True)
class _Run:
    """State of one replay, shared by the queue threads. A signal is a held lock that its op releases."""

    signals: dict[int, LockType]
    head: list[int]
    start: list[int]
    end: list[int]
    done: SimpleQueue[int]
    failure: list[BaseException] = field(default_factory=list)


_Job = tuple[list[_Packet], _Run]


class QueueStreams:
    """Replays programs on ``hw_queues`` in-order queues, one thread each.

    Streams are bound to queues by ``policy`` when first seen and keep their queue. A packet whose events have not
    fired blocks its queue, as a barrier packet does, also for other streams that share the queue. Every queue thread
    runs torch ops with ``intra_op_threads`` threads.
    """

    def __init__(self, hw_queues: int, policy: str = "round_robin", intra_op_threads: int = 1) -> None:
        self.pool = QueuePool(hw_queues, policy)
        self.pool.acquire("main")
        self._intra_op_threads = intra_op_threads
        self._jobs: list[SimpleQueue[_Job | None]] = []
        self._threads: list[threading.Thread] = []
        self._packets: weakref.WeakKeyDictionary[CompiledProgram, list[list[_Packet]]] = weakref.WeakKeyDictionary()
        self._closed = False
        self.tracer: Tracer | None = None
        for i in range(hw_queues):
            jobs: SimpleQueue[_Job | None] = SimpleQueue()
            thread = threading.Thread(
                target=_serve_queue, args=(i, jobs, intra_op_threads), name=f"hw-queue-{i}", daemon=True
            )
            thread.start()
            self._jobs.append(jobs)
            self._threads.append(thread)

    def run(self, compiled: CompiledProgram, arena: Arena) -> RunRecord:
        """Replay ``compiled``: every queue gets its packets at once, as a graph launch does.

        Raises:
            EngineError: the streams are closed.
            Exception: what the first failing op raised; the packets behind it were skipped.

        """
        if self._closed:
            raise EngineError("these queue streams are closed")
        if self.tracer is not None:
            with self.tracer.run(compiled.program, graph=False):
                return self._replay(compiled, self._split(compiled, arena, traced(compiled, self.tracer)))
        packets = self._packets.get(compiled)
        if packets is None:
            packets = self._packets[compiled] = self._split(compiled, arena, compiled.run)
        return self._replay(compiled, packets)

    def _replay(self, compiled: CompiledProgram, packets: list[list[_Packet]]) -> RunRecord:
        n = len(compiled.program.ops)
        run = _Run({}, [0] * n, [0] * n, [0] * n, SimpleQueue())
        for queue in packets:
            for packet in queue:
                if packet.signals:
                    lock = allocate_lock()
                    lock.acquire()
                    run.signals[packet.index] = lock
        used = [i for i, queue in enumerate(packets) if queue]
        queued = time.perf_counter_ns()
        for i in used:
            self._jobs[i].put((packets[i], run))
        for _ in used:
            run.done.get()
        if run.failure:
            raise run.failure[0]
        queue_of = {s: self.pool.acquire(s) for s in compiled.program.streams}
        return RunRecord(
            compiled.program,
            queue_of,
            np.full(n, queued, np.int64),
            np.array(run.head, np.int64),
            np.array(run.start, np.int64),
            np.array(run.end, np.int64),
        )

    def close(self) -> None:
        """End the queue threads."""
        self._closed = True
        for jobs in self._jobs:
            jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _split(self, compiled: CompiledProgram, arena: Arena, functions: Sequence[OpFunction]) -> list[list[_Packet]]:
        ops = compiled.program.ops
        queue_of = {s: self.pool.acquire(s) for s in compiled.program.streams}
        lanes = {s: Lane(s, arena) for s in compiled.program.streams}
        crossing = [tuple(w for w in o.waits if queue_of[ops[w].stream] != queue_of[o.stream]) for o in ops]
        awaited = {w for waits in crossing for w in waits}
        packets: list[list[_Packet]] = [[] for _ in self._jobs]
        for op, run, waits in zip(ops, functions, crossing, strict=True):
            packets[queue_of[op.stream]].append(_Packet(op.index, run, lanes[op.stream], waits, op.index in awaited))
        return packets


def cpu_streams(
    kind: str, hw_queues: int, policy: str, intra_op_threads: int, tracer: Tracer | None = None
) -> QueueStreams | SerialStreams:
    """``queue`` or ``serial`` streams."""
    made: QueueStreams | SerialStreams
    if kind == "queue":
        made = QueueStreams(hw_queues, policy, intra_op_threads)
    else:
        torch.set_num_threads(intra_op_threads)
        made = SerialStreams()
    made.tracer = tracer
    return made


def _serve_queue(number: int, jobs: SimpleQueue[_Job | None], intra_op_threads: int) -> None:
    torch.set_num_threads(intra_op_threads)
    with torch.inference_mode():
        while (job := jobs.get()) is not None:
            packets, run = job
            for packet in packets:
                _execute(packet, run)
            run.done.put(number)
            del job, packets, run


def _execute(packet: _Packet, run: _Run) -> None:
    """Run one packet; on failure, and ever after in this replay, only signal, so that no queue waits for ever."""
    i = packet.index
    run.head[i] = time.perf_counter_ns()
    for w in packet.waits:
        with run.signals[w]:
            pass
    run.start[i] = time.perf_counter_ns()
    if not run.failure:
        try:
            packet.run(packet.lane)
        except BaseException as error:  # noqa: BLE001 - handed to the caller of run()
            run.failure.append(error)
    run.end[i] = time.perf_counter_ns()
    if packet.signals:
        run.signals[i].release()
