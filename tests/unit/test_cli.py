"""The command line: help, examples, exit codes, errors in one line."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from dsv4lab._version import __version__
from dsv4lab.cli.base import Command
from dsv4lab.cli.lab import _serve
from dsv4lab.cli.main import COMMANDS, INTERRUPTED, command_parser, load_command, main
from dsv4lab.errors import EngineError, UsageError

BAD_LINES = (
    "nonsense",
    "doctor --nonsense",
    "lab no-such-notebook.ipynb",
    "lab --port 99999 --dry-run",
    "lab --port abc",
    "run --preset no-such-preset",
    "run --preset tiny --plan no-such-plan",
    "run --preset tiny --hw-queues 0",
    "run --preset tiny --concurrency -1",
    "logits --checkpoint no-such-folder --tokens 1,2",
    "logits --checkpoint no-such-folder --tokens 1,x",
    "tune --preset tiny --plans off,nonsense --out never-made",
    "trace summary no-such-file.json",
    "trace",
)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_arguments_and_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"usage: dsv4lab {name}" in shown
    assert "examples:" in shown
    assert "--json" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_described_and_its_examples_parse(name: str) -> None:
    command = load_command(name)
    assert isinstance(command, Command)
    assert command.name == name
    assert command.help[0].islower()
    assert not command.help.endswith(".")
    assert command.examples
    for line in command.examples:
        program, called, *words = shlex.split(line)
        assert (program, called) == ("dsv4lab", name)
        command_parser(command).parse_args(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_json_and_debug_are_known_wherever_they_stand(name: str) -> None:
    command = load_command(name)
    _, _, *words = shlex.split(next(line for line in command.examples if "--json" in line))
    words.remove("--json")
    for placed in ([*words, "--json"], ["--json", *words]):
        assert command_parser(command).parse_args(placed).json is True
    assert command_parser(command).parse_args(words).json is False


def test_bare_command_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name}" in listed


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"dsv4lab {__version__}"


@pytest.mark.parametrize("line", BAD_LINES)
def test_bad_input_is_one_line_and_exit_code_2(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(line)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("dsv4lab: error: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_command_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    assert f"commands are {', '.join(COMMANDS)}" in capsys.readouterr().err


class Failing(Command):
    name = "doctor"
    help = "fails"
    error: BaseException

    def prepare(self, parser: object) -> None:
        pass

    def run(self, args: object) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UsageError("a\n  b"), 2, "dsv4lab: error: a b\n"),
        (EngineError("worker: out of memory"), 1, "dsv4lab: error: worker: out of memory\n"),
        (
            KeyError("x"),
            1,
            "dsv4lab: error: internal error: KeyError: 'x' (run again with --debug for the traceback)\n",
        ),
        (KeyboardInterrupt(), INTERRUPTED, "dsv4lab: interrupted\n"),
    ],
)
def test_how_a_command_fails(
    error: BaseException, code: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Failing, "error", error, raising=False)
    monkeypatch.setattr("dsv4lab.cli.main.load_command", lambda name: Failing())
    assert main(["doctor"]) == code
    assert capsys.readouterr().err == text


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Failing, "error", UsageError("bad"), raising=False)
    monkeypatch.setattr("dsv4lab.cli.main.load_command", lambda name: Failing())
    for words in (["--debug", "doctor"], ["doctor", "--debug"]):
        assert main(words) == 2
        shown = capsys.readouterr().err
        assert "Traceback" in shown
        assert shown.endswith("dsv4lab: error: bad\n")


def test_a_malformed_variable_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GPU_MAX_HW_QUEUES", "abc")
    for line in ("doctor", "run --preset tiny --prompt-tokens 4 --max-new-tokens 1"):
        assert main(shlex.split(line)) == 2
        assert capsys.readouterr().err == (
            "dsv4lab: error: environment variable GPU_MAX_HW_QUEUES='abc': it takes an integer from 1 to 32\n"
        )


def test_a_closed_pipe_ends_quietly() -> None:
    code = "import sys; from dsv4lab.cli.main import main; sys.exit(main(['doctor', '--json']))"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    with child.stderr as stderr:
        assert stderr.read() == b""
    assert child.wait() != 0


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    path = tmp_path / "mine.ipynb"
    path.write_text("{}", encoding="utf-8")
    return path


def test_lab_dry_run_says_what_it_would_start(notebook: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", str(notebook), "--dry-run", "--json", "--port", "8899", "--no-browser"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["notebook"] == str(notebook)
    assert shown["command"][1:4] == ["-m", "jupyterlab", shown["notebook"]]
    assert {"--port=8899", "--no-browser"} <= set(shown["command"])


def test_lab_opens_the_tour_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "--dry-run", "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["notebook"]).name == "00_tour.ipynb"


def test_lab_copies_the_tour_that_came_in_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundled = tmp_path / "site-packages"
    bundled.mkdir()
    for name in ("00_tour.ipynb", "10_page_layout.ipynb"):
        (bundled / name).write_text("{}", encoding="utf-8")
    monkeypatch.setattr("dsv4lab.cli.lab._CHECKOUT", tmp_path / "none")
    monkeypatch.setattr("dsv4lab.cli.lab._BUNDLED", bundled)
    monkeypatch.setattr("dsv4lab.cli.lab._serve", lambda command: 0)
    monkeypatch.chdir(tmp_path)
    assert main(["lab", "--json"]) == 0
    mine = tmp_path / "notebooks" / "00_tour.ipynb"
    assert json.loads(capsys.readouterr().out)["notebook"] == str(mine)
    assert (tmp_path / "notebooks" / "10_page_layout.ipynb").is_file()
    mine.write_text("edited", encoding="utf-8")
    assert main(["lab"]) == 0
    assert mine.read_text(encoding="utf-8") == "edited"


def test_lab_without_jupyterlab_says_how_to_get_it(
    notebook: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["lab", str(notebook)]) == 2
    assert "jupyterlab and ipywidgets not installed: pip install 'dsv4lab[notebook]'" in capsys.readouterr().err


def test_an_interrupt_leaves_it_to_the_server_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[object] = [KeyboardInterrupt(), KeyboardInterrupt(), 0]

    class Server:
        def __init__(self, command: list[str], stdout: object) -> None:
            pass

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *failure: object) -> None:
            pass

        def wait(self) -> int:
            answer = waits.pop(0)
            if isinstance(answer, KeyboardInterrupt):
                raise answer
            return 0

    monkeypatch.setattr("dsv4lab.cli.lab.subprocess.Popen", Server)
    assert _serve(["jupyter"]) == 0
    assert waits == []
