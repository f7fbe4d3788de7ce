"""Sweeps of several machines merged into one: rounds of their own, one candidate, the first machine's outputs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.config.engine import EngineConfig
from dsv4lab.errors import UsageError
from dsv4lab.tuning.against import compare_sessions
from dsv4lab.tuning.merge import merge_sessions
from dsv4lab.tuning.read_view import read_view
from dsv4lab.tuning.reading import CONFIRMING, MEASURING, read_session
from dsv4lab.tuning.session import SessionResult, run_session
from dsv4lab.tuning.space import Cell, SweepSpace
from dsv4lab.tuning.store import MANIFEST, RECORDS, read_manifest, read_records, record_line, write_json
from dsv4lab.tuning.summary_markdown import markdown
from dsv4lab.tuning.summary_page import summary_page
from dsv4lab.tuning.trial import CONFIRM, EXPLORE
from tests.unit.test_tuning_session import CONFIG, SPACE, FakeTarget, Machine

Record = dict[str, Any]


def sweep(folder: Path, machine: Machine, *, space: SweepSpace = SPACE, resume: bool = False) -> SessionResult:
    def start(config: EngineConfig) -> FakeTarget:
        return FakeTarget(machine, config)

    return run_session(space, CONFIG, folder, open_target=start, tell=lambda *_: None, resume=resume)


def changed(folder: Path, **fields: Any) -> Path:
    write_json(folder / MANIFEST, {**read_manifest(folder), **fields})
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same sweep on two machines; the second gives other tokens for the same prompts, as another CPU may."""
    home = tmp_path_factory.mktemp("two")
    sweep(home / "first", Machine(gain=0.2))
    sweep(home / "second", Machine(gain=0.1, corrupt=lambda _config, _plan, _load: True))
    return home / "first", changed(home / "second", cpu="another CPU", cpus=99)


def trials(folder: Path) -> list[Record]:
    return [r for r in read_records(folder / RECORDS)[0] if r["kind"] == "trial"]


def bare(record: Record) -> Record:
    return {k: v for k, v in record.items() if k not in ("machine", "origin", "round")}


def test_no_trial_is_lost_or_counted_twice_and_each_keeps_its_machine(two: tuple[Path, Path], tmp_path: Path) -> None:
    both = tmp_path / "both"
    found = merge_sessions(both, [*two, two[0]])
    assert found.sessions == 2
    merged = trials(both)
    assert [bare(r) for r in merged] == [bare(r) for folder in two for r in trials(folder)]
    assert found.duplicates >= len(trials(two[0]))
    assert {r["machine"] for r in merged} == {read_manifest(folder)["cpu"] for folder in two}
    reading = read_session(both)
    assert len({trial.key for trial in reading.trials}) == len(reading.trials) == len(merged)
    assert reading.space.rounds == 2
    rounds = {(r["machine"] == "another CPU", r["phase"], r["round"]) for r in merged}
    assert rounds == {(False, EXPLORE, 0), (True, EXPLORE, 1), (False, CONFIRM, 2), (True, CONFIRM, 3)}


def test_the_candidate_of_all_is_decided_by_the_confirming_pairs_of_all(two: tuple[Path, Path], tmp_path: Path) -> None:
    both = tmp_path / "both"
    merge_sessions(both, two)
    reading = read_session(both)
    assert reading.phase == CONFIRMING
    assert reading.recommendation is not None
    assert reading.recommendation.difference is not None
    assert reading.recommendation.difference.pairs == 2 * SPACE.confirm
    view = read_view(both)
    assert sorted(view.machines) == sorted(read_manifest(folder)["cpu"] for folder in two)
    for row in view.rows:
        singles = [read_view(folder).row(row.load, row.setting) for folder in two]
        if row.role != "control":
            assert len(row.samples) == sum(len(one.samples) for one in singles if one)
    assert "another CPU" in summary_page(view)
    assert "| Concurrency | TPOT before (ms) |" in markdown(view)
    found = compare_sessions(view, read_view(two[0]), 0.5)
    assert found.checks


def test_a_merged_sweep_goes_on_with_the_outputs_of_its_first_machine(two: tuple[Path, Path], tmp_path: Path) -> None:
    both, machine = tmp_path / "both", Machine(gain=0.2)
    merge_sessions(both, two)
    with pytest.raises(UsageError, match=r"settings\.sweep\.rounds is 2 there and 1 now"):
        sweep(both, machine, resume=True)
    before = trials(both)
    result = sweep(both, machine, space=SweepSpace(**{**vars_of(SPACE), "rounds": 2}), resume=True)
    assert result.identical
    assert trials(both) == before  # nothing was left to measure
    assert result.recommendation is not None
    assert result.recommendation.verdict == "faster"


