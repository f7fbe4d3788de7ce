"""The documented JSON of a simulation: busy table, queues with occupancy, lanes, critical path, values it leans on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dsv4lab.queues.sensitivity import Lean
from dsv4lab.queues.simulate import Simulated
from dsv4lab.queues.values import rows
from dsv4lab.timeline.occupancy import queue_depth
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.trace.analyse.critical import critical_path

LONGEST = 12


def simulated_json(run: Simulated, timeline: Timeline) -> dict[str, Any]:
    """What ``simulate --json`` says about one run, ``baseline_wall_ns``, ``gain`` and ``sensitivity`` left out."""
    out = timeline.stream_busy().to_json()
    depth = {d.queue: asdict(d) for d in queue_depth(timeline)}
    for queue in out["queues"]:
        queue["occupancy"] = {k: v for k, v in depth[queue["queue"]].items() if k != "queue"}
    on = run.machine
    return {
        **out,
        "simulated": True,
        "device": on.device.name,
        "runtime": on.runtime.name,
        "hw_queues": on.hw_queues,
        "plan": run.workload.label,
        "packets": len(run.workload),
        "elapsed_ns": run.elapsed_ns,
        "lanes": lanes(run),
        "critical_path": path_json(timeline),
        "taxed_dispatches": run.times.taxed,
        "blocked_ns": round(run.times.blocked_ns),
        "assumed": assumed(run),
        "notes": [*run.layout.notes, *caveats(run)],
    }


def lanes(run: Simulated) -> list[dict[str, Any]]:
    """Replay lanes: name, hardware queue, packets, and the first op on each."""
    first: dict[int, int] = {}
    count: dict[int, int] = {}
    for i, lane in enumerate(run.layout.lanes):
        first.setdefault(lane, i)
        count[lane] = count.get(lane, 0) + 1
    return [
        {
            "lane": name,
            "queue": f"q{run.layout.queue_of_lane[k]}",
            "packets": count.get(k, 0),
            "first_op": run.workload.names[first[k]] if k in first else None,
        }
        for k, name in enumerate(run.layout.lane_names)
    ]


def path_json(timeline: Timeline) -> dict[str, Any]:
    """The critical path by what it is made of, longest first."""
    path = critical_path(timeline)
    top = list(path.by("what").items())[:LONGEST]
    return {"wall_ns": path.wall_ns, "by_stream": path.by("stream"), "by_op": dict(top)}


def assumed(run: Simulated) -> list[dict[str, Any]]:
    """Values of device and runtime that nobody has measured, with their sources."""
    facts = [row for row in run.machine.runtime.facts() if row["status"] == "assumed"]
    return rows(run.machine.values, ("assumed",)) + facts


def caveats(run: Simulated) -> list[str]:
    """What a reader must know before acting on a figure."""
    notes = ["simulated, not measured"]
    if run.machine.device.name == "h200":
        notes.append("one measured number stands for what kernels on an H200 lose beside others (docs/queue-model.md)")
    if run.machine.device.name == "cpu":
        notes.append("the values of the CPU device are placeholders until calibrated; they predict nothing about a GPU")
    return notes


def leans_json(leans: Sequence[Lean]) -> list[dict[str, Any]]:
    """Rows of the documented ``sensitivity``."""
    return [lean.to_json() for lean in leans]
