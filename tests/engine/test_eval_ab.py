"""``dsv4lab eval ab`` on servers that add, rightly and wrongly, and on our own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4lab.cli.main import main
from dsv4lab.tuning.store import read_records
from tests.engine.conftest import open_fake, worker_path
from tests.engine.serving import site

SUMS = Path(__file__).with_name("sums_server.py")
COMMAND = shlex.join([sys.executable, str(SUMS)]) + " {port} {flags}"


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "sums.jsonl"
    lines = [{"question": f"What is {k} + {3 * k}?", "answer": f"Add them.\n#### {4 * k}"} for k in range(1, 61)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


class Ran:
    """A run of the command, its exit code and what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        self.code = main(["eval", "ab", *words])
        self.printed = capsys.readouterr()

    @property
    def json(self) -> dict[str, Any]:
        assert self.printed.out.count("\n") == 1
        found: dict[str, Any] = json.loads(self.printed.out)
        return found


def arms(a: str, b: str) -> tuple[str, ...]:
    return ("--server", COMMAND, f"--flags-a={a}", f"--flags-b={b}")


def keys(found: dict[str, Any]) -> set[str]:
    """Of the object, and of the objects in it that the README describes."""
    inner = [*found["arms"], found["counts"], *found["disagreements"]]
    return set(found).union(*inner)


def test_a_worse_arm_is_shown_and_fails(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], repo_root: Path
) -> None:
    out = tmp_path / "session"
    ran = Ran(capsys, str(questions), *arms("right", "wrong:5"), "--shots", "2", "--out", str(out), "--json")
    assert ran.code == 1
    found = ran.json
    assert (found["verdict"], found["enough"], found["questions"]) == ("A is better", True, 58)
    # 4 k is a multiple of 5 for 12 of the questions 3 to 60.
    assert found["counts"] == {"both": 46, "only_a": 12, "only_b": 0, "neither": 0, "questions": 58, "discordant": 12}
    assert found["p"] == pytest.approx(2 / 2**12)
    (row,) = re.findall(
        r"^\| `dsv4lab eval ab .*?` \| (.+) \|$", (repo_root / "README.md").read_text("utf-8"), re.MULTILINE
    )
    assert keys(found) == set(re.findall(r"`(\w+)`", row))
    assert found["difference"] == pytest.approx(-12 / 58)
    assert [arm["model"] for arm in found["arms"]] == ["sums-right", "sums-wrong"]
    assert found["tokens"]["prompts"] == 4
    assert found["tokens"]["differing"] == 1
    assert found["same_answers"] == 46
    assert [d["line"] for d in found["disagreements"]] == list(range(5, 61, 5))
    assert "| A right | 46 | 12 |" in (out / "report.md").read_text("utf-8")
    assert json.loads((out / "result.json").read_text("utf-8"))["p"] == found["p"]


def test_text_for_people(questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "session")
    ran = Ran(capsys, str(questions), *arms("right", "mute:30"), "--chat", "--limit", "40", "--out", out)
    assert ran.code == 0
    text = " ".join(ran.printed.out.split())
    assert "A: right (model sums-right)" in text
    assert "40 of 40 100.0 %" in text
    assert "2 (5.0 %)" in text
    assert "Not enough questions to tell: at this discordance 40 show a difference of" in text
    assert "2 discordant questions, exact McNemar p = 0.5." in text
    assert max(map(len, ran.printed.out.replace(out, "DIR").splitlines())) <= 80


