"""Trials of servers in processes of their own: ours, and ones that are wrong on purpose."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.errors import UnavailableError, UsageError
from dsv4lab.load import live
from dsv4lab.load.outputs import Output, compare
from dsv4lab.load.process import ServerProcess, ServerSpec
from dsv4lab.load.spec import LoadSpec
from dsv4lab.load.trial import Outcome, TrialRecord, TrialSpec, run_trial
from dsv4lab.trace.api import load_trace
from tests.engine.conftest import ROOT, worker_path

WRONG = Path(__file__).with_name("wrong_server.py")
LOAD = LoadSpec(4, prompt_tokens=8, max_new_tokens=6, concurrency=2, seed=1)
Gone = Callable[[int], bool]


def wrong(how: str, **fields: Any) -> TrialSpec:
    command = shlex.join([sys.executable, str(WRONG)]) + " {port} {flags}"
    return TrialSpec(ServerSpec(command, (how,), **fields), LOAD, warmup=0)


def ours(*flags: str, profile_dir: Path | None = None) -> ServerSpec:
    command = shlex.join([sys.executable, "-m", "dsv4lab", "serve", "--preset", "tiny"]) + " --port {port}"
    environ = {"PYTHONPATH": worker_path(), "OMP_NUM_THREADS": "1"}
    where = () if profile_dir is None else ("--profile-dir", str(profile_dir))
    return ServerSpec(command, (*flags, *where), environ, profile_dir=profile_dir)


def test_our_server_from_launch_to_trace(tmp_path: Path) -> None:
    spec = TrialSpec(ours("--plan", "hip", profile_dir=tmp_path / "traces"), LOAD, profile_requests=2)
    record = run_trial(spec, tmp_path / "server.log")
    assert (record.outcome, record.why, record.model) == (Outcome.OK, None, "tiny")
    assert (record.stopped, record.exit_code) == ("stopped", 0)
    assert record.report is not None
    assert (record.report.completed, record.report.new_tokens) == (4, 24)
    assert [len(output.tokens) for output in record.outputs] == [16, 16]
    assert all(type(token) is int for output in record.outputs for token in output.tokens)
    assert record.busy is not None
    assert {stream["stream"] for stream in record.busy["streams"]} == {"main", "side0", "side1"}
    assert Path(record.trace or "").is_file()
    assert "serving tiny at http://127.0.0.1:" in (tmp_path / "server.log").read_text()
    json.dumps(record.to_json())


@pytest.mark.slow
def test_arms_of_our_server_answer_the_same(tmp_path: Path) -> None:
    arms = (("--plan", "off"), ("--plan", "cuda", "--hw-queues", "2"), ("--speculative", "mtp"))
    records = [run_trial(TrialSpec(ours(*flags), LOAD), tmp_path / f"{at}.log") for at, flags in enumerate(arms)]
    assert [record.outcome for record in records] == [Outcome.OK] * 3
    for record in records[1:]:
        found = compare(records[0].outputs, record.outputs)
        assert (found.identical, found.differing) == (True, 0)
    assert compare(records[0].outputs, records[1].outputs).largest_logprob_gap == 0.0


def test_a_trace_is_read_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the sleep that ends nor a size that stands still says so: the writer may be slow."""
    whole = (ROOT / "traces" / "rocm_mi300x_sglang_decode_hipgraph.pt.trace.json.gz").read_bytes()
    path, polls = tmp_path / "rank0.trace.json.gz", 0

    async def poll(_seconds: float) -> None:
        nonlocal polls
        polls += 1
        path.write_bytes(whole[: len(whole) // 2] if polls < 5 else whole)

    monkeypatch.setattr(live.asyncio, "sleep", poll)
    found = asyncio.run(live.read_new_trace(tmp_path, set()))
    assert (found.trace, found.files) == (path, (path,))
    assert (polls, found.busy.to_json()) == (6, load_trace(path, cache=False).stream_busy().to_json())


def test_a_server_that_hangs_at_the_outputs(tmp_path: Path) -> None:
    record = run_trial(replace(wrong("answers nothing"), silence_s=0.5), tmp_path / "log")
    assert (record.outcome, record.why) == (Outcome.HUNG, "nothing came for 0.5 s")


ENDS: dict[str, tuple[Outcome, str]] = {
    "dies": (Outcome.DIED_AT_START, "no such model"),
    "crashes": (Outcome.CRASHED, "a planted crash"),
    "breaks off": (Outcome.FAILED, "4 of 4 requests failed: the stream broke off"),
    "nonsense": (Outcome.FAILED, "no completion"),
}


@pytest.mark.parametrize("how", ENDS)
def test_what_goes_wrong_is_an_outcome(how: str, tmp_path: Path) -> None:
    outcome, says = ENDS[how]
    record = run_trial(wrong(how), tmp_path / "log")
    assert (record.outcome, record.report is None) == (outcome, how == "dies")
    assert says in (record.why or "")
    assert record.exit_code == {"dies": 4, "crashes": 3}.get(how, -15)
    assert record.stopped == ("ended" if how in ("dies", "crashes") else "stopped")


def test_a_server_that_hangs(tmp_path: Path) -> None:
    record = run_trial(replace(wrong("hangs"), silence_s=0.5, gate_prompts=0), tmp_path / "log")
    assert record.outcome is Outcome.HUNG
    assert "requests hung: nothing came for 0.5 s" in (record.why or "")


def test_a_server_that_is_never_healthy(tmp_path: Path) -> None:
    record = run_trial(wrong("never healthy", start_s=1.0), tmp_path / "log")
    assert (record.outcome, record.ready_s) == (Outcome.START_TIMED_OUT, None)
    assert "not healthy within 1 s; still running" in (record.why or "")


def test_a_server_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    record = run_trial(wrong("stays", stop_s=0.5), tmp_path / "log")
    assert (record.outcome, record.stopped, record.exit_code) == (Outcome.OK, "killed", -9)


def test_no_child_is_left(tmp_path: Path, gone: Gone) -> None:
    log = tmp_path / "log"
    assert run_trial(wrong("child"), log).outcome is Outcome.OK
    (child,) = re.findall(r"child (\d+)", log.read_text())
    assert gone(int(child))


def test_other_words_are_found(tmp_path: Path) -> None:
    records: list[TrialRecord] = [run_trial(wrong(how), tmp_path / how) for how in ("right", "other words")]
    assert [r.outcome for r in records] == [Outcome.OK, Outcome.OK]
    found = compare(records[0].outputs, records[1].outputs)
    assert (found.identical, found.prompts, found.differing) == (False, 2, 2)
    assert found.divergence == (0, 1, "b", "c")


def test_comparisons() -> None:
    one, two = Output("ab", (1, 2), (-1.0, -2.0)), Output("abc", (1, 2, 3), (-1.5, -2.0, -3.0))
    assert compare([one], [one]).largest_logprob_gap == 0.0
    longer = compare([one], [two])
    assert (longer.divergence, longer.largest_logprob_gap) == ((0, 2, None, 3), 0.5)
    assert compare([], []).identical
    with pytest.raises(ValueError, match="zip"):
        compare([one], [])


def test_templates() -> None:
    spec = ServerSpec("python -m srv --port {port} --host={host} {flags} --last", ("--a", "b c"))
    assert spec.words(7) == ["python", "-m", "srv", "--port", "7", "--host=127.0.0.1", "--a", "b c", "--last"]
    assert ServerSpec("srv {port}", ("--x",)).words(7) == ["srv", "7", "--x"]
    assert ServerSpec("sh -c 'exec srv {flags}'", ("--a", "b c")).words(7) == ["sh", "-c", "exec srv --a 'b c'"]
    for command, says in {
        "": "empty",
        "srv {prt}": "{prt} is unknown",
        "srv 'x": "quotation",
        "srv {": "command 'srv {'",
    }.items():
        with pytest.raises(UsageError, match=says):
            ServerSpec(command)
    with pytest.raises(UsageError, match="start_s is 0"):
        ServerSpec("srv", start_s=0)


def test_no_such_program(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="no-such-server: No such file"):
        ServerProcess.start(ServerSpec("no-such-server {port}"), tmp_path / "log")
    with pytest.raises(UsageError, match="profile_dir"):
        replace(wrong("right"), profile_requests=1)
