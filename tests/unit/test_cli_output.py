"""What commands print."""

from __future__ import annotations

import json

import pytest

from dsv4lab.cli.output import emit_json, note, progress, table


def test_json_is_one_line_without_nan(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"a": float("nan"), "b": [1.5, float("inf")], "c": (1, "µ"), "d": {"e": None}})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": None, "b": [1.5, None], "c": [1, "µ"], "d": {"e": None}}


def test_a_table_is_never_cut_short_on_a_narrow_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    long = "a-name-that-is-much-longer-than-the-screen-is-wide"
    table(
        ["stream", "busy", "share"],
        [[long, "123.456 ms", "[lab.good]+3.4 %[/]"], ["side0", "1 ms", "-1 %"]],
        title="Busy",
    )
    out = capsys.readouterr().out
    assert long in out
    assert "123.456 ms" in out
    assert "+3.4 %" in out
    assert "lab.good" not in out
    assert "\x1b" not in out
    lines = [line for line in out.splitlines() if "123.456" in line or "1 ms" in line]
    assert len({line.index(" ms") for line in lines}) == 1, "numbers align on their right"


def test_progress_is_silent_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(3, "working") as advance:
        advance()
        advance(2, note="nearly there")
    assert capsys.readouterr() == ("", "")


def test_progress_when_forced_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(3, "working", force=True) as advance:
        advance(3, note="point 3 of 3")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "point 3 of 3" in captured.err
    assert "3/3" in captured.err


def test_notes_keep_out_of_the_way_of_results(capsys: pytest.CaptureFixture[str]) -> None:
    note("opening [x]")
    assert capsys.readouterr() == ("", "opening [x]\n")
