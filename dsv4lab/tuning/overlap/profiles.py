"""Steps under a profiler: a small trace, and the busy time of its streams."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dsv4lab.overlap.run_record import timeline_of
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.tuning.overlap.record import LaneBusy, Profile
from dsv4lab.tuning.overlap.stage import Stage, Step

STEPS, WARM = 6, 50
"""Steps under the profiler, one right behind the other, and steps before them, which raise the clock; on a GPU."""

CPU_STEPS = 2
SUFFIX = ".pt.trace.json.gz"
_BUSY = ("kernel", "gpu_memcpy", "gpu_memset")
_MTIME = 0  # equal traces are equal files


def trace_name(shape: str, plan: str, n: int) -> str:
    """``overlap-flash-tp8-cuda_moe-4.pt.trace.json.gz``."""
    return f"overlap-{shape}-{plan.replace('+', '_')}-{n}{SUFFIX}"


def profile(stage: Stage, plan: str, n: int, folder: Path | None) -> Profile:
    """Profile a few steps; with ``folder``, keep the trace there."""
    step = stage.step(n, plan)
    name = trace_name(stage.settings.shape, plan, n)
    if stage.gpu is not None and torch.cuda.is_available():
        steps, timeline = STEPS, _on_gpu(stage, step, None if folder is None else folder / name)
    else:
        stage.run(step)
        steps, timeline = CPU_STEPS, timeline_of([stage.run(step) for _ in range(CPU_STEPS)], meta={"plan": plan})
        if folder is not None:
            from dsv4lab.trace.export import export_kineto

            export_kineto(timeline, folder / name)
    return summed(timeline, plan, n, steps, None if folder is None else name)


def summed(timeline: Timeline, plan: str, n: int, steps: int, trace: str | None) -> Profile:
    """The busy table of ``timeline`` as it is kept."""
    busy = timeline.stream_busy()
    lanes = tuple(LaneBusy(s.stream, s.role, s.busy_ns, s.hidden_ns, s.events) for s in busy.streams)
    return Profile(plan, n, steps, busy.wall_ns, busy.sum_busy_ns, busy.union_busy_ns, lanes, trace)


def _on_gpu(stage: Stage, step: Step, path: Path | None) -> Timeline:
    """Replays right behind one another under torch's profiler."""
    assert stage.gpu is not None
    assert step.graph is not None
    profiler: Any = torch.profiler
    for _ in range(WARM):
        stage.run(step)
    with (
        torch.inference_mode(),
        profiler.profile(activities=list(profiler.supported_activities()), acc_events=True) as found,
    ):
        for _ in range(STEPS):
            stage.gpu.graphs.launch(step.graph)
        stage.gpu.streams.api.synchronize()
    with tempfile.TemporaryDirectory() as there:
        plain = Path(there) / "trace.json"
        found.export_chrome_trace(str(plain))
        document = cleaned(json.loads(plain.read_bytes()))
    if path is not None:
        path.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=_MTIME))
    return device_rows(document["traceEvents"])


def cleaned(document: Mapping[str, Any]) -> dict[str, Any]:
    """A trace of torch's profiler without the path that it was written to, and without processes that did nothing."""
    events = document["traceEvents"]
    used = {event["pid"] for event in events if event.get("ph") == "X"}
    kept = [event for event in events if event.get("ph") != "M" or event.get("pid") in used]
    rest = {name: value for name, value in document.items() if name not in ("traceName", "trace_id", "traceEvents")}
    return {**rest, "traceEvents": kept}


def device_rows(events: Sequence[Mapping[str, Any]]) -> Timeline:
    """The device's rows of a trace that torch's profiler has just written, by stream."""
    rows = [e for e in events if e.get("ph") == "X" and e.get("cat") in _BUSY]
    first = min((row["ts"] for row in rows), default=0)
    streams = {stream: at for at, stream in enumerate(dict.fromkeys(str(row["args"]["stream"]) for row in rows))}
    return Timeline.build(
        start_ns=[round((row["ts"] - first) * 1e3) for row in rows],
        dur_ns=[round(row["dur"] * 1e3) for row in rows],
        stream=[streams[str(row["args"]["stream"])] for row in rows],
        name=[0] * len(rows),
        names=("kernel",),
        streams=tuple(streams),
    )
