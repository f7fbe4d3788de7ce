"""``dsv4lab tune --server`` at the command line."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from dsv4lab.cli.knob_args import env_knobs, flag_knobs
from dsv4lab.cli.main import command_parser, load_command, main
from dsv4lab.tuning.knobs import PROCESS, Knob

WRONG = Path(__file__).with_name("wrong_server.py")
SERVER = shlex.join([sys.executable, str(WRONG)]) + " {port} right {flags}"
LOAD = [
    "--concurrency",
    "2",
    "--prompt-tokens",
    "4",
    "--max-new-tokens",
    "5",
    "--waves",
    "1",
    "--profile-requests",
    "0",
]
QUICK = ["--pairs", "1", "--confirm", "1", "--burst", "1"]


def test_a_server_that_answers_otherwise(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "session"
    knobs = ["--env", "HOW=right,right too,other words", "--flag=--mode=present", "--parallel-servers"]
    assert main(["tune", "--server", SERVER, *knobs, *LOAD, *QUICK, "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    outcomes = {(d["setting"]["env:HOW"], d["outcome"]) for d in told["decisions"]}
    assert ("other words", "outputs_differ") in outcomes
    assert ("right too", "ok") in outcomes
    assert Path(told["report"]).read_text().startswith("<!doctype html>")
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["settings"]["target"]["command"] == SERVER
    logs = {path.read_text().splitlines()[0] for path in (out / "logs").iterdir()}
    assert logs == {"started with ['right', '--mode']"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--flag=--x=1,2"], "--flag: it needs --server CMD"),
        (["--server", "srv {port}"], "--server: nothing to vary"),
        (["--server", "srv {prot}", "--env", "A=1,2"], "{prot} is unknown"),
        (["--server", "srv", "--env", "A"], "--env A: it takes NAME=VALUE"),
        (["--server", "srv", "--env", "1A=1,2"], "knob env:1A"),
        (["--server", "srv", "--env", "A=1,1"], "got 1 more than once"),
        (["--server", "srv", "--flag=--x=[1"], "no JSON list"),
        (["--server", "srv", "--env", "A=1,2", "--rate", "fast"], "--rate: got 'fast'"),
        (["--server", "srv", "--env", "A=1,2", "--body", "[]"], "--body: it takes an object"),
        (["--server", "srv", "--env", "A=1,2", "--warmup", "-1"], "--warmup is -1"),
        (["--server", "srv", "--env", "A=1,2", "--ratio", "2"], "range_ratio is 2.0"),
        (["--server", "no-such-server", "--env", "A=1,2"], "no-such-server"),
    ],
)
def test_bad_input(words: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["tune", *words, "--out", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err


def test_knobs() -> None:
    words = ["--env", "A=1,unset", "--flag=--x=absent,present,v", '--flag=-y=["1,2","3"]', "--flag=z=1"]
    args = command_parser(load_command("tune")).parse_args(words)
    assert env_knobs(args) == [Knob("env:A", ("1", None), PROCESS)]
    assert flag_knobs(args) == [
        Knob("flag:--x", (None, True, "v"), PROCESS),
        Knob("flag:-y", ("1,2", "3"), PROCESS),
        Knob("flag:--z", ("1",), PROCESS),
    ]
