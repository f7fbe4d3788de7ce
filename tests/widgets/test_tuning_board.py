from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dsv4lab as lab
from dsv4lab.config.engine import EngineConfig
from dsv4lab.errors import EngineError, UsageError
from dsv4lab.tuning.reading import launch_flags, read_session, space_from_json
from dsv4lab.tuning.replay import replay
from dsv4lab.tuning.space import Cell
from dsv4lab.tuning.store import RECORDS, StoreError
from dsv4lab.tuning.trial import cell_to_json
from dsv4lab.viz.tuning_lines import parallel_figure
from dsv4lab.widgets.watch_tuning import TuningBoard
from tests.widgets.fake_session import HOSTILE, SPACE, TOKENS, Session


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(tmp_path / "s")
    yield made
    made.store.close()


class Target:
    """An engine that gives what it is told."""

    def __init__(self, config: EngineConfig, tokens: Sequence[Sequence[int]] = TOKENS) -> None:
        self.config = config
        self.tokens = tokens
        self.did: list[Any] = []

    def set_plan(self, plan: Any) -> None:
        self.did.append(plan)

    def load(self, *arguments: int) -> Any:
        self.did.append(arguments)
        return SimpleNamespace(tokens=self.tokens, requests=[SimpleNamespace(tpot_ms=9.0)])

    def close(self) -> None:
        self.did.append("close")


class Bench:
    """A board that is driven by hand."""

    def __init__(self, folder: Path, opened: Callable[[EngineConfig], Any] = Target) -> None:
        self.board = TuningBoard(folder, _threaded=False, _open_target=opened)
        self.files: dict[str, bytes] = {}
        self.board.board.save_file = lambda name, data, mime: self.files.__setitem__(name, data)  # type: ignore[method-assign]

    def run(self) -> None:
        pump = self.board._pump
        assert pump is not None
        while pump.turn():
            pass


def test_a_session_that_has_just_begun(session: Session) -> None:
    bench = Bench(session.folder)
    assert "Nothing to compare yet" in bench.board.headline.value
    assert "0 of 48 timed loads" in bench.board.stage.value
    assert bench.board.table.rows == []
    assert "no measured rows" in bench.board.board.sheets["heat"].layout["annotations"][0]["text"]


def test_it_follows_a_session_that_runs(session: Session) -> None:
    bench = Bench(session.folder)
    assert not bench.board.look()
    session.explore()
    assert bench.board.look()
    bench.run()
    assert "Best so far: hip, 1 queue, concurrency" in bench.board.headline.value
    assert len(bench.board.table.rows) == 12
    assert "24 of 48" in bench.board.stage.value
    session.confirm()
    bench.board.look()
    bench.run()
    assert "confirming hip on 4 hardware queues" in bench.board.stage.value
    session.finish()
    bench.board.look()
    bench.run()
    assert "Use hip on 4 hardware queues on this CPU" in bench.board.headline.value
    assert bench.board.progress.value == 1.0


def test_a_line_that_is_being_written_is_left_out(session: Session) -> None:
    session.explore()
    with (session.folder / RECORDS).open("ab") as file:
        file.write(b'{"kind": "trial", "phase"')
    assert len(read_session(session.folder).trials) == 24


def test_a_failed_gate_is_told_first(session: Session) -> None:
    session.explore()
    cells = {"cell": cell_to_json(Cell("hip", 4, 1)), "reference": cell_to_json(Cell("off", 1, 1))}
    session.store.append("diverged", what="tokens", prompt=0, position=3, expected=1, got=2, **cells)
    bench = Bench(session.folder)
    assert "outputs differ" in bench.board.headline.value
    assert bench.board.reading.recommendation is None


def test_choosing_a_row_marks_it_everywhere_and_gives_flags(session: Session) -> None:
    session.explore()
    bench = Bench(session.folder)
    assert bench.board.again.disabled
    bench.board.table._handle_custom_msg({"kind": "choose", "row": 1}, [])
    bench.run()
    assert bench.board.chosen is not None
    assert bench.board.chosen.row.plan == "hip"
    assert bench.board.table.chosen == 1
    assert "dsv4lab run --preset tiny --concurrency 1 --plan hip --hw-queues 1" in bench.board.detail.value
    assert not bench.board.again.disabled
    assert [t["name"] for t in bench.board.board.sheets["front"].data][-1] == "chosen"
    bench.board.choose("off", 4, 2)
    bench.run()
    assert "--plan off --hw-queues 4" in bench.board.detail.value
    with pytest.raises(UsageError, match="no row moe, 1 queue"):
        bench.board.choose("moe", 1, 1)


