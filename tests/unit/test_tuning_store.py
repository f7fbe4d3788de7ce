from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsv4lab.errors import UsageError
from dsv4lab.tuning.store import (
    MANIFEST,
    RECORDS,
    SessionStore,
    StoreError,
    first_difference,
    read_records,
    write_json,
)

SETUP = {"preset": "tiny", "settings": {"sweep": {"plans": ["off", "hip"]}}, "created": "2026-01-01"}


def make(folder: Path, trials: int = 3) -> None:
    with SessionStore.create(folder, SETUP) as store:
        for n in range(trials):
            store.append("trial", number=n, text="µs \N{MULTIPLICATION SIGN}\n")


def numbers(folder: Path) -> list[int]:
    return [r["number"] for r in read_records(folder / RECORDS)[0] if r["kind"] == "trial"]


def test_records_come_back_in_order(tmp_path: Path) -> None:
    make(tmp_path / "a" / "b")
    with SessionStore.resume(tmp_path / "a" / "b", {**SETUP, "created": "later"}) as store:
        assert [record["number"] for record in store.of_kind("trial")] == [0, 1, 2]
        assert store.torn == 0
        store.append("trial", number=3)
        assert [record["number"] for record in store.of_kind("trial")] == [0, 1, 2, 3]
    assert numbers(tmp_path / "a" / "b") == [0, 1, 2, 3]


def test_a_crash_at_any_byte_loses_at_most_the_line_in_flight(tmp_path: Path) -> None:
    make(tmp_path / "whole")
    whole = (tmp_path / "whole" / RECORDS).read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(ends[0], len(whole) + 1):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        write_json(folder / MANIFEST, {"schema": 1, **SETUP})
        (folder / RECORDS).write_bytes(whole[:cut])
        with SessionStore.resume(folder, SETUP) as store:
            # A line that lacks only its newline is whole.
            complete = sum(end <= cut + 1 for end in ends)
            assert len(list(store.of_kind("trial"))) == complete - 1
            assert store.torn == (0 if cut in ends or cut + 1 in ends else 1)
            store.append("trial", number=99)
        kept = numbers(folder)
        assert kept[-1] == 99
        assert kept[:-1] == list(range(complete - 1))


def test_what_was_written_is_never_changed(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / RECORDS
    torn = path.read_bytes() + b'{"kind":"trial","num'
    path.write_bytes(torn)
    with SessionStore.resume(tmp_path, SETUP) as store:
        store.append("trial", number=7)
    assert path.read_bytes().startswith(torn + b"\n")


def test_zeros_after_a_power_cut_are_skipped(tmp_path: Path) -> None:
    make(tmp_path)
    with (tmp_path / RECORDS).open("ab") as file:
        file.write(b"\0" * 100)
    with SessionStore.resume(tmp_path, SETUP) as store:
        store.append("trial", number=3)
    assert numbers(tmp_path) == [0, 1, 2, 3]


def test_a_new_session_never_overwrites_an_old_one(tmp_path: Path) -> None:
    make(tmp_path)
    before = (tmp_path / RECORDS).read_bytes()
    with pytest.raises(UsageError, match="already holds a session; use --resume"):
        SessionStore.create(tmp_path, SETUP)
    assert (tmp_path / RECORDS).read_bytes() == before


def test_a_crash_before_the_manifest_leaves_a_folder_that_can_be_used(tmp_path: Path) -> None:
    (tmp_path / RECORDS).touch()
    make(tmp_path)
    assert numbers(tmp_path) == [0, 1, 2]


def test_another_sessions_records_are_not_continued(tmp_path: Path) -> None:
    make(tmp_path)
    other = {**SETUP, "settings": {"sweep": {"plans": ["off", "cuda"]}}}
    with pytest.raises(UsageError, match=r'settings\.sweep\.plans is \["off", "hip"\] there and \["off", "cuda"\] now'):
        SessionStore.resume(tmp_path, other)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with SessionStore.create(tmp_path, SETUP), pytest.raises(StoreError, match="in use by another session"):
        SessionStore.resume(tmp_path, SETUP)
    SessionStore.resume(tmp_path, SETUP).close()


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none/manifest\.json: there is no session here \(No such file"):
        SessionStore.resume(tmp_path / "none", SETUP)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(StoreError, match="is damaged"):
        SessionStore.resume(tmp_path, SETUP)
    (tmp_path / MANIFEST).write_text(json.dumps({"schema": 99}))
    with pytest.raises(StoreError, match="not a session manifest of schema 1"):
        SessionStore.resume(tmp_path, SETUP)


def test_unusable_folders_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot make the session folder"):
        SessionStore.create(tmp_path / "file" / "sub", SETUP)


def test_first_difference_follows_json() -> None:
    assert first_difference({"a": [1, 2]}, {"a": (1, 2)}) is None
    assert first_difference({"a": 1}, {"a": 1, "b": 2}) == "b is null there and 2 now"


def test_json_files_are_replaced_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"n": 1})
    write_json(tmp_path / "x.json", {"n": 2})
    assert json.loads((tmp_path / "x.json").read_text()) == {"n": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
