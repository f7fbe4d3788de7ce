"""Profiles of a whole engine on the CPU device: torch's profiler as an explicit choice, files, the command."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import dsv4lab as lab
from dsv4lab.cli.main import main
from dsv4lab.cli.run_profile import profile_document
from dsv4lab.config.engine import EngineConfig
from dsv4lab.engine.profiling import How
from dsv4lab.engine.results import ProfilingCost
from dsv4lab.errors import UsageError
from dsv4lab.timeline.timeline import UNKNOWN, Kind
from dsv4lab.trace.api import load_trace


def test_torch_s_profiler_on_the_cpu_device_has_every_op_of_the_program(tmp_path: Path) -> None:
    with lab.open("tiny", plan="hip", hw_queues=3) as client:
        found = client.profile(3, concurrency=2, prompt_tokens=20, capture="torch", directory=tmp_path)
        plain = client.profile(3, concurrency=2, prompt_tokens=20)
    timeline = found.timeline
    work = timeline.kind == int(Kind.KERNEL)
    expected = Counter((op.name, op.layer, op.stream) for op in found.program.ops)
    for step in found.steps:
        rows = np.flatnonzero(work & (timeline.step == step.step)).tolist()
        ops = [
            (timeline.names[timeline.op[r]], int(timeline.layer[r]), timeline.streams[timeline.stream[r]]) for r in rows
        ]
        assert Counter(ops) == expected
    assert {op.label for op in found.program.ops} == {op.label for op in plain.program.ops}
    assert timeline.meta["manifest"]["settings"]["plan"] == "hip"
    assert set(timeline.meta["step_modes"].values()) == {"decode"}
    assert timeline.meta["capture"]["named"] == int(work.sum()) == 3 * len(found.program.ops)
    cost = found.cost
    assert cost is not None
    assert (cost.profiled_steps, cost.what) == (3, "decode of 2 tokens of 2 requests under plan hip")
    assert cost.unprofiled_steps >= 5
    assert cost.changed == (cost.text in found.warnings) == (cost.text in timeline.warnings)
    told = profile_document(found)
    assert set(told) == {"trace", "steps", "stream_busy", "cost", "warnings"}
    assert told["cost"]["unprofiled_us"] == cost.unprofiled_us
    assert found.path is not None
    assert [p.name for p in tmp_path.iterdir()] == [found.path.name]
    again = load_trace(found.path)
    assert len(again) == len(timeline)
    assert again.meta["manifest"] == timeline.meta["manifest"]
    assert (plain.path, plain.cost, plain.warnings) == (None, None, ())


def test_ops_go_into_a_file_too_and_requests_in_flight_are_profiled(tmp_path: Path) -> None:
    with lab.open("tiny") as client:
        client.start_load(2, prompt_tokens=8)
        found = client.profile(4, capture="torch", directory=tmp_path / "torch")
        ops = client.profile(4, capture="ops", directory=tmp_path / "ops")
        client.stop_load()
        recorded = client.record_while(lambda: client.load(1, 8, 4), capture="torch")
    assert [len(p.steps) for p in (found, ops)] == [4, 4]
    assert ops.path is not None
    trace = load_trace(ops.path)
    assert len(trace) == len(ops.timeline)
    assert trace.meta["manifest"] == ops.timeline.meta["manifest"]
    modes = recorded.timeline.meta["step_modes"]
    assert sorted(modes.values()) == ["decode", "decode", "decode", "prefill"]
    assert set(recorded.timeline.step.tolist()) - {UNKNOWN} == {int(step) for step in modes}


def test_what_records_is_checked_before_anything_runs() -> None:
    cpu, gpu = EngineConfig("tiny"), EngineConfig("demo", device="cuda", dtype="bfloat16")
    ranks = EngineConfig("demo", device="cuda", dtype="bfloat16", tp_size=2)
    assert not How.of(cpu, None).torch
    assert How.of(gpu, None).torch
    assert not How.of(gpu, "ops").torch
    assert How.of(ranks, None).torch
    groups = EngineConfig("demo", device="cuda", dtype="bfloat16", dp_size=2)
    assert How.of(groups, None).warnings == ("2 groups: every forward is one row; torch's profiler records one group",)
    with pytest.raises(UsageError, match="capture='torch' records one group, here are 2: capture='ops' records all"):
        How.of(groups, "torch")
    with pytest.raises(UsageError, match="capture is 'kineto': it takes torch or ops"):
        How.of(cpu, "kineto")  # type: ignore[arg-type]


def test_a_changed_step_time_is_said_with_both_times_and_the_threshold() -> None:
    cost = ProfilingCost("decode of 1 tokens", 973.6, 7, 900.0, 16)
    assert cost.changed
    assert cost.text == (
        "profiling changed the step: decode of 1 tokens takes 973.6 us profiled, 900.0 us not "
        "(+8.2%; from 5% on it is said; medians of 7 and 16 steps)"
    )
    assert not ProfilingCost("x", 940.0, 1, 900.0, 1).changed
    assert ProfilingCost("x", 800.0, 1, 900.0, 1).changed


def test_the_command_profiles_behind_its_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["run", "--preset", "tiny", "--prompt-tokens", "5", "--max-new-tokens", "3", "--profile", str(tmp_path)]
    assert main([*line, "--capture", "torch"]) == 0
    assert "Profile of 16 decode steps" in capsys.readouterr().out
    (path,) = tmp_path.iterdir()
    capture = load_trace(path).meta["capture"]
    assert capture["runs"] == capture["cost"]["profiled_steps"] == 16
    assert main([*line[:3], "--capture", "ops"]) == 2
    assert "--capture: it says how --profile DIR records" in capsys.readouterr().err
