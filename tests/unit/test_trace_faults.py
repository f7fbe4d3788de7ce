"""Every planted fault on both platforms: no crash, no complete event lost, figures exact, each repair counted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4lab.timeline.timeline import Kind
from dsv4lab.trace.analyse.suspect import clip_overlong, overlong
from dsv4lab.trace.api import Trace, load_trace
from tools.gen_trace import FAULTS, PLATFORMS, Generator

COUNTED: dict[str, dict[str, int]] = {
    "zerodur": {"zero duration": 9},
    "negdur": {"negative duration, taken as 0": 1},
    "negts": {"times below zero": 64},
    "nostream": {"rows without a stream": 6, "rows out of time order": 1},
    "queueonly": {"rows without a stream": 64},
    "nan": {"non-finite number": 7},
    "badutf8": {"invalid utf-8": 1},
    "backslash": {"lone backslash": 1},
    "quote": {"bare quote": 8},
    "dupcorr": {"launches that share a correlation id": 8},
    "strnum": {"number as text": 128},
    "syncrow": {"sync or barrier rows": 3},
    "nodur": {"no duration": 1},
    "cpustream": {"cpu rows with a stream": 64},
    "orphan": {"rows without a launch": 11},
    "overflow": {
        "rows that run far past their successors": 1,
        "rows that overlap an earlier row of their stream": 28,
    },
    "overlap": {
        "rows that overlap an earlier row of their stream": 15,
        "rows that start before their launch": 8,
        "rows out of time order": 5,
    },
    "shuffle": {"rows out of time order": 27},
    "truncate": {},
    "annotation": {},
    "bigid": {},
    "epoch": {},
    "skew": {},
}
"""All that the load report counts for a fault; four of them need no repair and are no oddity of a single row."""


def write(path: Path, fault: str | None, platform: str) -> dict[str, Any]:
    buffer = io.BytesIO()
    truth = Generator(faults=[fault] if fault else [], platform=platform).write(buffer)
    path.write_bytes(buffer.getvalue())
    return truth.report()


def check(trace: Trace, truth: dict[str, Any]) -> None:
    busy, report = trace.stream_busy(), trace.report
    assert report is not None
    assert (report.events, report.rows, report.lost_events) == (truth["events"], truth["rows"], 0)
    lanes = {s.stream: (s.events, s.sum_dur_ns, s.busy_ns) for s in busy.streams}
    lanes = lanes or {q.queue: (q.events, q.sum_dur_ns, q.busy_ns) for q in busy.queues}
    assert lanes == {key: (v["events"], v["sum_ns"], v["busy_ns"]) for key, v in truth["lanes"].items()}
    assert busy.union_busy_ns == truth["union_ns"]


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_planted_fault(tmp_path: Path, fault: str, platform: str) -> None:
    path = tmp_path / "trace.json"
    truth = write(path, fault, platform)
    trace = load_trace(path)
    check(trace, truth)
    assert trace.report is not None
    assert {**trace.report.repairs, **trace.report.findings} == COUNTED[fault]
    assert trace.report.truncated == (fault == "truncate") == (trace.report.lost_bytes > 0)
    if fault in ("nan", "badutf8", "backslash", "quote", "strnum", "truncate"):
        assert any(path.name in warning for warning in trace.warnings)


def test_every_fault_has_its_counts() -> None:
    assert set(COUNTED) == set(FAULTS)
    assert len(FAULTS) == 23


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_clean_trace_counts_nothing(tmp_path: Path, platform: str) -> None:
    truth = write(tmp_path / "trace.json", None, platform)
    trace = load_trace(tmp_path / "trace.json")
    check(trace, truth)
    assert trace.report is not None
    assert (dict(trace.report.repairs), dict(trace.report.findings), trace.warnings) == ({}, {}, ())


def test_all_faults_of_one_kind_of_damage_at_once(tmp_path: Path) -> None:
    faults = ["overlap", "zerodur", "epoch", "nan", "badutf8", "backslash", "quote", "strnum", "shuffle", "orphan"]
    buffer = io.BytesIO()
    truth = Generator(faults=faults, platform="rocm").write(buffer, steps=3).report()
    path = tmp_path / "trace.json"
    path.write_bytes(buffer.getvalue())
    check(load_trace(path), truth)


def test_the_new_rocm_exporter_names_queues_beside_streams(tmp_path: Path) -> None:
    write(tmp_path / "trace.json", None, "rocm")
    trace = load_trace(tmp_path / "trace.json")
    assert sorted(trace.queues) == ["0", "1", "2", "3"]
    assert trace.report is not None
    assert trace.report.exporter == "kineto rocm, with hardware queues"
    assert trace.warnings == ()


def test_rows_know_their_launch_and_their_operator(tmp_path: Path) -> None:
    write(tmp_path / "trace.json", None, "cuda")
    trace = load_trace(tmp_path / "trace.json")
    gpu = trace.busy_mask
    launches = {int(c): int(t) for c, t in zip(trace.correlation[~gpu], trace.start_ns[~gpu], strict=True)}
    assert trace.queued_ns[gpu].tolist() == [launches[int(c)] for c in trace.correlation[gpu]]
    assert {trace.names[i] for i in trace.op[gpu]} >= {"dsv4::gemm_bf16", "dsv4::fused_moe_kernel"}


def test_a_repeated_id_belongs_to_the_latest_launch_before_the_row(tmp_path: Path) -> None:
    write(tmp_path / "trace.json", "dupcorr", "cuda")
    trace = load_trace(tmp_path / "trace.json")
    gpu = trace.busy_mask & (trace.correlation == 1001)
    launches = np.sort(trace.start_ns[(trace.kind == Kind.HOST) & (trace.correlation == 1001)])
    for start, queued in zip(trace.start_ns[gpu].tolist(), trace.queued_ns[gpu].tolist(), strict=True):
        assert queued == launches[launches <= start].max()


def test_an_overlong_row_is_flagged_and_clipped_only_on_request(tmp_path: Path) -> None:
    write(tmp_path / "trace.json", "overflow", "rocm")
    trace = load_trace(tmp_path / "trace.json")
    (row,) = overlong(trace)
    assert trace.dur_ns[row] == 4_000_000
    assert any("run far past their successors" in warning for warning in trace.warnings)
    clipped = clip_overlong(trace)
    assert clipped.dur_ns[row] < 100_000
    assert len(overlong(clipped)) == 0
    assert (np.delete(clipped.dur_ns, row) == np.delete(trace.dur_ns, row)).all()


def test_keys_after_the_events_and_events_in_one_line_each(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    truth = Generator(platform="rocm").write(buffer).report()
    head, _, events = buffer.getvalue().decode().partition('  "traceEvents": [\n')
    body, _, tail = events.rpartition("\n  ],")
    lines = body.replace("\n    ", " ").replace("\n  }", "}").replace("{\n", "{")
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{lines}], {head.strip().lstrip("{").rstrip(",")}, {tail.strip()}')
    trace = load_trace(path)
    check(trace, truth)
    assert trace.meta["platform"] == "rocm"
    assert trace.meta["gpus"] == ["AMD Instinct MI355X"]


@pytest.mark.parametrize("size", [1 << 12, 1 << 14, 1 << 20])
def test_the_size_of_the_chunks_does_not_matter(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from dsv4lab.trace.load import source

    monkeypatch.setattr(source, "CHUNK", size)
    monkeypatch.setattr(source.Source.__init__, "__defaults__", (size,))
    truth = write(tmp_path / "trace.json", "quote", "rocm")
    check(load_trace(tmp_path / "trace.json"), truth)
