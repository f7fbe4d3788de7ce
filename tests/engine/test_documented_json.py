"""The JSON of every command has the keys that the README documents, and the README documents every key."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.checkpoint.synthetic import random_weights, write_checkpoint
from dsv4lab.cli.main import COMMANDS, main
from dsv4lab.config.presets import preset

SMALL = "--prompt-tokens 5 --max-new-tokens 3"
OF_FILES = {"load_report", "ranks", "steps", "occupancy", "exposure", "fork", "graphs", "launches"}
NESTED = {"streams", "queues", "rows", "devices"}


@pytest.fixture(scope="module")
def documented(repo_root: Path) -> dict[str, set[str]]:
    """Command to the backticked words of its cell in the README's table."""
    text = (repo_root / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `dsv4lab (\w+)(.*?)` \| (.+`.+) \|$", text, flags=re.MULTILINE)
    rows = [
        (command + " --search" * ("--search" in line), cell) for command, line, cell in rows if "--help" not in cell
    ]
    return {command: set(re.findall(r"`([a-z_0-9]+)`", cell)) for command, cell in rows}


def printed(line: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*shlex.split(line), "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    return found


def keys(found: dict[str, Any]) -> set[str]:
    """Keys of the object and of the objects listed in it."""
    inner = [item for name in NESTED & set(found) for item in found[name] if isinstance(item, dict)]
    return set(found).union(*inner) if inner else set(found)


def test_every_command_is_documented(documented: dict[str, set[str]]) -> None:
    assert {words.split()[0] for words in documented} == set(COMMANDS)


def test_run(documented: dict[str, set[str]], capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(f"run --preset tiny --seed 0 --concurrency 2 {SMALL} --plan hip --hw-queues 2", capsys)
    assert keys(found) == documented["run"]
    assert keys(found["stream_busy"]) == documented["trace"] - OF_FILES
    assert [len(tokens) for tokens in found["tokens"]] == [3, 3]
    assert (found["concurrency_level"], found["plan"], found["hw_queues"]) == (2, "hip", 2)
    assert found["ttft_ms"] > 0
    assert found["tpot_ms"] > 0
    again = printed(f"run --preset tiny --seed 0 --concurrency 2 {SMALL} --plan off --hw-queues 1", capsys)
    assert again["tokens"] == found["tokens"]


def test_logits(documented: dict[str, set[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import torch

    config = preset("tiny")
    write_checkpoint(tmp_path, config, random_weights(config, 0, torch.float32))
    found = printed(f"logits --checkpoint {tmp_path} --tokens 5,9,12 --chunks 2,1 --dtype float32", capsys)
    assert keys(found) == documented["logits"]
    assert [len(row) for row in found["logits"]] == [config.vocab_size] * 3


def test_tune(documented: dict[str, set[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    effort = "--repeats 1 --confirm 1 --no-control"
    out = tmp_path / "session"
    line = f"tune --preset tiny --plans off,hip --hw-queues 1 --concurrency 1 {SMALL} {effort} --out {out}"
    found = printed(line, capsys)
    assert keys(found) == documented["tune"]
    assert found["identical"] is True
    assert [(row["plan"], row["hw_queues"]) for row in found["rows"]] == [("off", 1), ("hip", 1)]
    assert Path(found["report"]).is_file()
    assert all(Path(trace).name.endswith(".pt.trace.json.gz") for trace in found["traces"])


def test_trace_summary(documented: dict[str, set[str]], capsys: pytest.CaptureFixture[str], repo_root: Path) -> None:
    trace = repo_root / "traces" / "rocm_mi300x_sglang_decode_hipgraph.pt.trace.json.gz"
    found = printed(f"trace summary {trace}", capsys)
    assert keys(found) == documented["trace"]
    assert len(found["streams"]) == 2


def test_doctor_and_lab(documented: dict[str, set[str]], capsys: pytest.CaptureFixture[str]) -> None:
    origins = {"value", "origin", "api", "cli", "default"}
    assert keys(printed("doctor", capsys)) == documented["doctor"] - origins
    assert keys(printed("lab --dry-run", capsys)) == documented["lab"]
