"""``dsv4lab report`` at the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.cli.main import main
from dsv4lab.tuning.store import MANIFEST, read_manifest, write_json
from tests.unit.searches import again, simulated, twin
from tests.widgets.fake_session import Session


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("sessions")
    simulated(home / "monday")
    again(home / "monday", home / "tuesday")
    again(home / "monday", home / "slow", lambda _setting: 1.05)
    other = again(home / "monday", home / "other")
    manifest = read_manifest(other)
    manifest["settings"]["target"]["seed"] = 2
    write_json(other / MANIFEST, manifest)
    sweep = Session(home / "sweep")
    sweep.explore()
    sweep.confirm()
    sweep.store.close()
    return home


def report(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["report", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def as_json(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code, out, _ = report(capsys, *words, "--json")
    return code, json.loads(out)


@pytest.mark.parametrize("name", ["monday", "sweep"])
def test_for_people_in_80_columns(home: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = report(capsys, home / name, "--against", home / name)
    assert (code, err) == ({"monday": 0, "sweep": 3}[name], "")  # the sweep has two loads of most settings
    assert "All settings" in out
    assert {0: "No regression.", 3: "Cannot tell."}[code] in out
    told = [line for line in out.splitlines() if not line.startswith("  dsv4lab ")]  # lines to paste stay whole
    assert {line: len(line) for line in told if len(line) > 80} == {}


def test_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = as_json(capsys, home / "monday", home / "sweep")
    assert code == 0
    assert set(told) == {"sessions", "comparison", "merged", "html", "markdown"}
    search, sweep = told["sessions"]
    assert (search["kind"], sweep["kind"]) == ("search", "sweep")
    assert [use["use"]["plan"] for use in search["uses"]] == ["hip", "hip"]
    assert [use["use"] for use in sweep["uses"]] == [{"plan": "hip", "hw_queues": 4}] * 2
    assert len(search["rows"]) == 12
    assert {"load", "setting", "tpot_ms", "blocks", "processes", "change", "verdict"} <= set(search["rows"][0])
    assert search["launch"] == []
    assert sweep["launch"][0]["framework"] == "dsv4lab"


def test_files(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, text = tmp_path / "r.html", tmp_path / "r.md"
    code, told = as_json(capsys, home / "monday", "--html", page, "--markdown", text)
    assert (code, told["html"], told["markdown"]) == (0, str(page), str(text))
    assert page.read_text().startswith("<!doctype html>")
    assert "| Concurrency | TPOT before (ms) |" in text.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.md"]


def test_only_the_page_needs_plotly(home: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from importlib.machinery import PathFinder as P; find = P.find_spec\n"
        "P.find_spec = lambda name, *more: None if name == 'plotly' else find(name, *more)\n"
        "from dsv4lab.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, "report", str(home / "sweep"), "--markdown", str(tmp_path / "r.md")]
    assert subprocess.run(words, capture_output=True).returncode == 0
    ran = subprocess.run([*words, "--html", str(tmp_path / "r.html")], capture_output=True, text=True)
    assert ran.returncode != 0
    assert "--html: plotly draws its pictures, and is not installed" in " ".join(ran.stderr.split())


def test_exit_codes_of_a_comparison(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monday, tuesday, slow = (home / name for name in ("monday", "tuesday", "slow"))
    assert as_json(capsys, tuesday, "--against", monday)[0] == 0
    code, told = as_json(capsys, slow, "--against", monday, "--max-regression", "1%")
    assert (code, told["comparison"]["verdict"]) == (1, "regression")
    assert as_json(capsys, slow, "--against", monday, "--max-regression", "0.2")[0] == 0
    assert as_json(capsys, tuesday, "--against", monday, "--max-regression", "0%")[0] == 3
    code, out, _ = report(capsys, slow, "--against", monday)
    assert code == 1
    assert "Regression." in out


def test_merged(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = twin(home / "monday", tmp_path / "twin")
    code, told = as_json(capsys, home / "monday", second, "--merge", tmp_path / "both")
    assert code == 0
    assert told["merged"]["sessions"] == 2
    (merged,) = told["sessions"]
    assert merged["folder"] == str(tmp_path / "both")
    assert merged["state"] == "measuring"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "nowhere/manifest.json: there is no session here (No such file or directory)"),
        (["monday", "sweep", "--html", "x.html"], "--html: it takes one session"),
        (["monday", "sweep", "--against", "monday"], "--against: it takes one session"),
        (["monday", "--max-regression", "1%"], "it needs --against"),
        (["monday", "--against", "tuesday", "--max-regression", "much"], "it takes a share such as 1%"),
        (["monday", "--against", "tuesday", "--max-regression", "200%"], "0 to less than 100 %"),
        (["monday", "--against", "sweep"], "target is engine there and simulated now"),
        (["monday", "sweep", "--merge", "out"], "sweep: it is a sweep and cannot be merged with monday, a search"),
        (["monday", "other", "--merge", "out"], "settings.target.seed is 1 there and 2 now"),
    ],
)
def test_bad_input(
    home: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    before = sorted(path.name for path in home.iterdir())
    code, out, err = report(capsys, *words)
    assert (code, out) == (2, "")
    assert says in err
    assert sorted(path.name for path in home.iterdir()) == before
