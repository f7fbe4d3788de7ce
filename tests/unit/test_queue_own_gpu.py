"""The queue model against our own H200: gains of plans from traces of serial plans, nothing fitted to the others."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from dsv4lab.cli.main import main
from dsv4lab.errors import TraceError
from dsv4lab.overlap.compile import compile_program
from dsv4lab.overlap.ops import Op, fuse
from dsv4lab.overlap.plan import OFF, SIDE_GEMM, resolve_plan
from dsv4lab.predict.bench_check import BenchFolder, Checked, check
from dsv4lab.predict.corun import latency_load
from dsv4lab.predict.kernel_rows import asked, replays_of
from dsv4lab.predict.op_kernels import op_kernels
from dsv4lab.predict.replan import SPLITS, split_op
from dsv4lab.predict.replay_plan import PARTS, baseline, kinds_of, planned, replay_under
from dsv4lab.queues.costs import machine
from dsv4lab.timeline.program import ProgramOp, StreamProgram

RUNS = Path(__file__).parents[2] / "docs" / "measurements" / "h200-overlap"
FOLDERS = sorted(path.parent for path in RUNS.glob("*/MANIFEST.json"))
POINTS = 0.02
MISSES = {
    ("twelve", 1, "hip"): 0.022, ("twelve", 1, "cuda+moe"): 0.022, ("twelve", 1, "hip+moe"): 0.034,
    ("lanes-flash-tp8", 1, "hip"): 0.022,
    ("query-pro-tp8", 1, "side+moe"): 0.026, ("query-pro-tp8", 1, "side+query+moe"): 0.024,
    ("high-flash-tp8", 1, "hip"): 0.023, ("high-flash-tp8", 4, "cuda+moe"): 0.060,
    ("high-flash-tp8", 4, "side+moe"): 0.046, ("high-flash-tp8", 4, "side+query+moe"): 0.041,
    ("high-flash-tp8", 4, "side+query+moe+high"): 0.034,
    ("high-flash-tp8", 8, "cuda+moe"): 0.042, ("high-flash-tp8", 8, "side+moe"): 0.029,
    ("high-pro-tp8", 4, "cuda+moe"): 0.041, ("evening-flash", 1, "side+query+moe+high"): 0.040,
    ("closing-pro-tp8", 1, "side+moe"): 0.033, ("closing-pro-tp8", 1, "side+query+moe"): 0.037,
    ("closing-pro-tp8", 1, "side+query+moe+high"): 0.032,
    ("closing-pro-tp8", 4, "side"): 0.023, ("closing-pro-tp8", 4, "side+moe"): 0.024,
    ("closing-pro-tp8", 8, "cuda+moe"): 0.023, ("closing-pro-tp8", 8, "side+moe"): 0.024,
    ("night-flash-tp8", 1, "cuda+moe"): 0.024, ("night-flash-tp8", 4, "cuda+moe"): 0.037,
    ("night-flash-tp8", 4, "side+moe"): 0.025,
    ("midnight-flash", 32, "cuda+moe"): 0.021, ("midnight-flash", 32, "side+query+moe+high"): 0.021,
    ("midnight-flash-tp8", 1, "cuda+moe"): 0.024, ("midnight-flash-tp8", 1, "side+moe"): 0.021,
    ("midnight-flash-tp8", 1, "side+query+moe"): 0.024, ("midnight-flash-tp8", 1, "side+query+route"): 0.027,
    ("midnight-flash-tp8", 4, "cuda+moe"): 0.038, ("midnight-flash-tp8", 4, "side+moe"): 0.022,
    ("midnight-flash-tp8", 4, "keys+moe+high"): 0.026, ("midnight-flash-tp8", 8, "side+query+route"): 0.026,
    ("midnight-pro-tp8", 4, "cuda+moe"): 0.028, ("midnight-pro-tp8", 4, "side+moe"): 0.026,
    ("midnight-pro-tp8", 4, "side+query+moe+high"): 0.027, ("midnight-pro-tp8", 4, "keys+moe+high"): 0.026,
    ("midnight-pro-tp8", 8, "side+query+moe+high"): 0.031, ("midnight-pro-tp8", 8, "keys+moe+high"): 0.027,
    ("midnight-pro-tp8", 32, "side+query+moe+high"): 0.048, ("midnight-pro-tp8", 32, "keys+moe+high"): 0.046,
}  # fmt: skip
"""Rows beyond that, and how far they may be: docs/queue-model.md says what is known of them."""


class Rows(dict[str, list[Checked]]):
    """Folders are asked when a test needs them."""

    def __missing__(self, name: str) -> list[Checked]:
        self[name] = check(BenchFolder(RUNS / name), machine("h200"))
        return self[name]


@pytest.fixture(scope="module")
def rows() -> Rows:
    return Rows()


@pytest.mark.parametrize("folder", [folder.name for folder in FOLDERS])
def test_gains_are_within_two_points_and_right_in_sign(rows: Rows, folder: str) -> None:
    found = rows[folder]
    assert len(found) >= 3
    for row in found:
        assert abs(row.error) <= MISSES.get((folder, row.level, row.plan), POINTS), row
        assert row.predicted * row.measured > 0 or abs(row.measured) <= 0.01, row


@pytest.mark.parametrize("miss", MISSES)
def test_a_known_miss_is_one(rows: Rows, miss: tuple[str, int, str]) -> None:
    folder, level, plan = miss
    found = next(row for row in rows[folder] if (row.level, row.plan) == (level, plan))
    assert abs(found.error) > POINTS, "strike it from the list"


@pytest.mark.parametrize("folder", [folder.name for folder in FOLDERS])
def test_the_model_beats_no_change_and_perfect_hiding(rows: Rows, folder: str) -> None:
    found = rows[folder]
    mine = sum(abs(row.error) for row in found)
    assert mine < sum(abs(row.measured) for row in found)
    assert mine < sum(abs(row.perfect - row.measured) for row in found)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_files_are_those_of_the_manifest(folder: Path) -> None:
    files = json.loads((folder / "MANIFEST.json").read_text())["files"]
    assert {f["file"] for f in files} == {p.name for p in folder.iterdir()} - {"MANIFEST.json"}
    for f in files:
        assert hashlib.sha256((folder / f["file"]).read_bytes()).hexdigest() == f["sha256"]


def test_the_script_that_keeps_a_bench_makes_such_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("keep_bench", RUNS.parents[2] / "scripts" / "keep_bench.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.main([str(RUNS / "apart"), str(tmp_path / "again")]) == 0
    assert {p.name for p in (tmp_path / "again").iterdir()} == {p.name for p in (RUNS / "apart").iterdir()}
    text = capsys.readouterr().out
    assert "largest error" in text
    assert re.search(r"^\| again \| 1 \| 7\.6 \([+\N{MINUS SIGN}]\d\.\d\) \| 9\.4 ", text, re.MULTILINE)
    assert script.main([str(tmp_path), str(tmp_path / "none")]) == 1
    assert "no record overlap-SHAPE.json" in capsys.readouterr().err
    told = tmp_path / "told"
    for source, percent in ((RUNS / "apart", 25), (told, 50)):  # what a record tells itself counts
        assert script.main([str(source), str(told), "--carveout", f"k={percent}"]) == 0
        assert BenchFolder(told).carveouts == {"k": 25}
    with pytest.raises(SystemExit):
        script.main([str(tmp_path), str(tmp_path / "none"), "--carveout", "k=101"])
    assert "it takes KERNEL=PERCENT, 0 to 100" in capsys.readouterr().err


def test_shared_memory_that_kernels_asked_for_is_what_the_record_tells(tmp_path: Path) -> None:
    lanes = ("_gate_up_lanes_kernel", "_down_lanes_kernel")
    for name, percent in (("query-flash", 25), ("lanes-flash", 0)):
        folder = BenchFolder(RUNS / name)
        assert folder.carveouts == (dict.fromkeys(lanes, 25) if percent else {})
        step = folder.step("off", 4, machine("h200"))
        assert step is not None
        asked = {kernel.cost.prefers for own in step.kernels for kernel in own}
        assert asked == ({0.0, 0.25} if percent else {0.0})
        experts = next(i for i, op in enumerate(step.program.ops) if op.name == "moe.experts")
        assert {kernel.cost.prefers for kernel in step.kernels[experts]} == {percent / 100}
    record = {"levels": [], "settings": {}, "carveouts": {"k": 101}}
    (tmp_path / "overlap-flash.json").write_text(json.dumps(record))
    with pytest.raises(TraceError, match=r"carveouts of the record takes percent \(0 to 100\) by kernel"):
        _ = BenchFolder(tmp_path).carveouts


def test_functions_of_a_name_that_ask_for_different_shares_are_told_apart(tmp_path: Path) -> None:
    by_size: dict[str, Any] = {"k": {"8192": 25, "512": 100}, "whole": 50}
    assert asked(by_size, "k", 8192 + 1024) == 0.25
    assert asked(by_size, "k", 512 + 1024) == 1.0
    assert asked(by_size, "k", 16384 + 1024) == asked(by_size, "other", 1024) == 0.0
    assert asked(by_size, "whole", 99) == 0.5
    by_name: dict[str, float] = {"_few_dot_kernel": 25}  # only the shared expert's asked when records told no sizes
    assert [asked(by_name, "_few_dot_kernel", kib * 1024) for kib in (9, 17, 33)] == [0.25, 0.25, 0.0]
    assert asked({"_few_dot_kernel": 100}, "_few_dot_kernel", 33 * 1024) == 1.0
    record = {"levels": [], "settings": {}, "carveouts": by_size}
    (tmp_path / "overlap-flash.json").write_text(json.dumps(record))
    assert BenchFolder(tmp_path).carveouts == by_size
    for wrong in ({"k": {"8192": 101}}, {"k": {"many": 25}}):
        (tmp_path / "overlap-flash.json").write_text(json.dumps({**record, "carveouts": wrong}))
        with pytest.raises(TraceError, match="or by bytes of shared memory"):
            _ = BenchFolder(tmp_path).carveouts


@pytest.mark.parametrize(("folder", "level"), [("high-pro-tp8", 4), ("closing-pro-tp8", 1)])
def test_the_simulated_baseline_takes_what_the_traced_one_took(folder: str, level: int) -> None:
    """Kernels that wait for room in the trace wait in the simulation, and take less by themselves."""
    on = machine("h200")
    step = BenchFolder(RUNS / folder).step("off", level, on)
    assert step is not None
    base = baseline(step, on)
    raw = replay_under(step, OFF, on).wall_ns / 1e3
    serial = sum(kernel.lead_us + kernel.cost.us for own in step.kernels for kernel in own)
    assert abs(base.off_us / serial - 1) < 0.01
    assert abs(base.off_us - serial) < abs(raw - serial)
    assert base.off_us == pytest.approx(replay_under(base.settled, OFF, on).wall_ns / 1e3)
    moved = [k.cost.bandwidth * k.cost.us for s in (step, base.settled) for own in s.kernels for k in own]
    half = len(moved) // 2
    assert moved[half:] == pytest.approx(moved[:half], rel=0.05)


def test_the_latency_under_load_that_is_shipped_is_the_measured_one() -> None:
    on = machine("h200")
    data = json.loads((RUNS / "fused" / "corun.json").read_text())
    found = latency_load(data["rows"], on["bandwidth_gbps"] * on["roof_share"])
    assert found == pytest.approx(on["latency_load"], abs=0.005)


def test_what_a_cross_stream_edge_and_an_early_launch_take_is_measured_too() -> None:
    on = machine("h200")
    probe = json.loads((RUNS / "twelve" / "probe.json").read_text())
    assert probe["found"]["fork_join_us"] == pytest.approx(on["signal_device_us"] + on["dispatch_us"], abs=0.02)
    rows = replays_of(RUNS / "twelve" / "overlap-flash-tp8-unfused-1.pt.trace.json.gz").rows
    apart = [median(r[i + 1].start_us - r[i].start_us for r in rows) for i in range(len(rows[0]) - 1)]
    early = [at for i, at in enumerate(apart) if rows[0][i + 1].start_us < rows[0][i].end_us]
    assert min(early) == pytest.approx(on["early_us"], abs=0.1)  # the smallest kernels; others place more workgroups


@pytest.mark.parametrize(
    ("folder", "plan"),
    [("apart", plan) for plan in ("off", "hip", "cuda", "moe", "cuda+moe")] + [("query-flash", "side+query+moe")],
)
def test_a_plan_is_recorded_as_the_engine_records_it(folder: str, plan: str) -> None:
    step = BenchFolder(RUNS / folder).step("off", 1, machine("h200"))
    assert step is not None
    chosen = resolve_plan(plan)
    kinds = kinds_of(step.program)
    whole = [_op(op, kinds.get(op.layer, "")) for op in step.program.ops]
    compiled = compile_program(whole, chosen, "decode", 1, late_sides=True).program
    found = planned(step, chosen)
    ops: list[tuple[str, int, str]] = []
    first_row: list[int] = []
    for i, key in enumerate(zip(found.names, found.layers, found.streams, strict=True)):
        if not ops or ops[-1] != key:
            ops.append(key)
            first_row.append(i)
    assert ops == [(op.name, op.layer, op.stream) for op in compiled.ops]
    ends = [*(row - 1 for row in first_row[1:]), len(found) - 1]
    assert [found.waits[i] for i in first_row] == [tuple(ends[w] for w in op.waits) for op in compiled.ops]


@pytest.mark.parametrize("plan", ["hip", "cuda", "side"])
def test_parts_of_a_fused_op_go_where_the_engine_puts_them(plan: str) -> None:
    """A trace of ``unfused`` has the parts as ops of their own; the engine places them by the fused op's name too."""
    found = BenchFolder(RUNS / "twelve").step("unfused", 1, machine("h200"))
    assert found is not None
    parts = PARTS[SIDE_GEMM]
    ops: list[Op] = []
    for op in found.program.ops:
        here = [p for p in found.program.ops if p.layer == op.layer and p.name in parts]
        if op.name not in parts or len(here) == 1:
            ops.append(_op(op))
        elif op == here[0]:
            ops.append(fuse(SIDE_GEMM, lambda _: None, [_op(part) for part in here]))
    chosen = replace(resolve_plan(plan), split=(SIDE_GEMM,))
    compiled = compile_program(ops, chosen, "decode", 1, late_sides=True).program
    places = {(op.name, op.layer): op.stream for op in compiled.ops}
    mine = planned(found, chosen)
    assert {(n, la): s for n, la, s in zip(mine.names, mine.layers, mine.streams, strict=True)} == places


