"""Sessions of one space merged into one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.errors import UsageError
from dsv4lab.tuning import merge
from dsv4lab.tuning.merge import merge_sessions
from dsv4lab.tuning.read_view import read_view
from dsv4lab.tuning.search.log import SearchLog
from dsv4lab.tuning.store import MANIFEST, RECORDS, StoreError, read_manifest, read_records, write_json
from dsv4lab.tuning.view import FINISHED, MEASURING
from tests.unit.searches import SPACE, rewritten, simulated, twin

Record = dict[str, Any]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same search on two machines; the second has another processor."""
    home = tmp_path_factory.mktemp("two")
    first = simulated(home / "first")
    second = twin(first, home / "second")
    write_json(second / MANIFEST, {**read_manifest(second), "cpu": "another CPU", "cpus": 99, "created": "later"})
    return first, second


def records_of(folder: Path) -> list[Record]:
    records, torn = read_records(folder / RECORDS)
    assert torn == 0
    return records


def bare(record: Record) -> Record:
    return {k: v for k, v in record.items() if k not in ("machine", "origin", "trial", "process")}


def kept(folder: Path) -> list[Record]:
    return [r for r in records_of(folder) if r["kind"] not in ("candidate", "outcome", "result")]


def test_all_records_are_there_with_their_machine(two: tuple[Path, Path], tmp_path: Path) -> None:
    found = merge_sessions(tmp_path / "both", two)
    records = records_of(tmp_path / "both")
    assert (found.sessions, found.records, found.duplicates, found.torn) == (2, len(records), 0, 0)
    assert [bare(r) for r in records] == [bare(r) for folder in two for r in kept(folder)]
    machines = list(dict.fromkeys(r["machine"] for r in records))
    assert len(machines) == 2
    assert machines[1].endswith("another CPU")
    assert read_manifest(tmp_path / "both") == read_manifest(two[0])


def test_trials_and_processes_keep_apart(two: tuple[Path, Path], tmp_path: Path) -> None:
    merge_sessions(tmp_path / "both", two)
    records = records_of(tmp_path / "both")
    for name in ("trial", "process"):
        owners: dict[int, set[str]] = {}
        for record in records:
            if record["kind"] == "block":
                owners.setdefault(record[name], set()).add(record["origin"]["session"])
        assert all(len(sessions) == 1 for sessions in owners.values())
    log = SearchLog.of(records, SPACE)
    assert len(log.claims) == sum(r["kind"] == "claim" for r in records)
    view = read_view(tmp_path / "both")
    assert view.state == MEASURING
    assert len(view.machines) == 2
    singles = [read_view(folder) for folder in two]
    for row in view.rows:
        pairs = [pair for one in singles for pair in (one.row(row.load, row.setting) or row).pairs]
        assert sorted(row.pairs) == sorted(pairs)


def test_what_came_in_before_is_dropped(two: tuple[Path, Path], tmp_path: Path) -> None:
    merge_sessions(tmp_path / "both", two)
    again = merge_sessions(tmp_path / "again", [tmp_path / "both", two[1], two[0], two[1]])
    assert [bare(r) for r in records_of(tmp_path / "again")] == [bare(r) for r in records_of(tmp_path / "both")]
    assert again.duplicates == len(kept(two[0])) + 2 * len(kept(two[1]))


def test_a_merged_session_goes_on(two: tuple[Path, Path], tmp_path: Path) -> None:
    merge_sessions(tmp_path / "both", two)
    before = len(records_of(tmp_path / "both"))
    simulated(tmp_path / "both", resume=True)
    view = read_view(tmp_path / "both")
    assert view.state == FINISHED
    assert all(use.gained for use in view.uses)
    explored = [r for r in records_of(tmp_path / "both")[before:] if r["kind"] == "claim" and r["phase"] == "explore"]
    assert explored == []


