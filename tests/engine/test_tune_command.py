"""The contracts of ``dsv4lab run`` and ``dsv4lab tune``, on the real engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsv4lab.cli.main import main
from dsv4lab.timeline.timeline import Kind
from dsv4lab.trace.api import load_trace

SUMMARY = {
    "wall_ns",
    "union_busy_ns",
    "sum_busy_ns",
    "sum_dur_ns",
    "concurrency",
    "hidden_ns",
    "streams",
    "queues",
    "warnings",
}
RUN = {"ttft_ms", "tpot_ms", "concurrency_level", "plan", "hw_queues", "stream_busy"}
SMALL = ["--prompt-tokens", "40", "--max-new-tokens", "4"]
SWEEP = ["--preset", "tiny", *SMALL, "--repeats", "1", "--confirm", "2"]

SPREAD = {"name": "spread", "rules": [{"ops": "compressor.*", "stream": "side0"}]}


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, object]]:
    code = main([*argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_run_gives_the_documented_object(capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--concurrency", "2", "--prompt-tokens", "130", "--max-new-tokens", "5"]
    code, got = run_json(capsys, "run", "--preset", "tiny", "--seed", "3", *load, "--plan", "hip", "--hw-queues", "2")
    assert code == 0
    assert RUN | {"tokens"} <= set(got)
    assert [len(row) for row in got["tokens"]] == [5, 5]  # type: ignore[attr-defined]
    assert (got["plan"], got["hw_queues"], got["concurrency_level"]) == ("hip", 2, 2)
    assert got["ttft_ms"] > 0  # type: ignore[operator]
    assert got["tpot_ms"] > 0  # type: ignore[operator]
    busy = got["stream_busy"]
    assert isinstance(busy, dict)
    assert set(busy) == SUMMARY
    assert {stream["stream"] for stream in busy["streams"]} == {"main", "side0", "side1"}
    assert {queue["queue"] for queue in busy["queues"]} == {"q0", "q1"}


def test_run_takes_a_plan_from_a_file_and_queues_from_the_environment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_MAX_HW_QUEUES", "3")
    (tmp_path / "spread.json").write_text(json.dumps(SPREAD))
    code, got = run_json(capsys, "run", *SMALL, "--plan", str(tmp_path / "spread.json"))
    assert code == 0
    assert (got["plan"], got["hw_queues"]) == ("spread", 3)


def test_run_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "tiny: plan off, hardware queues 4, concurrency level 1" in out
    assert "request 0: 4 new tokens:" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("argv", "texts"),
    [
        (["run", "--preset", "huge"], ["huge", "tiny, demo, flash, pro"]),
        (["run", "--plan", "nowhere"], ["nowhere", "off, hip, cuda"]),
        (["run", "--plan", "gone.json"], ["gone.json", "No such file"]),
        (["run", "--hw-queues", "0"], ["--hw-queues", "0", "at least 1"]),
        (["run", "--hw-queues", "99"], ["hw_queues", "99", "1 to 32"]),
        (["run", "--concurrency", "x"], ["--concurrency", "'x'", "integers of at least 1"]),
        (["run", "--prompt-tokens", "99999"], ["16384"]),
        (["tune", "--preset", "tiny", "--hw-queues", "1,,2"], ["--hw-queues", "1,,2"]),
        (["tune", "--preset", "tiny", "--plans", "off,none"], ["none", "off, hip, cuda"]),
        (["tune", "--preset", "tiny", "--plans", "off,hip,hip"], ["hip more than once"]),
        (["tune", "--preset", "tiny", "--max-new-tokens", "1"], ["--max-new-tokens", "at least 2"]),
        (["tune", "--resume"], ["--resume", "--out DIR"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    argv: list[str],
    texts: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.strip().splitlines()
    assert line.startswith("dsv4lab: error: ")
    assert all(text in line for text in texts), line
    assert list(tmp_path.iterdir()) == []


def test_malformed_environment_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_MAX_HW_QUEUES", "abc")
    for command in ("run", "tune"):
        assert main([command, "--preset", "tiny"]) == 2
        assert "GPU_MAX_HW_QUEUES='abc'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real session: 3 plans (one of them a file) × 2 queue counts × 2 levels."""
    folder = tmp_path_factory.mktemp("session")
    (folder / "spread.json").write_text(json.dumps(SPREAD))
    plans = f"off,hip,{folder / 'spread.json'}"
    out = folder / "out"
    argv = ["tune", *SWEEP, "--plans", plans, "--hw-queues", "1,2", "--concurrency", "1,2", "--out", str(out), "--json"]
    assert main(argv) == 0
    return out


