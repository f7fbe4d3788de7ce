"""Steps under a profiler: a small trace, and the busy time of its streams."""

from __future__ import annotations

import gzip
import importlib.util
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
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

BY_LANE = "streams are the lanes of the graph's replay: msgspec is not installed, which finds the op of each kernel"

SUFFIX = ".pt.trace.json.gz"
_BUSY = ("kernel", "gpu_memcpy", "gpu_memset")
_MTIME = 0  # equal traces are equal files


def trace_name(shape: str, plan: str, n: int) -> str:
    """``overlap-flash-tp8-cuda_moe-4.pt.trace.json.gz``."""
    return f"overlap-{shape}-{plan.replace('+', '_')}-{n}{SUFFIX}"


def profile(stage: Stage, plan: str, n: int, folder: Path | None) -> Profile:
    """Profile a few steps; with ``folder``, keep the trace there.

    Raises :class:`TraceError` where torch's profiler tells of no kernel, :class:`UnavailableError` where it cannot run.
    """
    step = stage.step(n, plan)
    name = trace_name(stage.settings.shape, plan, n)
    kept = None if folder is None else folder / name
    if stage.gpu is None or not torch.cuda.is_available():
        return summed(_on_cpu(stage, step, plan, kept), plan, n, CPU_STEPS, kept)
    for _ in range(WARM):
        stage.run(step)
    if importlib.util.find_spec("msgspec") is None:
        return summed(_by_lane(stage, step, kept), plan, n, STEPS, kept, (BY_LANE,))
    timeline, problems = _by_op(stage, step, kept)
    return summed(timeline, plan, n, STEPS, kept, problems)


def summed(
    timeline: Timeline, plan: str, n: int, steps: int, trace: Path | None, notes: tuple[str, ...] = ()
) -> Profile:
    """The busy table of ``timeline`` as it is kept."""
    busy = timeline.stream_busy()
    lanes = tuple(LaneBusy(s.stream, s.role, s.busy_ns, s.hidden_ns, s.events) for s in busy.streams)
    name = None if trace is None else trace.name
    return Profile(plan, n, steps, busy.wall_ns, busy.sum_busy_ns, busy.union_busy_ns, lanes, name, notes)


def _on_cpu(stage: Stage, step: Step, plan: str, path: Path | None) -> Timeline:
    stage.run(step)
    timeline = timeline_of([stage.run(step) for _ in range(CPU_STEPS)], meta={"plan": plan})
    if path is not None:
        from dsv4lab.trace.export import export_kineto

        export_kineto(timeline, path)
    return timeline


def _by_op(stage: Stage, step: Step, path: Path | None) -> tuple[Timeline, tuple[str, ...]]:
    """Replays with their kernels on the plan's streams, named by op; and what has no op, and why."""
    from dsv4lab.trace.capture import TorchCapture
    from dsv4lab.trace.load import load_any
    from dsv4lab.trace.named import write_named

    capture = TorchCapture(device=True)
    stage.runner.trace_with(capture)
    try:
        capture.start()
        try:
            _replay(stage, step, capture.belongs_to)
        finally:
            capture.stop()
    finally:
        stage.runner.trace_with(None)
    with tempfile.TemporaryDirectory() as there:
        raw, named = Path(there) / "raw.json", path or Path(there) / "named.pt.trace.json.gz"
        capture.export(raw)
        found = write_named(raw, named, capture.programs, capture.runs, {}, platform=capture.platform)
        return load_any(named, cache=False)[0], found.problems


def _by_lane(stage: Stage, step: Step, path: Path | None) -> Timeline:
    """Replays as torch's profiler shows them: a graph's lanes, and kernels without ops."""
    profiler: Any = torch.profiler
    options = {"activities": list(profiler.supported_activities()), "acc_events": True}
    with profiler.profile(**options) as found:
        _replay(stage, step)
    with tempfile.TemporaryDirectory() as there:
        plain = Path(there) / "trace.json"
        found.export_chrome_trace(str(plain))
        document = cleaned(json.loads(plain.read_bytes()))
    if path is not None:
        path.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=_MTIME))
    return device_rows(document["traceEvents"])


def _replay(stage: Stage, step: Step, issued: Callable[[int], None] = lambda at: None) -> None:
    """Steps right behind one another, ``issued`` told of each; the host waits for the last one only."""
    assert stage.gpu is not None
    assert step.graph is not None
    with torch.inference_mode():
        for at in range(STEPS):
            stage.gpu.graphs.launch(step.graph)
            issued(at)
        stage.gpu.streams.api.synchronize()


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
