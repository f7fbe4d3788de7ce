"""``dsv4lab trace``: the JSON contract, the exit codes, and names that try to write on the terminal."""

from __future__ import annotations

import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.cli.main import main
from tools.gen_trace import Generator

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "traces/cuda_5streams_128ranks_rank0.pt.trace.json.gz"
WANT = json.loads((ROOT / "tests/golden/trace_expected.json").read_text())[TRACE.name]


def test_summary_json_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "summary", str(TRACE), "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert {
        "wall_ns",
        "union_busy_ns",
        "sum_busy_ns",
        "sum_dur_ns",
        "concurrency",
        "hidden_ns",
        "streams",
        "queues",
        "warnings",
    } <= set(out)
    assert (out["wall_ns"], out["union_busy_ns"]) == (WANT["gpu"]["span_ns"], WANT["gpu"]["union_ns"])
    assert {s["stream"]: s["busy_ns"] for s in out["streams"]} == {
        str(s["stream"]): s["union_ns"] for s in WANT["streams"]
    }
    assert all({"stream", "queue", "role", "busy_ns", "events"} <= set(s) for s in out["streams"])
    assert [s["role"] for s in out["streams"]] == ["main"] + ["side"] * 4


def test_main_stream_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "summary", str(TRACE), "--main", "7", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert [s["stream"] for s in out["streams"] if s["role"] == "main"] == ["7"]
    assert main(["trace", "summary", str(TRACE), "--main", "99"]) == 2
    assert "main stream '99' is not in the timeline" in capsys.readouterr().err


def test_the_table_fits_a_narrow_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["trace", "summary", str(TRACE)]) == 0
    out = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    assert "concurrency" in out


