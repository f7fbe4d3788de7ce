"""One session against another of the same load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4lab.errors import UsageError
from dsv4lab.tuning.against import (
    CANNOT_TELL,
    EXIT_CODES,
    NO_REGRESSION,
    RECOMMENDED,
    REGRESSION,
    Comparison,
    compare_sessions,
)
from dsv4lab.tuning.knobs import Setting
from dsv4lab.tuning.read_view import read_view
from dsv4lab.tuning.view import BASELINE, CANDIDATE, SessionView
from tests.unit.searches import again, simulated

LIMIT = 0.01
Factor = Callable[[Setting], float]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated(tmp_path_factory.mktemp("before") / "s")


@pytest.fixture(scope="module")
def before(folder: Path) -> SessionView:
    return read_view(folder)


def against(
    folder: Path, out: Path, factor: float | Factor = 1.0, *, limit: float = LIMIT, sd: float = 0.001
) -> Comparison:
    by: Factor = factor if callable(factor) else lambda _setting: factor
    return compare_sessions(read_view(again(folder, out / "again", by, sd)), read_view(folder), limit)


def test_the_same_again_is_no_regression(folder: Path, tmp_path: Path) -> None:
    found = against(folder, tmp_path)
    assert (found.verdict, found.exit_code) == (NO_REGRESSION, 0)
    kinds = {(what, metric) for what in (BASELINE, RECOMMENDED) for metric in ("TPOT", "tokens/s")}
    assert {(c.what, c.metric) for c in found.checks} == kinds
    assert (len(found.checks), found.level) == (8, 1 - 0.05 / 8)
    for check in found.checks:
        assert check.loss is not None
        assert abs(check.loss) < 0.002
        assert (check.by, check.note) == ("matched blocks", "")


def test_everything_slower_is_a_regression(folder: Path, tmp_path: Path) -> None:
    found = against(folder, tmp_path, 1.04)
    assert (found.verdict, found.exit_code) == (REGRESSION, 1)
    assert {check.verdict for check in found.checks} == {REGRESSION}
    assert all(check.loss == pytest.approx(0.04, abs=0.002) for check in found.checks)
    assert against(folder, tmp_path / "allowed", 1.04, limit=0.10).verdict == NO_REGRESSION


def test_everything_faster_is_none(folder: Path, tmp_path: Path) -> None:
    found = against(folder, tmp_path, 0.96)
    assert found.verdict == NO_REGRESSION
    assert all(check.loss is not None and check.loss < -0.03 for check in found.checks)


def test_a_lost_gain_is_found_although_the_baseline_holds(folder: Path, tmp_path: Path) -> None:
    found = against(folder, tmp_path, lambda setting: 1.04 if setting.get("plan") == "hip" else 1.0)
    assert found.verdict == REGRESSION
    assert {c.verdict for c in found.checks if c.what == BASELINE} == {NO_REGRESSION}
    assert {c.verdict for c in found.checks if c.what == RECOMMENDED} == {REGRESSION}


def test_an_answer_that_was_not_reached_is_no_loss(before: SessionView) -> None:
    unsure = [replace(use, use=use.baseline, verdict="undecided") for use in before.uses]
    found = compare_sessions(replace(before, uses=tuple(unsure)), before, LIMIT)
    assert found.verdict == NO_REGRESSION
    assert {check.setting for check in found.checks if check.what == RECOMMENDED} == {"hip, QUEUES=4"}


def test_too_much_noise_to_tell(folder: Path, tmp_path: Path) -> None:
    found = against(folder, tmp_path, sd=0.1)
    assert (found.verdict, found.exit_code) == (CANNOT_TELL, 3)
    assert any("measure more" in check.note for check in found.checks)


def test_a_setting_that_no_longer_runs_is_a_regression(before: SessionView) -> None:
    def hung(view: SessionView) -> SessionView:
        rows = [
            replace(row, samples=(), change=None, verdict="hung", why="nothing came\n  for long")
            if row.role == CANDIDATE
            else row
            for row in view.rows
        ]
        return replace(view, rows=tuple(rows))

    found = compare_sessions(hung(before), before, LIMIT)
    lost = [check for check in found.checks if check.what == RECOMMENDED]
    assert {(check.verdict, check.note) for check in lost} == {(REGRESSION, "hung: nothing came")}
    assert found.exit_code == 1


def test_blocks_without_a_match_stand_side_by_side(before: SessionView, folder: Path, tmp_path: Path) -> None:
    def unmatched(view: SessionView) -> SessionView:
        rows = [replace(row, samples=tuple(replace(s, match=None) for s in row.samples)) for row in view.rows]
        return replace(view, rows=tuple(rows))

    slower = read_view(again(folder, tmp_path / "again", lambda _setting: 1.05))
    found = compare_sessions(unmatched(slower), before, LIMIT)
    assert {check.by for check in found.checks} <= {"processes", "blocks"}
    assert found.verdict == REGRESSION


def test_sessions_that_cannot_be_compared(before: SessionView) -> None:
    with pytest.raises(UsageError, match="target is engine there and simulated now"):
        compare_sessions(before, replace(before, target="engine"), LIMIT)
    server = replace(before, target="server", facts={"waves": 4})
    with pytest.raises(UsageError, match="waves is 8 there and 4 now"):
        compare_sessions(server, replace(server, facts={"waves": 8}), LIMIT)
    elsewhere = replace(before, rows=tuple(replace(row, load=Setting.of(concurrency=9)) for row in before.rows))
    with pytest.raises(UsageError, match="no load in common: concurrency 9 there, concurrency 1; concurrency 4 now"):
        compare_sessions(before, elsewhere, LIMIT)
    with pytest.raises(UsageError, match="--max-regression"):
        compare_sessions(before, before, -0.1)


def test_nothing_on_record_cannot_be_told(before: SessionView) -> None:
    empty = replace(before, rows=tuple(replace(row, samples=()) for row in before.rows))
    assert compare_sessions(empty, before, LIMIT).verdict == CANNOT_TELL
    assert compare_sessions(before, empty, LIMIT).verdict == CANNOT_TELL


def test_notes_name_other_machines_and_versions(before: SessionView) -> None:
    other = replace(before, machines=("elsewhere",), manifest={**before.manifest, "torch": "0.1"})
    notes = " ".join(compare_sessions(other, before, LIMIT).notes)
    assert "other machines" in notes
    assert "0.1 now" in notes


def test_exit_codes_are_as_documented() -> None:
    assert EXIT_CODES == {NO_REGRESSION: 0, REGRESSION: 1, CANNOT_TELL: 3}
