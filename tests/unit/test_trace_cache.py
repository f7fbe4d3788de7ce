"""The cache: the same timeline again, at once, and only while the file is the one it was made from."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from dsv4lab.timeline.timeline import COLUMNS
from dsv4lab.trace import cache
from dsv4lab.trace.api import load_trace
from dsv4lab.trace.load import load_file

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def trace_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache, "SMALLEST", 0)
    monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path / "cache")
    path = tmp_path / "t.pt.trace.json.gz"
    path.write_bytes((ROOT / "traces/rocm_mi300x_sglang_decode_hipgraph.pt.trace.json.gz").read_bytes())
    return path


def test_the_second_open_gives_the_same(trace_file: Path) -> None:
    first, second = load_trace(trace_file), load_trace(trace_file)
    assert first.report is not None
    assert second.report is not None
    assert (first.report.cached, second.report.cached) == (False, True)
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(first, column), getattr(second, column))
    assert (first.names, first.streams, first.queues, first.warnings) == (
        second.names,
        second.streams,
        second.queues,
        second.warnings,
    )
    assert first.stream_busy() == second.stream_busy()
    assert first.report.findings == second.report.findings


def test_a_changed_file_is_read_again(trace_file: Path) -> None:
    load_trace(trace_file)
    stat = trace_file.stat()
    os.utime(trace_file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    again = load_trace(trace_file)
    assert again.report is not None
    assert not again.report.cached


@pytest.mark.parametrize("hurt", ["empty", "short", "label", "column", "not parquet", "another table"])
def test_a_damaged_cache_is_read_again_and_said(trace_file: Path, hurt: str) -> None:
    whole = load_trace(trace_file)
    (stored,) = (trace_file.parent / "cache").iterdir()
    data = bytearray(stored.read_bytes())
    at = {"label": data.rindex(b"hipGraphLaunch"), "column": 2000}.get(hurt, 0)
    data[at] ^= 0x10
    stored.write_bytes({"empty": b"", "short": data[:-64], "not parquet": b"x" * 999}.get(hurt, data))
    if hurt == "another table":
        parquet.write_table(pyarrow.table({"start_ns": [1.5]}), stored)
    with pytest.raises(cache.DamagedCacheError, match="damaged cache"):
        cache.recall(trace_file)
    again = load_trace(trace_file)
    assert again.report is not None
    assert not again.report.cached
    assert again.warnings == (*whole.warnings, f"{trace_file.name}: its cache was damaged: the file was read again")
    third = load_trace(trace_file)
    assert third.report is not None
    assert third.report.cached
    assert third.warnings == whole.warnings


def test_a_cache_of_an_older_reader_is_stale(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_trace(trace_file)
    monkeypatch.setattr(cache, "READER", cache.READER + 1)
    assert cache.recall(trace_file) is None


def test_a_write_that_dies_leaves_the_old_cache(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline, report = load_file(trace_file)
    cache.remember(trace_file, timeline, report)

    def full(*words: object, **more: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(parquet, "ParquetWriter", full)
    cache.remember(trace_file, timeline, report)
    (stored,) = (trace_file.parent / "cache").iterdir()
    assert stored.suffix == ".parquet"
    assert cache.recall(trace_file) is not None


def test_the_cache_is_a_parquet_file_that_other_tools_open(trace_file: Path) -> None:
    trace = load_trace(trace_file)
    (stored,) = (trace_file.parent / "cache").iterdir()
    table = parquet.read_table(stored)
    assert table.column_names == list(COLUMNS)
    assert table["start_ns"].to_pylist() == trace.start_ns.tolist()


def test_no_cache_reads_and_writes_none(trace_file: Path) -> None:
    load_trace(trace_file, cache=False)
    assert not (trace_file.parent / "cache").exists()


def test_small_files_are_not_remembered(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SMALLEST", 1 << 20)
    load_trace(trace_file)
    assert not (trace_file.parent / "cache").exists()


def test_old_caches_make_room(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_trace(trace_file)
    monkeypatch.setattr(cache, "MOST_BYTES", 10)
    other = trace_file.with_name("u.pt.trace.json.gz")
    other.write_bytes(trace_file.read_bytes())
    load_trace(other)
    assert list((trace_file.parent / "cache").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_no_error(trace_file: Path) -> None:
    (trace_file.parent / "blocked").write_text("")
    timeline, report = load_file(trace_file)
    cache.remember(trace_file, timeline, report, trace_file.parent / "blocked" / "x")
    assert cache.recall(trace_file, trace_file.parent / "blocked" / "x") is None
