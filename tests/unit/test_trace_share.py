"""Two processes read a file as one does, and one reads it where two cannot."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from dsv4lab.timeline.timeline import COLUMNS, Timeline
from dsv4lab.trace.load import kineto, share, source
from dsv4lab.trace.load.report import LoadReport
from tools.gen_trace import Generator

ROOT = Path(__file__).resolve().parents[2]


def alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Timeline, LoadReport]:
    with monkeypatch.context() as patch:
        patch.setattr(share, "SMALLEST", 1 << 60)
        return kineto.read_kineto(path)


def same(a: tuple[Timeline, LoadReport], b: tuple[Timeline, LoadReport]) -> None:
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(a[0], column), getattr(b[0], column), err_msg=column)
    for what in ("names", "streams", "queues", "main_stream", "meta", "warnings"):
        assert getattr(a[0], what) == getattr(b[0], what)
    assert a[1] == b[1]


@pytest.mark.parametrize("faults", [(), ("quote", "nan", "badutf8", "strnum", "shuffle"), ("truncate", "dupcorr")])
def test_two_processes_find_what_one_finds(
    tmp_path: Path, faults: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.pt.trace.json"
    with path.open("wb") as file:
        Generator(faults=faults, platform="rocm").write(file, steps=3, layers=80)
    assert path.stat().st_size > 3 * source.CHUNK
    shared = kineto._read_shared(path, None)
    assert shared is not None
    same(shared, alone(path, monkeypatch))


def test_a_recorded_trace_by_a_relative_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "traces")
    path = Path("cuda_5streams_128ranks_rank0.pt.trace.json.gz")
    shared = kineto._read_shared(path, None)
    assert shared is not None
    same(shared, alone(path, monkeypatch))


def test_a_helper_that_cannot_start_leaves_the_file_to_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    buffer = io.BytesIO()
    Generator().write(buffer)
    path.write_bytes(buffer.getvalue())
    monkeypatch.setattr(share.sys, "executable", "/no/such/python")
    assert kineto._read_shared(path, None) is None
    monkeypatch.setattr(share, "is_worth_it", lambda _: True)
    assert kineto.read_kineto(path)[1].rows == 64


def test_events_that_end_early_are_read_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    Generator(platform="rocm").write(buffer, steps=1, layers=40)
    head, _, _ = buffer.getvalue().rpartition(b"\n  ],")
    tail = (
        b'"deviceProperties": [' + b",".join(b'{"name": "GPU", "x": "%s"}' % (b"y" * 90) for _ in range(40_000)) + b"]"
    )
    path = tmp_path / "t.json"
    path.write_bytes(head + b"\n  ],\n" + tail + b"}")
    assert kineto._read_shared(path, None) is None
    _, report = alone(path, monkeypatch)
    assert (report.rows, report.lost_events, dict(report.repairs)) == (320, 0, {})


def test_small_files_and_busy_machines_get_no_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b"x" * 100)
    assert not share.is_worth_it(path)
    monkeypatch.setattr(share, "SMALLEST", 10)
    monkeypatch.setattr(share.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(share.os, "getloadavg", lambda: (0.1, 0.1, 0.1), raising=False)
    assert share.is_worth_it(path)
    monkeypatch.setattr(share.os, "getloadavg", lambda: (4.0, 4.0, 4.0), raising=False)
    assert not share.is_worth_it(path)