def test_what_a_kernel_did_ahead_it_does_behind_another_stream() -> None:
    """The shared expert's first product is launched early behind the router, and not where it begins a side stream."""
    step = BenchFolder(RUNS / "twelve").step("off", 1, machine("h200"))
    assert step is not None
    at = next(i for i, op in enumerate(step.program.ops) if op.name == "moe.shared")
    first = step.kernels[at][0]
    assert (first.early, first.ahead_us) == (True, machine("h200")["ahead_us"])
    off, moe = planned(step, resolve_plan("off")), planned(step, resolve_plan("moe"))
    here, there = (work.names.index("moe.shared") for work in (off, moe))
    assert (off.early[here], off.lead_us[here], off.costs[here]) == (True, 0.0, first.cost)
    assert (moe.early[there], moe.lead_us[there]) == (False, step.gap_us)
    assert moe.costs[there].us == pytest.approx(first.cost.us + first.ahead_us)
    moved = first.cost.bandwidth * first.cost.us
    assert moe.costs[there].bandwidth * moe.costs[there].us == pytest.approx(moved)


def _op(op: ProgramOp, kind: str = "") -> Op:
    parts = split_op(op, SPLITS[op.name]) if op.name in SPLITS else ()
    ops = [Op(p.name, lambda _: None, p.reads, p.writes, p.layer, kind) for p in (parts or (op,))]
    return fuse(op.name, lambda _: None, ops) if parts else ops[0]