@pytest.mark.parametrize(("cell", "trace", "point", "plan"), [("front", "1", 0, "hip"), ("lines", "0", 3, "off")])
def test_clicks_in_pictures_choose(session: Session, cell: str, trace: str, point: int, plan: str) -> None:
    session.explore()
    bench = Bench(session.folder)
    bench.board.board._handle_custom_msg({"kind": "click", "cell": cell, "trace": trace, "point": point}, [])
    bench.run()
    assert bench.board.chosen is not None
    assert bench.board.chosen.row.plan == plan


@pytest.mark.parametrize(
    "message",
    [{"cell": "front", "trace": "9", "point": 0}, {"cell": "front", "trace": "1", "point": 99}, {"cell": "x"}],
)
def test_nonsense_from_the_page_chooses_nothing(session: Session, message: dict[str, Any]) -> None:
    session.explore()
    bench = Bench(session.folder)
    bench.board.board._handle_custom_msg({"kind": "click", **message}, [])
    bench.board.table._handle_custom_msg({"kind": "choose", "row": 99}, [])
    bench.run()
    assert bench.board.chosen is None


@pytest.mark.parametrize(("tokens", "text"), [(TOKENS, "the same tokens"), ([[9]], "OTHER TOKENS")])
def test_a_row_can_be_measured_again(session: Session, tokens: Any, text: str) -> None:
    session.explore()
    made: list[Target] = []

    def opened(config: EngineConfig) -> Target:
        made.append(Target(config, tokens))
        return made[-1]

    bench = Bench(session.folder, opened)
    bench.board.choose("hip", 4, 2)
    bench.board.again.click()
    bench.run()
    assert text in bench.board.outcome.value
    assert "TPOT 9.00 ms now, 18.11 ms recorded" in bench.board.outcome.value
    assert made[0].config.hw_queues == 4
    assert made[0].did == ["hip", (2, 8, 4, 0), (2, 8, 4, 0), "close"]
    assert not bench.board.again.disabled


def test_what_was_not_measured_cannot_be_replayed(session: Session) -> None:
    with pytest.raises(EngineError, match="no trial of hip"):
        replay(read_session(session.folder), Cell("hip", 4, 1), Target)


def test_flags_are_quoted_and_own_plans_are_python() -> None:
    config = EngineConfig("/models/my model")
    line = launch_flags(config, SPACE, Cell("hip", 4, 2))
    assert shlex.split(line)[:5] == ["dsv4lab", "run", "--checkpoint", "/models/my model", "--concurrency"]
    assert launch_flags(config, SPACE, Cell(HOSTILE, 4, 2)).startswith("lab.open('/models/my model', plan={'name'")


def test_the_space_comes_back_from_json() -> None:
    assert space_from_json(json.loads(json.dumps(SPACE.to_json()))) == SPACE


@pytest.mark.parametrize("form", ["CSV", "HTML"])
def test_exports(session: Session, form: str) -> None:
    session.explore()
    bench = Bench(session.folder)
    bench.run()
    bench.board.form.value = form
    bench.board.export.click()
    bench.run()
    (data,) = bench.files.values()
    assert len(data) > 300


def test_names_from_records_are_never_markup(session: Session, tmp_path: Path) -> None:
    session.explore()
    bench = Bench(session.folder)
    bench.board.choose(HOSTILE, 4, 2)
    bench.run()
    assert "<img" not in bench.board.headline.value + bench.board.detail.value + bench.board.stage.value
    page = bench.board.save_html(tmp_path / "board.html").read_text(encoding="utf-8")
    assert "<img" not in page
    figure = parallel_figure([f.row for f in bench.board.reading.findings], theme="dark")
    assert "<img" not in figure.to_json()


def test_what_is_no_session(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no session"):
        lab.tuning_board(tmp_path)
    with pytest.raises(UsageError, match="got int"):
        lab.tuning_board(3)
    with pytest.raises(UsageError, match="takes no 'them'"):
        lab.tuning_board(tmp_path, them="dark")


def test_damaged_records_are_an_error_that_says_so(session: Session) -> None:
    session.store.append("trial", phase="explore")
    with pytest.raises(StoreError, match="do not fit its manifest"):
        read_session(session.folder)
