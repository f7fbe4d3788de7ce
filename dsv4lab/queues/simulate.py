"""Simulate a workload on a machine: the result is a timeline like any other, marked as simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4lab.queues.costs import Machine
from dsv4lab.queues.events import Simulation, Times
from dsv4lab.queues.layout import Layout
from dsv4lab.queues.packets import Packets, lower
from dsv4lab.queues.place import place
from dsv4lab.queues.workload import Workload
from dsv4lab.timeline.program import MAIN
from dsv4lab.timeline.timeline import Kind, Timeline

KINDS = {"kernel": Kind.KERNEL, "collective": Kind.KERNEL, "copy": Kind.MEMCPY}


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """One run. Times are nanoseconds; ``elapsed_ns`` is the host's view: up to the last synchronised stream."""

    workload: Workload
    machine: Machine
    layout: Layout
    packets: Packets
    times: Times

    @property
    def wall_ns(self) -> int:
        """First start to last end."""
        if not self.times.start:
            return 0
        return round(max(self.times.end)) - round(min(self.times.start))

    @property
    def elapsed_ns(self) -> int:
        """From the host's first call to its return, stream by stream if the workload is synchronised."""
        streams = len(self.workload.lanes) if self.workload.synchronise else 0
        return round(max([*self.times.end, self.packets.host_ns]) + streams * self.machine["stream_sync_us"] * 1e3)

    def timeline(self) -> Timeline:
        """Kernel rows by stream and queue, and a wait row for each barrier that blocked."""
        return timeline_of(self)


def simulate(
    workload: Workload,
    machine: Machine,
    *,
    torch: bool = False,
    floors: Mapping[int, float] | None = None,
    layout: Layout | None = None,
) -> Simulated:
    """Run ``workload`` on ``machine``. Deterministic: there is no randomness anywhere.

    ``torch``: placement as in a PyTorch process. ``floors``: see :mod:`dsv4lab.queues.collectives`. ``layout``: one
    made before by :func:`place` for the same workload and machine rules, to spare the work.
    """
    found = place(workload, machine, torch=torch) if layout is None else layout
    packets = lower(workload, found, machine)
    times = Simulation(workload, packets, machine, found.mapped, floors or {}).run()
    return Simulated(workload, machine, found, packets, times)


def timeline_of(run: Simulated) -> Timeline:
    """See :meth:`Simulated.timeline`."""
    work = run.workload
    n = len(work)
    start, end = _ns(run.times.start), _ns(run.times.end)
    streams = {s: k for k, s in enumerate(work.lanes)}
    names: dict[str, int] = {}
    columns = {
        "name": np.fromiter((names.setdefault(x, len(names)) for x in work.names), np.int32, n),
        "stream": np.fromiter((streams[s] for s in work.streams), np.int32, n),
        "queue": np.array(run.packets.queue, np.int32),
        "layer": np.array(work.layers, np.int32),
        "step": np.array(work.steps, np.int32),
        "correlation": np.arange(n, dtype=np.int64),
        "queued_ns": np.minimum(_ns(run.packets.ready_ns), start),
    }
    head = np.minimum(_ns(run.times.head), start)
    gap = round(run.machine["gap_us"] * 1e3)
    blocked = np.fromiter((bool(w) for w in run.packets.waits), np.bool_, n)
    blocked &= (start - head) > gap
    wait = names.setdefault("barrier", len(names)) if blocked.any() else 0
    both: dict[str, Any] = {k: np.concatenate([v, v[blocked]]) for k, v in columns.items()}
    both["name"][n:] = wait
    kinds = np.fromiter((int(KINDS[k]) for k in work.kinds), np.int8, n)
    return Timeline.build(
        start_ns=np.concatenate([start, head[blocked]]),
        dur_ns=np.concatenate([end - start, np.maximum(0, start - gap - head)[blocked]]),
        kind=np.concatenate([kinds, np.full(int(blocked.sum()), Kind.WAIT, np.int8)]),
        names=tuple(names),
        streams=work.lanes,
        queues=tuple(f"q{k}" for k in range(run.layout.queues)),
        main_stream=MAIN if MAIN in streams else None,
        meta=_meta(run),
        **both,
    )


def _ns(values: Any) -> Any:
    return np.rint(np.asarray(values, np.float64)).astype(np.int64)


def _meta(run: Simulated) -> dict[str, Any]:
    return {
        "simulated": True,
        "platform": "simulated",
        "gpus": [f"simulated {run.machine.device.name}, {run.machine.runtime.name}"],
        "device": run.machine.device.name,
        "runtime": run.machine.runtime.name,
        "hw_queues": run.machine.hw_queues,
        "plan": run.workload.label,
        "notes": list(run.layout.notes),
    }
