"""Search sessions on the real engine, through the command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.cli.main import main
from dsv4lab.trace.api import load_trace
from dsv4lab.tuning.store import RECORDS, read_records

SMALL = ["--preset", "tiny", "--prompt-tokens", "16", "--max-new-tokens", "4", "--pairs", "2", "--confirm", "2"]


def tune_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["tune", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def of_kind(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [record for record in read_records(folder / RECORDS)[0] if record["kind"] == kind]


def test_a_search_checks_measures_and_answers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "s"
    words = ["--search", "grid", "--plans", "off,hip", "--hw-queues", "2", "--concurrency", "2", "--out", str(folder)]
    got = tune_json(capsys, *SMALL, *words)
    (level,) = got["levels"]
    assert level["baseline"] == {
        "plan": "off",
        "hw_queues": 2,
        "concurrency": 2,
        "prompt_tokens": 16,
        "max_new_tokens": 4,
    }
    assert level["verdict"] in ("undecided", "nothing better", "no difference")  # two pairs prove nothing
    assert level["use"] == level["baseline"]
    assert (got["trials"], got["choices"]) == (1, 1)
    gates = [gate["identical"] for gate in of_kind(folder, "gate")]
    assert gates == [True] * max(2, len(gates))  # of both settings at least
    (prior,) = of_kind(folder, "prior")
    assert len(prior["forecasts"]) == 2
    blocks = [block for block in of_kind(folder, "block") if block["pair"] >= 0]
    assert len(blocks) >= 4
    assert all(len(block["tpot_ms"]) == 2 and block["outcome"] == "ok" for block in blocks)
    by_pair: dict[tuple[Any, ...], set[str]] = {}
    for block in blocks:
        by_pair.setdefault((block["trial"], block["phase"], block["pair"]), set()).add(block["tokens"])
    assert all(len(tokens) == 1 for tokens in by_pair.values())  # both arms, bit for bit
    profiles = of_kind(folder, "profile")
    assert [p["setting"] for p in profiles] == [level["baseline"], *filter(None, [level["candidate"]])]
    assert all(len(load_trace(folder / p["trace"])) > 0 for p in profiles)
    again = tune_json(capsys, *SMALL, *words, "--resume")
    assert again["levels"] == got["levels"]
    assert len([block for block in of_kind(folder, "block") if block["pair"] >= 0]) == len(blocks)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a busy machine takes its time
def test_a_search_over_processes_survives_kills(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "s"
    words = [*SMALL, "--search", "tpe", "--plans", "off,hip,cuda", "--hw-queues", "1,2", "--side-streams", "planned,1"]
    words += ["--concurrency", "1,2", "--trials", "8", "--out", str(folder), "--json"]
    command = [sys.executable, "-m", "dsv4lab", "tune", *words]
    for decided in (1, 4, 7):
        resume = ["--resume"] if folder.exists() else []
        session = subprocess.Popen(
            [*command, *resume], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        while session.poll() is None and not (
            (folder / RECORDS).exists() and len(of_kind(folder, "decision")) >= decided
        ):
            with contextlib.suppress(subprocess.TimeoutExpired):
                session.wait(0.05)
        assert session.poll() is None
        os.killpg(session.pid, signal.SIGKILL)
        session.communicate()
    got = tune_json(capsys, *words[:-1], "--resume")
    assert got["trials"] == 8
    explored = [tuple(d["setting"].items()) for d in got["decisions"] if d["phase"] == "explore"]
    assert len(explored) == len(set(explored)) == 8
    assert all(d["outcome"] == "ok" for d in got["decisions"])
    assert {level["load"]["concurrency"] for level in got["levels"]} == {1, 2}