def test_a_plan_that_takes_a_fused_op_apart_needs_a_trace_of_its_parts() -> None:
    fused = BenchFolder(RUNS / "fused").step("off", 1, machine("h200"))
    assert fused is not None
    assert SIDE_GEMM in {op.name for op in fused.program.ops}
    with pytest.raises(TraceError, match=rf"plan hip takes L2\.{SIDE_GEMM} apart.*unfused"):
        planned(fused, resolve_plan("hip"))
    assert set(planned(fused, resolve_plan("side")).streams) == {"main", "side0"}


def test_kernels_of_another_program_are_an_error_that_says_where() -> None:
    ops = [_program_op("attn_norm", 0), _program_op("qkv_a", 0), _program_op("q_norm", 0)]
    names = ["_rms_norm_kernel", "_norm_quant_kernel", "_block_fp8_gemm_kernel", "_rms_norm_kernel"]
    assert op_kernels(ops, names) == [range(1), range(1, 3), range(3, 4)]
    assert op_kernels(ops, [*names[:3], "unknown", names[3]]) == [range(1), range(1, 4), range(4, 5)]
    with pytest.raises(TraceError, match=r"op L0\.q_norm should begin at kernel 3, which is _swiglu_kernel"):
        op_kernels(ops, [*names[:3], "_swiglu_kernel"])
    with pytest.raises(TraceError, match="goes on behind the last op"):
        op_kernels(ops, [*names, "_swiglu_kernel"])
    with pytest.raises(TraceError, match=r"op L0\.new are not known"):
        op_kernels([_program_op("new", 0)], names)