def test_a_torn_line_is_left_out(two: tuple[Path, Path], tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    torn.mkdir()
    write_json(torn / MANIFEST, read_manifest(two[0]))
    data = (two[0] / RECORDS).read_bytes()
    (torn / RECORDS).write_bytes(data[:-30])
    assert merge_sessions(tmp_path / "out", [torn]).torn == 1
    both = merge_sessions(tmp_path / "both", [torn, two[0]])
    assert both.sessions == 1
    assert [bare(r) for r in records_of(tmp_path / "both")] == [bare(r) for r in kept(two[0])]


def test_other_spaces_are_refused_by_the_field_that_differs(two: tuple[Path, Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    manifest = read_manifest(two[1])
    manifest["settings"]["target"]["base_ms"] = 11.0
    write_json(other / MANIFEST, manifest)
    (other / RECORDS).write_bytes(b"")
    with pytest.raises(UsageError, match=r"settings\.target\.base_ms is 10\.0 there and 11\.0 now"):
        merge_sessions(tmp_path / "both", [two[0], other])
    assert not (tmp_path / "both").exists()
    manifest["settings"] = {"sweep": {}}
    write_json(other / MANIFEST, manifest)
    with pytest.raises(UsageError, match=r"it is a sweep and cannot be merged with .*, a search"):
        merge_sessions(tmp_path / "both", [two[0], other])
    write_json(other / MANIFEST, {**manifest, "settings": {}})
    with pytest.raises(UsageError, match="settings is no sweep's and no search's"):
        merge_sessions(tmp_path / "both", [two[0], other])
    with pytest.raises(StoreError, match="there is no session"):
        merge_sessions(tmp_path / "both", [two[0], tmp_path / "none"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda space: space["baseline"].update(plan="hip"), r'space\.baseline\.plan is "off" there and "hip" now'),
        (lambda space: space["knobs"][0]["values"].remove("cuda"), r"space\.knobs\.plan\.values is \["),
        (lambda space: space["knobs"].pop(2), r"space\.knobs\.concurrency is \{.*\} there and null now"),
        (lambda space: space["knobs"].reverse(), r"space\.knobs is \["),
    ],
)
def test_the_knob_that_differs_is_named(
    two: tuple[Path, Path], tmp_path: Path, change: Callable[[Record], object], says: str
) -> None:
    other = twin(two[0], tmp_path / "other")
    manifest = read_manifest(other)
    change(manifest["settings"]["space"])
    write_json(other / MANIFEST, manifest)
    with pytest.raises(UsageError, match=rf"cannot be merged with .*, settings\.{says}"):
        merge_sessions(tmp_path / "both", [two[0], other])


def test_outputs_are_held_to_those_of_the_machine_that_goes_on(two: tuple[Path, Path], tmp_path: Path) -> None:
    """Another processor may round in another way; its reference is no reference here."""

    def rounded(record: Record) -> Record:
        if record["kind"] != "gate" or record["outputs"] is None:
            return record
        return {**record, "outputs": {**record["outputs"], "tokens": [[7, 7, 7]]}}

    elsewhere = rewritten(two[1], tmp_path / "elsewhere", rounded)
    merge_sessions(tmp_path / "both", [two[0], elsewhere])
    own = SearchLog.of(records_of(two[0]), SPACE).references
    assert SearchLog.of(records_of(tmp_path / "both"), SPACE).references == own
    simulated(tmp_path / "both", resume=True)
    assert read_view(tmp_path / "both").gates == ()


def test_a_setting_that_two_workers_of_a_study_measured_counts_once(two: tuple[Path, Path], tmp_path: Path) -> None:
    """A worker taken for dead that was only slow: both have measured, each against its own baseline."""
    merge_sessions(tmp_path / "both", two)
    simulated(tmp_path / "both", resume=True)
    (outcome,) = [r for r in records_of(tmp_path / "both") if r["kind"] == "outcome"]
    assert outcome["trials"] == outcome["own_trials"] == outcome["choices"]
    assert sum(level["tried"] for level in outcome["levels"]) == outcome["choices"]
    single = read_view(two[0])
    for row in read_view(tmp_path / "both").rows:
        alone = single.row(row.load, row.setting)
        assert alone is not None
        explored, before = ([s for s in one.samples if s.phase == "explore"] for one in (row, alone))
        assert len(explored) == 2 * len(before)
        assert len({sample.life for sample in explored}) == 2 * len({sample.life for sample in before})


def test_nothing_is_written_over(two: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("kept")
    with pytest.raises(UsageError, match="it exists; give a new folder"):
        merge_sessions(tmp_path / "taken", two)
    assert (tmp_path / "taken" / "file").read_text() == "kept"


def test_a_crash_leaves_no_half_of_it(two: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(merge.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        merge_sessions(tmp_path / "both", two)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []
    merge_sessions(tmp_path / "both", two)
    assert json.loads((tmp_path / "both" / MANIFEST).read_text())["schema"] == 1
