"""``dsv4lab trace``: the JSON contract, the exit codes, and names that try to write on the terminal."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dsv4lab.cli.main import main

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