def _program_op(name: str, layer: int) -> ProgramOp:
    return ProgramOp(0, name, layer, "main", (), (), (), ())


def test_files_without_graph_replays_are_refused(tmp_path: Path) -> None:
    gpu = {"name": "H200", "numSms": 132, "warpSize": 32, "regsPerMultiprocessor": 65536}
    gpu |= {"sharedMemPerMultiprocessor": 233472, "maxThreadsPerMultiprocessor": 2048}
    args = {"grid": [2, 3, 1], "block": [100, 1, 1], "registers per thread": 33, "shared memory": 512}

    def rows(correlations: list[int]) -> Path:
        events = [
            {"cat": "kernel", "name": f"k{i % 2}", "ts": 10 * i, "dur": 5, "args": {**args, "correlation": c}}
            for i, c in enumerate(correlations)
        ]
        path = tmp_path / "t.json.gz"
        path.write_bytes(gzip.compress(json.dumps({"deviceProperties": [gpu], "traceEvents": events}).encode()))
        return path

    found = replays_of(rows([1, 1, 2, 2]))
    assert [len(replay) for replay in found.rows] == [2, 2]
    assert (found.device, found.sms) == ("H200", 132)
    launch = found.rows[0][0]
    assert (launch.blocks, launch.end_us) == (6, 5.0)
    assert launch.shared == pytest.approx(1536 / 233472)
    assert launch.footprint == pytest.approx(4 * 1280 / 65536)  # four warps of 33 registers, 1280 with rounding
    for correlations, text in (([1, 2], "no graph replay"), ([1, 1, 1, 2, 2], "not of one serial graph")):
        with pytest.raises(TraceError, match=text):
            replays_of(rows(correlations))
    (tmp_path / "t.json.gz").write_text("{}")
    with pytest.raises(TraceError, match="does not describe its GPU"):
        replays_of(tmp_path / "t.json.gz")


def test_the_command_prints_measured_beside_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(RUNS / "apart"), "--bench", "--device", "h200", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(found) == {"device", "rows", "worst_error"}
    assert {row["plan"] for row in found["rows"]} == {"hip", "cuda", "moe", "cuda+moe"}
    assert main(["whatif", str(RUNS / "apart"), "--bench", "--device", "h200"]) == 0
    text = capsys.readouterr().out
    assert "cuda+moe" in text
    assert max(map(len, text.splitlines())) <= 80
    assert main(["whatif", str(RUNS), "--bench", "--device", "h200"]) != 0
    assert "one record overlap-SHAPE.json" in capsys.readouterr().err


def test_a_program_of_another_plan_is_no_baseline(tmp_path: Path) -> None:
    folder = BenchFolder(RUNS / "apart")
    data = json.loads(json.dumps(folder.programs["1"]["off"]))
    data["streams"] = ["main", "side0"]
    folder.__dict__["programs"] = {"1": {"off": data}}
    assert StreamProgram.from_json(data).streams == ("main", "side0")
    with pytest.raises(TraceError, match="must be traced under plan off"):
        folder.step("off", 1, machine("h200"))