def test_tune_gives_the_documented_object(swept: Path) -> None:
    got = json.loads((swept / "result.json").read_text())
    assert got["identical"] is True
    assert {(row["plan"], row["hw_queues"], row["concurrency_level"]) for row in got["rows"]} == {
        (plan, queues, level) for plan in ("off", "hip", "spread") for queues in (1, 2) for level in (1, 2)
    }
    assert len(got["rows"]) == 12
    for row in [*got["rows"], *got["controls"]]:
        assert set(row) >= RUN
        assert "tokens" not in row
        assert set(row["stream_busy"]) == SUMMARY
        assert row["stream_busy"]["union_busy_ns"] > 0
    assert [(row["plan"], row["control"]) for row in got["controls"]] == [("off", True)] * 2
    assert got["best"]["plan"] == "off", "two pairs are too few to recommend anything else"
    assert got["best"]["verdict"] == "undecided"


def test_overlap_shows_where_there_are_queues_for_it(swept: Path) -> None:
    rows = {
        (row["plan"], row["hw_queues"], row["concurrency_level"]): row["stream_busy"]
        for row in json.loads((swept / "result.json").read_text())["rows"]
    }
    assert rows["off", 2, 2]["hidden_ns"] == 0
    assert rows["hip", 1, 2]["hidden_ns"] == 0, "streams of one queue never run at once"
    assert {queue["queue"] for queue in rows["hip", 2, 2]["queues"]} == {"q0", "q1"}


def test_the_traces_are_whole_decode_steps_of_both_arms(swept: Path) -> None:
    traces = sorted(swept.glob("*.pt.trace.json.gz"))
    assert len(traces) == 2
    for path in traces:
        timeline = load_trace(path)
        assert len(set(timeline.step[timeline.kind == Kind.KERNEL].tolist())) == 12
        assert timeline.stream_busy().main_busy_ns > 0


def test_the_report_stands_alone(swept: Path) -> None:
    page = (swept / "report.html").read_text()
    assert page.count("<h2>") == 8
    assert "dsv4lab run --preset tiny --concurrency 2 --plan off --hw-queues 1" in page
    assert "<script src" not in page
    assert "<link" not in page.partition("<script>")[0]


def test_a_folder_is_used_once(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (swept / "records.jsonl").read_bytes()
    assert main(["tune", *SWEEP, "--out", str(swept)]) == 2
    assert "already holds a session; use --resume" in capsys.readouterr().err
    assert main(["tune", *SWEEP, "--out", str(swept), "--resume"]) == 2
    assert "cannot be resumed" in capsys.readouterr().err
    assert (swept / "records.jsonl").read_bytes() == before


def test_resuming_a_finished_session_prints_its_answer(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plans = f"off,hip,{swept.parent / 'spread.json'}"
    argv = ["tune", *SWEEP, "--plans", plans, "--hw-queues", "1,2", "--concurrency", "1,2", "--out", str(swept)]
    assert main([*argv, "--resume"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80 or "report: " in out
    for text in ("Sweep of tiny", "12 decode steps of 2 requests", "bit-identical", "Use off", "nothing about a GPU"):
        assert text in " ".join(out.split())