def test_what_a_kill_left_open_is_measured_after_merging(two: tuple[Path, Path], tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(two[1], torn)
    data = (torn / RECORDS).read_bytes().splitlines(keepends=True)
    (torn / RECORDS).write_bytes(b"".join(data[: len(data) // 3]) + data[-1][:9])
    both = tmp_path / "both"
    assert merge_sessions(both, [two[0], torn]).torn == 1
    assert read_session(both).phase == MEASURING  # a candidate is picked from all of it
    before = trials(both)
    result = sweep(both, Machine(), space=SweepSpace(**{**vars_of(SPACE), "rounds": 2}), resume=True)
    assert trials(both)[: len(before)] == before
    assert len(trials(both)) > len(before)
    assert result.recommendation is not None
    with pytest.raises(UsageError, match="it was merged and gone on with; merge the sessions that it was made of"):
        merge_sessions(tmp_path / "more", [both, two[0]])


def test_a_merge_can_be_merged(two: tuple[Path, Path], tmp_path: Path) -> None:
    third = tmp_path / "third"
    sweep(third, Machine(gain=0.15))
    merge_sessions(tmp_path / "both", two)
    merge_sessions(tmp_path / "all", [tmp_path / "both", two[0], third])
    assert [bare(r) for r in trials(tmp_path / "all")] == [bare(r) for one in (*two, third) for r in trials(one)]
    assert read_session(tmp_path / "all").space.rounds == 3


def test_pairs_of_another_candidate_stay_out_of_the_figures(two: tuple[Path, Path], tmp_path: Path) -> None:
    """One machine had nominated another queue count: its confirming trials are kept, and decide nothing."""
    other = tmp_path / "other"
    shutil.copytree(two[1], other)
    lines = []
    for record in read_records(other / RECORDS)[0]:
        if record["kind"] == "trial" and record["phase"] == CONFIRM and record["cell"]["plan"] != "off":
            record["cell"]["plan"] = "third"
        lines.append(record)
    (other / RECORDS).write_text("".join(map(record_line, lines)))
    merge_sessions(tmp_path / "both", [two[0], other])
    reading, alone = read_session(tmp_path / "both"), read_session(two[0])
    assert reading.recommendation is not None
    assert alone.recommendation is not None
    assert reading.recommendation.levels == alone.recommendation.levels
    off = Cell("off", 2, 1)
    assert len(reading.trials_of(off, CONFIRM)) == 2 * len(alone.trials_of(off, CONFIRM))
    assert [use.tokens_per_s for use in read_view(tmp_path / "both").uses] == [
        use.tokens_per_s for use in read_view(two[0]).uses
    ]
    assert reading.trials_of(off, EXPLORE)


def test_other_sweeps_and_other_outputs_are_refused(two: tuple[Path, Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(two[1], other)
    manifest = read_manifest(other)
    for name, value, said in (
        ("plans", [*manifest["settings"]["sweep"]["plans"], {"name": "cuda", "setting": "cuda"}], "plans.cuda"),
        ("confirm", 7, "confirm is 6 there and 7 now"),
        ("load", {"prompt_tokens": 9, "max_new_tokens": 4, "seed": 0}, "load.prompt_tokens is 8 there and 9 now"),
    ):
        sweep_now = {**manifest["settings"]["sweep"], name: value}
        changed(other, settings={**manifest["settings"], "sweep": sweep_now})
        with pytest.raises(UsageError, match=rf"cannot be merged with .*, settings\.sweep\.{said}"):
            merge_sessions(tmp_path / "both", [two[0], other])
    wrong = tmp_path / "wrong"
    sweep(wrong, Machine(corrupt=lambda _config, plan, _load: plan == "hip"))
    with pytest.raises(UsageError, match="its outputs differ, so none of its times compare: prompt 0"):
        merge_sessions(tmp_path / "both", [two[0], wrong])
    assert not (tmp_path / "both").exists()


def vars_of(space: SweepSpace) -> dict[str, Any]:
    return {name: getattr(space, name) for name in SweepSpace.__slots__}