def test_a_truncated_trace_prints_what_is_whole_and_returns_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut.json"
    whole = gzip.decompress(TRACE.read_bytes())
    path.write_bytes(whole[: len(whole) * 3 // 4])
    assert main(["trace", "summary", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    out = json.loads(captured.out)
    assert out["load_report"]["truncated"]
    assert out["load_report"]["events"] > 3000
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1
    assert str(path) in lines[0]


@pytest.mark.parametrize("content", ["", "not a trace", '{"traceEvents": [{"ph": "X", "na'])
def test_a_hopeless_file_is_one_line_and_2(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    assert main(["trace", "summary", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert str(path) in captured.err


def test_names_cannot_write_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "evil.json"
    evil = "\x1b]0;\x07[b]\u202e"
    event = {"ph": "X", "cat": "kernel", "name": evil, "pid": 0, "tid": 0, "ts": 1, "dur": 2, "args": {"stream": evil}}
    path.write_text(json.dumps({"traceEvents": [event]}))
    assert main(["trace", "summary", str(path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "[b]" in out


def test_json_holds_no_terminal_sequence_and_any_file_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff\x9b.json"))
    evil = "\x9b31m\u202e\x1b]0;x\x07é"
    event = {"ph": "X", "cat": "kernel", "name": evil, "pid": 0, "tid": 0, "ts": 1, "dur": 2, "args": {"stream": evil}}
    path.write_text(json.dumps({"traceEvents": [event]}))
    assert main(["trace", "ops", str(path), "--json"]) == 0
    ops = capsys.readouterr().out
    assert main(["trace", "summary", str(path), "--json"]) == 0
    summary = capsys.readouterr().out
    for text in (ops, summary):
        assert not set(text) & set("\x9b\u202e\x1b\x07")
        text.encode()
    assert json.loads(ops)["rows"][0]["key"] == evil
    assert json.loads(summary)["load_report"]["file"] == path.name
    assert main(["trace", "summary", str(path)]) == 0
    capsys.readouterr().out.encode()


def test_a_fork_can_be_judged_by_the_streams_of_its_plan(capsys: pytest.CaptureFixture[str]) -> None:
    fork = run_json(capsys, "summary", TRACE, "--expect", "7,side0")["fork"]
    assert fork["missing"] == ["side0"]


OTHER = ROOT / "traces/cuda_5streams_128ranks_rank1.pt.trace.json.gz"
CSV = ROOT / "traces/rocm_rocprofv3_4queues_kernel_trace.csv"


def run_json(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["trace", *map(str, words), "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert isinstance(out, dict)
    return out


def test_summary_tells_queues_ranks_steps_and_the_load_report(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_json(capsys, "summary", CSV, "--no-cache")
    assert out["streams"] == []
    assert any("no streams" in warning for warning in out["warnings"])
    assert {q["queue"] for q in out["queues"]} == {"1", "2", "3", "4"}
    assert set(out["queues"][0]["occupancy"]) == {"mean_running", "mean_waiting", "most_waiting"}
    assert sum(q["occupancy"]["mean_running"] for q in out["queues"]) == pytest.approx(
        out["sum_dur_ns"] / out["wall_ns"]
    )
    out = run_json(capsys, "summary", TRACE, OTHER)
    assert [r["rank"] for r in out["ranks"]] == [0, 1]
    assert out["ranks"][0]["union_busy_ns"] == WANT["gpu"]["union_ns"]
    assert [s["step"] for s in out["steps"]] == [551, 552, 551, 552]
    assert out["load_report"]["rows"] == 1204 + 1154
    assert out["arrivals"]["collectives"] == 10
    assert sum(out["arrivals"]["last_rank"].values()) == 10
    assert out["clocks"]["1"]["subtracted_ns"] == 0
    assert out["fork"]["verdict"] == "partly hidden"
    assert out["exposure"]["wall_ns"] == out["wall_ns"]


GRAPH = ROOT / "traces/rocm_mi300x_sglang_decode_hipgraph.pt.trace.json.gz"


def test_summary_tells_graph_replays_and_launches(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_json(capsys, "summary", GRAPH)
    (graph,) = out["graphs"]
    assert (graph["call"], graph["replays"], graph["rows"], graph["lanes"]) == ("hipGraphLaunch", 1, 544, 1)
    assert out["launches"]["verdict"] in ("launch-bound", "balanced", "device-bound")
    (replay,) = run_json(capsys, "steps", GRAPH)["replays"]
    assert (replay["rows"], replay["wall_ns"]) == (544, round(graph["mean_wall_ns"]))


def test_overview_tables_fit_80_columns_and_say_what_there_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["trace", "summary", str(TRACE), str(OTHER)]) == 0
    ranks = capsys.readouterr().out
    assert main(["trace", "summary", str(GRAPH)]) == 0
    graphs = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in (ranks + graphs).splitlines()) <= 80
    for title in ("the wall belongs to", "clock ahead", "median skew", "fork", "launches"):
        assert title in ranks
    assert "graph replays" not in ranks
    assert "hipGraphLaunch" in graphs


def test_a_roofline_of_rows_whose_cost_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = tmp_path / "costs.json"
    name = max(run_json(capsys, "ops", GRAPH)["rows"], key=lambda row: row["rows"])["key"]
    costs.write_text(json.dumps({name: {"flops": 2e6, "bytes": 1e6}, "no such row": {"flops": 1, "bytes": 1}}))
    words = ("ops", GRAPH, "--costs", costs, "--peak-flops", "1e15", "--peak-bytes", "5e12")
    (point,) = run_json(capsys, *words)["roofline"]
    assert (point["name"], point["bound"], point["intensity"]) == (name, "memory", 2.0)
    assert point["bytes_rate"] == pytest.approx(1e6 / point["mean_ns"] * 1e9)
    assert main(["trace", *map(str, words)]) == 0
    assert "of roof" in capsys.readouterr().out
    for wrong in ("[]", '{"k": {"flops": "x"}}', "{"):
        costs.write_text(wrong)
        assert main(["trace", *map(str, words)]) == 2
        assert "--costs" in capsys.readouterr().err


def test_every_action_has_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "steps", TRACE)["source"] == "ProfilerStep"
    rows = run_json(capsys, "ops", TRACE, "--by", "category")["rows"]
    assert rows[0]["key"] == "communication"
    idle = run_json(capsys, "idle", TRACE, "--top", "3")
    assert (
        idle["idle_ns"] == WANT["gpu"]["span_ns"] - WANT["gpu"]["union_ns"] == sum(c["idle_ns"] for c in idle["causes"])
    )
    assert len(idle["largest"]) == 3
    path = run_json(capsys, "critical-path", TRACE)
    assert path["wall_ns"] == sum(path["by_category"].values()) == WANT["gpu"]["span_ns"]
    (found,) = run_json(capsys, "compare", TRACE, OTHER)["comparisons"]
    assert sum(bar["delta_ns"] for bar in found["waterfall"]) == found["b"]["wall_ns"] - found["a"]["wall_ns"]
    assert run_json(capsys, "validate", TRACE)["ok"] is True


@pytest.mark.parametrize("action", ["summary", "steps", "ops", "idle", "critical-path", "validate"])
def test_tables_fit_80_columns(
    action: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["trace", action, str(TRACE)]) == 0
    assert main(["trace", "compare", str(TRACE), str(OTHER)]) == 0
    assert max(len(line.rstrip()) for line in capsys.readouterr().out.splitlines()) <= 80


def test_validate_says_what_is_damaged_by_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nan.json"
    buffer = io.BytesIO()
    Generator(faults=["nan"]).write(buffer)
    path.write_bytes(buffer.getvalue())
    assert main(["trace", "validate", str(path), "--json"]) == 1
    out = json.loads(capsys.readouterr().out)
    assert (out["ok"], out["load_report"]["repairs"]) == (False, {"non-finite number": 7})


def test_clip_overlong_is_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "late.json"
    buffer = io.BytesIO()
    Generator(faults=["overflow"]).write(buffer)
    path.write_bytes(buffer.getvalue())
    as_is = run_json(capsys, "summary", path)
    clipped = run_json(capsys, "summary", path, "--clip-overlong")
    assert clipped["sum_dur_ns"] < as_is["sum_dur_ns"] - 3_000_000


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["compare", str(TRACE)], "at least two traces"),
        (["convert", str(TRACE), "--out", "x.bin"], "unknown kind of file"),
        (["ops", str(TRACE), "--by", "color"], "invalid choice"),
        (["summary"], "required"),
        (["ops", str(TRACE), "--peak-flops", "1e15"], "takes --costs FILE, --peak-flops and --peak-bytes together"),
        (["summary", "no/such/*.json"], "no file matches"),
    ],
)
def test_misuse_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", *words]) == 2
    err = capsys.readouterr().err.strip()
    assert says in err
    assert "\n" not in err


def test_convert_by_the_name_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.pt.trace.json.gz", "a.json", "a.pftrace", "a.csv", "a.html", "a.parquet"):
        out = run_json(capsys, "convert", TRACE, "--out", tmp_path / name)
        assert Path(out["written"]).stat().st_size > 10_000
    assert run_json(capsys, "summary", tmp_path / "a.json")["union_busy_ns"] == WANT["gpu"]["union_ns"]


def test_tensorboard_gets_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run_json(capsys, "tensorboard", TRACE, "--logdir", tmp_path, "--write-only")
    assert Path(out["written"]).parent == Path(out["run"])
    assert Path(out["written"]).name.startswith("cuda_5streams_128ranks_rank0.")
    assert out["command"][1:3] == ["-m", "tensorboard.main"]


def test_names_cannot_become_markup_in_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "evil.json"
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)><a href='javascript:alert(3)'>x</a>"
    args = {"stream": evil, "hsa_queue": evil}
    event = {"ph": "X", "cat": "kernel", "name": evil, "pid": 0, "tid": 0, "ts": 1, "dur": 2, "args": args}
    path.write_text(json.dumps({"traceEvents": [event]}))
    page = Path(run_json(capsys, "convert", path, "--out", tmp_path / "page.html")["written"]).read_text()
    for bad in ("<script>alert", "<img src=x", "<a href='javascript", "\\u003cimg src=x", "\\u003ca href"):
        assert bad not in page
