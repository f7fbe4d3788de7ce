"""On a GPU: profiles through torch's profiler, kernels on the plan's streams and named by op, in replays as eagerly.

Figures for people are printed: run with ``-rP``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch

import dsv4lab as lab
from dsv4lab.engine.client import EngineClient
from dsv4lab.engine.results import Profile
from dsv4lab.timeline.timeline import UNKNOWN, Timeline
from dsv4lab.trace.api import load_trace

pytestmark = pytest.mark.gpu

PLAN, STEPS = "cuda+moe", 6
MOST_ALIKE = 0.9
"""Part of the kernels that must have an op. In replays two ops that nothing orders may launch the same kernel; in eager
runs an H200 had 24 of 1,584 outside of every op's range."""


def open_demo(**changes: Any) -> EngineClient:
    device = "hip" if torch.version.hip else "cuda"
    return lab.open("demo", device=device, plan=PLAN, max_running_requests=4, max_total_tokens=4096, **changes)


def profile(client: EngineClient, folder: Path, **how: Any) -> Profile:
    return client.profile(STEPS, concurrency=2, prompt_tokens=140, directory=folder, **how)


def label(timeline: Timeline, row: int) -> str:
    name = timeline.names[timeline.op[row]] if timeline.op[row] != UNKNOWN else "no op"
    return f"L{timeline.layer[row]}.{name}" if timeline.layer[row] >= 0 else name


def kernels(timeline: Timeline, step: int) -> list[int]:
    """Busy rows of ``step`` that have an op, in order of start."""
    rows = np.flatnonzero(timeline.busy_mask & (timeline.step == step) & (timeline.op != UNKNOWN))
    return [int(row) for row in rows[np.argsort(timeline.start_ns[rows], kind="stable")]]


def by_op(found: Profile, *, graphs: bool) -> Counter[str]:
    """Kernels of each op in the last step; all steps of a graph have the same."""
    timeline = found.timeline
    counts = [Counter(label(timeline, row) for row in kernels(timeline, step.step)) for step in found.steps]
    assert len(counts) == STEPS
    for step, count in zip(found.steps, counts, strict=True) if graphs else ():
        assert count == counts[-1], f"step {step.step} has other kernels: {(count - counts[-1], counts[-1] - count)}"
    return counts[-1]


def told(found: Profile) -> str:
    return f"{found.timeline.meta['capture']}; warnings {found.timeline.warnings}"


def check(found: Profile, *, graphs: bool) -> Counter[str]:
    """Every kernel of the steps has its op, on the stream that the program gives it."""
    timeline, program = found.timeline, found.program
    others = [w for w in found.warnings if "profiling changed" not in w and "fit several ops" not in w]
    assert not others, told(found)
    capture = timeline.meta["capture"]
    assert capture["named"] >= MOST_ALIKE * capture["rows"], told(found)
    assert timeline.meta["capture"]["runs"] == STEPS, told(found)
    assert bool(timeline.meta["capture"]["how"]) == graphs, told(found)
    assert timeline.main_stream == "main"
    counts = by_op(found, graphs=graphs)
    layers = {op.layer for op in program.ops if op.layer >= 0}
    for layer in layers:
        assert counts[f"L{layer}.attention"], f"no attention of layer {layer} in {counts}"
        assert counts[f"L{layer}.moe.experts"], f"no experts of layer {layer} in {counts}"
    streams = {(op.layer, op.name): op.stream for op in program.ops}
    for row in kernels(timeline, found.steps[-1].step):
        op = (int(timeline.layer[row]), timeline.names[timeline.op[row]])
        stream = timeline.streams[timeline.stream[row]]
        assert stream == streams[op], f"{label(timeline, row)} is on {stream}, the program says {streams[op]}"
    assert set(program.streams) <= set(timeline.streams), f"{timeline.streams} without some of {program.streams}"
    assert timeline.meta["manifest"]["settings"]["plan"] == PLAN
    return counts


def test_replays_show_the_kernels_that_eager_runs_show_op_by_op(tmp_path: Path) -> None:
    with open_demo(eager_fork=True, graphs=False) as client:
        eager = profile(client, tmp_path / "eager")
        eagerly = check(eager, graphs=False)
    with open_demo() as client:
        before = profile(client, tmp_path / "ops", capture="ops")
        found = profile(client, tmp_path / "graphs")
        after = profile(client, tmp_path / "ops", capture="ops")
    replayed = check(found, graphs=True)
    busy = found.timeline.stream_busy()
    print(f"graphs: {told(found)}\neager: {told(eager)}\nbusy: {busy}")
    us = [median(p.timeline.dur_ns.tolist()) / 1e3 for p in (before, after)]
    print(f"step on the device without the profiler: {us[0]:.1f} us before, {us[1]:.1f} us after; {found.cost}")
    print(f"kernels of replays against eager runs: {replayed - eagerly} more, {eagerly - replayed} less")
    assert set(replayed) <= set(eagerly), f"replays have ops that eager runs have not: {set(replayed) - set(eagerly)}"
    assert found.cost is not None, told(found)
    assert found.cost.unprofiled_steps >= 5, told(found)
    assert busy.hidden_ns > 0, f"nothing of the side streams is hidden: {busy}"


def test_the_file_reads_back_as_the_timeline_and_has_the_names(tmp_path: Path) -> None:
    with open_demo() as client:
        found = profile(client, tmp_path)
    assert found.path is not None
    assert [p.name for p in tmp_path.iterdir()] == [found.path.name]
    assert found.path.name.endswith(".pt.trace.json.gz")
    again = load_trace(found.path)
    for column in ("start_ns", "dur_ns", "stream", "op", "layer", "step", "name"):
        assert np.array_equal(getattr(again, column), getattr(found.timeline, column)), column
    assert again.meta["manifest"] == found.timeline.meta["manifest"]
    steps = {step.step for step in found.steps}
    assert steps <= set(again.step.tolist()), f"steps {steps}, in the file {set(again.step.tolist())}"
    assert any("GraphLaunch" in name for name in again.names), "no graph launch in the file"
