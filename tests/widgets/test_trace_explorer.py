"""The kernel's side of the trace explorer, asked as the page asks."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsv4lab as lab
from dsv4lab.errors import UsageError
from dsv4lab.timeline.program import ProgramOp, StreamProgram
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.widgets.explore_trace import TraceExplorer
from dsv4lab.widgets.trace_session import TraceSession

HOSTILE = "</script><script>window.owned=1</script><img src=x onerror=window.owned=1>=cmd|' /C calc'!A0"


def steps(count: int, gap: int, name: str = "gemm", start: int = 10**15) -> Timeline:
    """``count`` steps of a row on main and one on a side stream that waits for it."""
    at = start + np.arange(count) * gap
    return Timeline.build(
        start_ns=np.concatenate([at, at + 100]), dur_ns=[100] * count + [50] * count, stream=[0] * count + [1] * count,
        name=[0] * count + [1] * count, names=[name, "indexer_topk"], streams=["main", "side0"], main_stream="main",
        step=[*range(count)] * 2, correlation=[0] * count + [1] * count,
    )  # fmt: skip


class Page:
    """Stands for the page: asks, and keeps what comes."""

    def __init__(self, explorer: TraceExplorer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.explorer = explorer
        self.sent: list[tuple[dict[str, Any], list[bytes]]] = []
        monkeypatch.setattr(explorer, "send", lambda content, buffers=(): self.sent.append((content, list(buffers))))

    def ask(self, kind: str, **question: Any) -> dict[str, Any]:
        self.explorer._handle_custom_msg({"kind": kind, "number": "n:1", **question}, [])
        return self.sent[-1][0]


def page(monkeypatch: pytest.MonkeyPatch, *traces: Any, **options: Any) -> Page:
    return Page(lab.trace_explorer(*traces, **options), monkeypatch)


def test_setup_then_a_view_with_arrays_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = page(monkeypatch, steps(4, 1000))
    setup = asked.ask("hello")
    assert [t["label"] for t in setup["tracks"]] == ["main", "side0"]
    assert setup["window"] == [0, 3150]
    view = asked.ask("view", start=0, end=4000, columns=100, tracks=[0, 1])
    assert view["number"] == "n:1"
    _, buffers = asked.sent[-1]
    rows = np.frombuffer(buffers[view["slices"]["row"]["$buffer"]], np.int32)
    assert sorted(rows.tolist()) == [*range(8)]
    assert view["names"] == [{"0": "gemm", "1": "indexer_topk"}]
    json.dumps(view)


def test_a_view_of_a_large_trace_stays_under_five_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = page(monkeypatch, steps(200_000, 300))
    tracks = list(asked.ask("hello")["order"])
    for start, end in ((0, 60_000_000), (0, 3_000_000), (500_000, 600_000)):
        view = asked.ask("view", start=start, end=end, columns=3000, tracks=tracks)
        assert sum(map(len, asked.sent[-1][1])) + len(json.dumps(view)) < 5_000_000


def test_two_traces_are_moved_so_that_their_steps_begin_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = page(monkeypatch, steps(5, 1000), steps(4, 1500, start=7))
    asked.ask("hello")
    for pair in (0, 2):
        answer = asked.ask("steps", pair=pair)
        a, b = answer["pairs"][pair]
        assert answer["steps"][0][a][3] == answer["steps"][1][b][3]
    table = asked.ask("table", start=2000, end=2150)
    assert [side["union_ns"] for side in table["sides"]] == [150, 150]
    assert [side["concurrency"] for side in table["sides"]] == [1.0, 1.0]


def test_search_and_the_way_through_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = page(monkeypatch, steps(3, 1000))
    asked.ask("hello")
    assert asked.ask("search", text="^index")["counts"] == [3]
    assert asked.ask("next", what="found", side=0, after=0)["row"] == 3
    assert asked.ask("next", what="found", side=0, after=100)["row"] == 4
    assert asked.ask("next", what="found", side=0, after=1100, back=True)["row"] == 3
    assert asked.ask("next", what="track", row=3, side=0, after=100)["row"] == 4
    refused = asked.ask("search", text="(")
    assert refused["kind"] == "failed"
    assert "regular expression" in refused["text"]
    assert refused["number"] == "n:1"


def test_a_profile_brings_the_waits_of_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = tuple(ProgramOp(i, "op", 0, s, w, w, (), ()) for i, (s, w) in enumerate([("main", ()), ("side0", (0,))]))

    class Recorded:
        timeline = steps(3, 1000)
        program = StreamProgram(ops, ("main", "side0"), "hip", "decode", 1)

    asked = page(monkeypatch, Recorded())
    asked.ask("hello")
    view = asked.ask("view", start=0, end=1500, columns=10, tracks=[0, 1], flows=True)
    assert view["flows"] == [[0, 0, 100, 1, 0, 100], [0, 0, 1100, 1, 0, 1100]]
    details = asked.ask("details", side=0, row=3)
    assert details["arrows"] == [[0, 0, 100, 1, 0, 100]]
    assert ["stream", "side0"] in details["facts"]


def test_other_tracks_keep_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = page(monkeypatch, steps(3, 1000))
    asked.ask("search", text="gemm")
    assert [t["label"] for t in asked.ask("tracks", by="rank")["tracks"]] == ["rank 0"]
    view = asked.ask("view", start=0, end=3000, columns=10, tracks=[0])
    flags = np.frombuffer(asked.sent[-1][1][view["slices"]["flags"]["$buffer"]], np.uint8)
    assert flags.sum() == 3
    assert asked.ask("tracks", by="colour")["kind"] == "failed"


@pytest.mark.parametrize(
    ("question", "takes"),
    [
        ({"kind": "view", "start": "x", "end": 1, "columns": 5}, "nanoseconds"),
        ({"kind": "view", "start": 0, "end": float("inf"), "columns": 5}, "nanoseconds"),
        ({"kind": "view", "start": 0, "end": 10, "columns": 10**9}, "columns"),
        ({"kind": "details", "side": 0, "row": 99}, "row"),
        ({"kind": "details", "side": 3, "row": 0}, "side"),
        ({"kind": "next", "what": "nothing", "side": 0}, "found, layer or track"),
        ({"kind": "eval", "text": "1"}, "no question"),
    ],
)
def test_what_no_page_would_ask_is_refused(question: dict[str, Any], takes: str) -> None:
    with pytest.raises(UsageError, match=takes):
        TraceSession([("A", steps(2, 1000))]).answer(question)


def test_options_are_checked() -> None:
    line = steps(1, 100)
    with pytest.raises(UsageError, match="did you mean 'tracks'"):
        lab.trace_explorer(line, track="queue")
    for options in ({"tracks": "x"}, {"color": "x"}, {"theme": "x"}, {"height": 10}, {"edges": [(0, 9)]}):
        with pytest.raises(UsageError):
            lab.trace_explorer(line, **options)
    with pytest.raises(UsageError, match="takes a Timeline"):
        lab.trace_explorer(5)
    assert repr(lab.trace_explorer(line)) == "<TraceExplorer A: 2 rows>"


def test_an_empty_timeline_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = page(monkeypatch, Timeline.empty())
    assert asked.ask("hello")["tracks"] == []
    for kind in ("view", "table", "steps", "path"):
        assert asked.ask(kind, start=0, end=1, columns=1, tracks=[], on=True)["kind"] == kind


def test_csv_of_the_window_runs_no_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = page(monkeypatch, steps(3, 1000, "=1+1"), steps(2, 1000))
    asked.ask("csv", start=900, end=1050)
    _, (text,) = asked.sent[-1]
    rows = list(csv.DictReader(io.StringIO(text.decode())))
    assert [(r["trace"], r["name"]) for r in rows] == [("A", "'=1+1"), ("B", "gemm")]


def test_hostile_names_stay_data_in_a_saved_page(tmp_path: Path) -> None:
    explorer = lab.trace_explorer(steps(3, 1000, HOSTILE), labels=(HOSTILE, "B"))
    page = explorer.save_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>window.owned" not in page
    assert "<img" not in page
    assert page.count("</script>") == 3
    with pytest.raises(UsageError, match="cannot be written"):
        explorer.save_html(tmp_path / "no" / "page.html")
