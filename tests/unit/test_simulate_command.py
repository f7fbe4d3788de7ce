"""``dsv4lab simulate`` and ``dsv4lab whatif``: documented keys, programs, errors."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.cli.main import main
from dsv4lab.trace.api import load_trace

STEP = "simulate --device mi355x --runtime rocm-7.2 --preset pro --tp 8 --concurrency 4 --speculative dspark --plan hip"


def printed(line: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*shlex.split(line), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def documented(repo_root: Path, row: str) -> set[str]:
    text = (repo_root / "README.md").read_text(encoding="utf-8")
    cell = re.search(rf"^\| `dsv4lab {row}.*?` \| (.+) \|$", text, flags=re.MULTILINE)
    assert cell is not None
    return set(re.findall(r"`([a-z_0-9]+)`", cell[1]))


def keys(found: dict[str, Any], *nested: str) -> set[str]:
    return set(found).union(*(row for name in nested for row in found[name]))


def test_a_step_has_the_documented_keys(repo_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(f"{STEP} --hw-queues 4", capsys)
    assert keys(found, "streams", "queues") == documented(repo_root, "simulate --device")
    assert found["simulated"] is True
    assert found["gain"] < 0.01
    assert (found["device"], found["runtime"], found["plan"], found["hw_queues"]) == ("mi355x", "rocm-7.2", "hip", 4)
    assert {row["status"] for row in found["assumed"]} == {"assumed"}
    assert sum(lane["packets"] for lane in found["lanes"]) == found["packets"]
    assert found["sensitivity"]
    assert {"name", "value", "source", "low", "high", "flips_at"} <= set(found["sensitivity"][0])


def test_ordering_edges_turn_the_answer_round(capsys: pytest.CaptureFixture[str]) -> None:
    line = STEP.replace("rocm-7.2", "rocm-10+ordering-edges") + " --no-sensitivity"
    assert printed(line, capsys)["gain"] > 0.03
    assert printed(f"{line} --set signal_device_us=15", capsys)["gain"] < 0


def test_a_switch_of_the_runtime_is_among_what_an_answer_leans_on(capsys: pytest.CaptureFixture[str]) -> None:
    found = {row["name"]: row for row in printed(STEP, capsys)["sensitivity"]}
    shared = found["rocm-7.2.graph_shared"]
    assert (shared["value"], shared["unit"], shared["flips_at"]) == (1.0, "0 or 1", None)
    assert shared["low"] < shared["high"] < 0  # apart or not, no win
    assert printed(f"{STEP} --graph-streams apart --no-sensitivity", capsys)["gain"] < -0.05
    stock = {row["name"]: row for row in printed(STEP.replace("rocm-7.2", "rocm-7.14"), capsys)["sensitivity"]}
    assert stock["poll_scope_pipe"]["flips_at"] == 1.0


def test_a_program_is_replayed_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "p.json", tmp_path / "p.json.gz"
    ops = [
        {"name": "a", "stream": "main", "duration_us": 5},
        {"name": "b", "stream": "side0", "after": ["a"], "bytes": 1e7, "workgroups": 64, "packet": "copy"},
        {"name": "c", "stream": "main", "after": [1], "flops": 1e9},
    ]
    file.write_text(json.dumps({"ops": ops}), encoding="utf-8")
    found = printed(f"simulate --program {file} --out {out}", capsys)
    assert found["gain"] is None
    assert found["packets"] == 3
    trace = load_trace(out, cache=False)
    assert abs(trace.stream_busy().wall_ns - found["wall_ns"]) <= 2
    assert sorted(trace.names[int(k)] for k in trace.name[trace.busy_mask]) == ["a", "b", "c"]


def test_a_sweep_has_the_documented_keys(repo_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lists = "--runtime rocm-7.14,rocm-10 --plan off,hip --hw-queues 2,4 --concurrency 1,4"
    found = printed(f"simulate sweep --preset tiny --isl 256 {lists}", capsys)
    assert keys(found, "rows") == documented(repo_root, "simulate sweep")
    assert len(found["rows"]) == 16
    assert found["sensitivity"]
    assert [row["concurrency_level"] for row in found["best"]] == [1, 4]
    assert all(row["delta_vs_off"] == 0 for row in found["rows"] if row["plan"] == "off")


@pytest.mark.parametrize(
    "line",
    [
        "simulate --preset tiny --device h200 --plan cuda",
        "simulate --preset tiny --device cpu --eager",
        "simulate sweep --preset tiny --plan off,hip --queue-policy dynamic2",
        "simulate --preset tiny --eager --runtime rocm-7.2 --queue-policy stream_id --barrier-elision --hw-queues 2",
        "simulate --preset flash --skew-us 20 --no-sensitivity --runtime rocm-10",
    ],
)
def test_text(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)) == 0
    out = capsys.readouterr().out
    assert "simulated, not measured" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("simulate --plan nope", "unknown overlap plan"),
        ("simulate --plan off,hip", "takes one plan"),
        ("simulate --hw-queues 2,4", "takes one value"),
        ("simulate --runtime rocm-9", "runtime 'rocm-9' is unknown"),
        ("simulate --device h200 --runtime rocm-10", "does not run rocm-10"),
        ("simulate --tp 3", "does not divide the 128 heads"),
        ("simulate --preset demo --speculative dspark", "has no DSpark drafter"),
        ("simulate --preset flash --speculative mtp", "has no serial draft layer"),
        ("simulate --set gap_us", "takes NAME=VALUE"),
        ("simulate --set colour=1", "no value 'colour'"),
        ("simulate --skew-us -1", "takes a number of 0 or more"),
        ("simulate --program nowhere.json", "nowhere.json"),
        ("whatif nowhere.json", "nowhere.json"),
    ],
)
def test_errors_are_one_line(line: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)) == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1


def test_whatif_has_the_documented_keys(repo_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "base.pt.trace.json"
    base = printed(f"{STEP.replace('--plan hip', '--plan off')} --no-sensitivity --out {out}", capsys)
    found = printed(f"whatif {out} --plan hip,off --hw-queues 4,8 --no-cache", capsys)
    assert keys(found, "rows") == documented(repo_root, "whatif")
    assert abs(found["baseline_wall_ns"] - base["wall_ns"]) <= 2
    assert [row["hw_queues"] for row in found["rows"]] == [4, 4, 8, 8]
    assert all(abs(row["residual"]) < 1e-3 for row in found["rows"])
    assert {"compressor.store", "attention"} <= set(found["recognised"])
    moved = [row["moved_ops"] for row in found["rows"]]
    assert moved[0] > 100
    assert moved[1] == 0


def test_whatif_moves_kernels_of_a_foreign_trace(repo_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = repo_root / "traces" / "rocm_mi300x_sglang_decode_hipgraph.pt.trace.json.gz"
    found = printed(f"whatif {trace} --no-cache --device mi300x", capsys)
    assert found["rows"][0]["moved_ops"] == 0
    assert any("--move" in text for text in found["warnings"])
    line = (
        f"whatif {trace} --no-cache --device mi300x --move '*store_kvcache*=side0' --join '*paged_attention_ll4mi_QKV*'"
    )
    assert printed(line, capsys)["rows"][0]["moved_ops"] == 36
    assert main(shlex.split(f"whatif {trace} --no-cache --move x=main")) == 2


def test_no_torch_is_loaded() -> None:
    code = (
        "import sys; from dsv4lab.cli.main import main; "
        "main(['simulate', '--preset', 'tiny', '--json']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