def test_a_session_that_broke_off_goes_on(questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "session"
    server = tmp_path / "server.py"
    server.symlink_to(SUMS)
    how = tmp_path / "how"
    command = f"sh -c 'exec {shlex.quote(sys.executable)} {server} {{port}} $(cat {how})'"
    words = (str(questions), "--server", command, "--concurrency", "1", "--out", str(out), "--json")
    how.write_text("dies:20")
    broken = Ran(capsys, *words)
    assert broken.code == 1
    assert "arm A: the server answers no more, exit code 5" in broken.printed.err
    assert "--resume goes on" in broken.printed.err
    records, torn = read_records(out / "records.jsonl")
    assert (sum(r["kind"] == "answer" for r in records), torn) == (19, 0)
    with (out / "records.jsonl").open("ab") as file:
        file.write(b'{"kind": "answer", "arm": "A", "li')  # killed in the middle of a line
    how.write_text("right")
    found = Ran(capsys, *words, "--resume")
    assert found.code == 0
    assert found.json["counts"]["both"] == 60
    assert found.json["tokens"]["identical"] is True
    records, torn = read_records(out / "records.jsonl")
    assert torn == 1
    asked = [(r["arm"], r["line"]) for r in records if r["kind"] == "answer"]
    assert sorted(asked) == [(arm, line) for arm in "AB" for line in range(1, 61)]
    other = Ran(capsys, *words, "--resume", "--max-new-tokens", "9")
    assert (other.code, "max_new_tokens is 512 there and 9 now" in other.printed.err) == (2, True)
    again = Ran(capsys, *words)
    assert (again.code, "already holds a session" in again.printed.err) == (2, True)


def test_requests_that_fail_are_told(questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "session")
    ran = Ran(capsys, str(questions), *arms("right", "refuses"), "--limit", "5", "--out", out, "--json")
    assert ran.code == 1
    assert [arm["failed"] for arm in ran.json["arms"]] == [0, 5]
    assert (ran.json["counts"]["questions"], ran.json["verdict"]) == (0, "not enough questions")
    assert ran.json["errors"] == ['arm B: status 500: {"error": "out of order"}']
    assert "status 500" in ran.printed.err


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of ours can be started from here."""
    monkeypatch.setenv("PYTHONPATH", worker_path())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.usefixtures("own")
def test_our_engine_against_a_server_that_runs(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    effort = ("--limit", "4", "--max-new-tokens", "6", "--gate-prompts", "1", "--out", str(tmp_path / "session"))
    with open_fake(max_running_requests=4, max_total_tokens=8192) as client, site(client) as other:
        words = ("--preset", "tiny", "--flags-a=--plan hip", "--url-b", other.running.url, *effort, "--json")
        ran = Ran(capsys, str(questions), *words)
    assert ran.code == 0
    found = ran.json
    assert [(arm["label"], arm["model"]) for arm in found["arms"]] == [
        ("--plan hip", "tiny"),
        (other.running.url, "tiny"),
    ]
    assert (found["tokens"]["identical"], found["tokens"]["prompts"]) == (False, 1)
    assert (found["same_answers"], found["counts"]["questions"]) == (0, 4)
    assert [arm["new_tokens"] for arm in found["arms"]] == [6.0, 6.0]
    assert (found["p"], found["enough"]) == (1.0, False)


def test_two_running_servers_asked_as_chats(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_fake(max_running_requests=4, max_total_tokens=8192) as client, site(client, api_key="sesame") as one:
        urls = ("--url-a", one.running.url, "--url-b", one.running.url, "--api-key", "sesame")
        body = ("--body", '{"chat_template_kwargs": {"thinking": false}}')
        effort = (*body, "--chat", "--limit", "5", "--max-new-tokens", "4", "--out", str(tmp_path / "session"))
        found = Ran(capsys, str(questions), *urls, *effort, "--json").json
    assert (found["same_answers"], found["tokens"]["identical"], found["counts"]["discordant"]) == (5, True, 0)
    assert "sesame" not in "".join(path.read_text() for path in (tmp_path / "session").iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("own")
def test_our_engine_with_two_settings_answers_alike(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("--flags-a=--plan off", "--flags-b=--plan hip --hw-queues 2")
    effort = ("--limit", "6", "--max-new-tokens", "8", "--concurrency", "1", "--gate-prompts", "2")
    out = str(tmp_path / "session")
    ran = Ran(capsys, str(questions), "--preset", "tiny", *settings, *effort, "--out", out, "--json")
    assert ran.code == 0
    found = ran.json
    assert [arm["model"] for arm in found["arms"]] == ["tiny", "tiny"]
    assert found["tokens"]["identical"] is True
    assert found["tokens"]["largest_logprob_gap"] == 0.0
    assert (found["same_answers"], found["counts"]["questions"]) == (6, 6)
    assert (found["p"], found["enough"]) == (1.0, False)


@pytest.mark.slow
def test_killed_again_and_again_it_loses_what_was_in_flight_at_most(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rng: np.random.Generator
) -> None:
    out = tmp_path / "session"
    words = (str(questions), *arms("right", "wrong:8"), "--concurrency", "2", "--out", str(out), "--json")
    command = [sys.executable, "-m", "dsv4lab", "eval", "ab", *words]
    environ = {**os.environ, "PYTHONPATH": worker_path()}
    asked: list[tuple[str, int]] = []
    for wanted in sorted(rng.choice(np.arange(1, 120), 6, replace=False).tolist()):
        resume = ["--resume"] if out.exists() else []
        process = subprocess.Popen(
            [*command, *resume], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while len(asked) < wanted and process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.01)
            asked = answered(out) or asked
        process.kill()
        process.wait()
        kept = answered(out)
        assert kept[: len(asked)] == asked
        assert len(set(kept)) == len(kept)
        asked = kept
    ran = Ran(capsys, *words, "--resume")
    assert sorted(answered(out)) == [(arm, line) for arm in "AB" for line in range(1, 61)]
    assert ran.json["counts"] == {
        "both": 30,
        "only_a": 30,
        "only_b": 0,
        "neither": 0,
        "questions": 60,
        "discordant": 30,
    }


def answered(out: Path) -> list[tuple[str, int]]:
    """Arm and line of the answers on record, in order."""
    if not (out / "records.jsonl").exists():
        return []
    return [(r["arm"], r["line"]) for r in read_records(out / "records.jsonl")[0] if r["kind"] == "answer"]


BAD = {
    "no-such-file.jsonl --preset tiny": "no-such-file.jsonl: No such file",
    "{q}": "arm A: it takes --url-a",
    "{q} --url-a http://127.0.0.1:9 --url-b http://127.0.0.1:9": "/v1/models: ",
    "{q} --url-a http://x --flags-a=--y --url-b http://x": "--url-a: a server that runs takes no command",
    "{q} --preset tiny --flags-b=--no-such-flag": "--no-such-flag",
    "{q} --preset nonsense": "nonsense",
    '{q} --preset tiny --flags-b="--plan \'x"': "--flags-b: No closing quotation",
    "{q} --preset tiny --env-a 5=3": "--env-a: got '5=3', it takes NAME=VALUE",
    "{q} --preset tiny --body [1]": "--body: got [1], it takes an object",
    "{q} --preset tiny --body {": "--body: not JSON",
    "{q} --preset tiny --shots 61": "--shots is 61: ",
    "{q} --preset tiny --shots 60": "no question is left",
    "{q} --preset tiny --resume": "--resume: it needs --out DIR",
    "{q} --preset tiny --least 0": "least is 0.0",
    "{q} --server 'srv {nonsense}'": "{nonsense} is unknown",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line(
    line: str, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = Ran(capsys, *shlex.split(line.replace("{q}", questions.name)))
    assert ran.code == 2
    assert BAD[line] in ran.printed.err
    assert ran.printed.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [questions.name]
