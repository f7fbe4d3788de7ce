"""Real Kineto files against answers worked out by a separate script, to the nanosecond."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4lab.errors import TraceError
from dsv4lab.timeline.intervals import depth_time
from dsv4lab.timeline.timeline import Kind
from dsv4lab.trace.api import Trace, load_trace

ROOT = Path(__file__).resolve().parents[2]
RECORDED: dict[str, dict[str, Any]] = json.loads((ROOT / "tests/golden/trace_expected.json").read_text())
KINETO = [name for name, want in RECORDED.items() if want["format"] == "kineto"]
SAMPLES = (
    "cuda_a100_4streams_rank3of8_A",
    "cuda_b200_pdl_overlap_rank0of8",
    "cuda_v100_4streams_graphs_rank1of2_B",
    "rocm_mi300x_ddp_2streams_rank0of8",
    "rocm_mi300x_flux_aiter_4graphs",
    "rocm_vllm_piecewise_25graphs",
)


def test_recorded_traces_are_what_the_manifest_says() -> None:
    manifest = json.loads((ROOT / "traces/MANIFEST.json").read_text())
    assert {entry["file"] for entry in manifest["files"]} == set(RECORDED)
    for entry in manifest["files"]:
        data = (ROOT / "traces" / entry["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
        assert all(entry[key] for key in ("repository", "path", "commit", "licence", "copyright"))


@pytest.mark.parametrize("name", KINETO)
def test_recorded_kineto_files_equal_their_answers(name: str) -> None:
    check(load_trace(ROOT / "traces" / name), RECORDED[name])


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_kineto_files_equal_their_answers(name: str, sample_traces: Path) -> None:
    file = f"{name}.pt.trace.json.gz"
    check(load_trace(sample_traces / file), json.loads((sample_traces / "expected.json").read_text())[file])


def check(trace: Trace, want: dict[str, Any]) -> None:
    """Every figure of ``expected.json`` that a timeline can answer."""
    busy, gpu, report = trace.stream_busy(), want["gpu"], trace.report
    assert report is not None
    assert (report.plain_bytes, report.events, report.rows) == (
        want["plain_bytes"],
        want["trace_events"],
        gpu["events"],
    )
    assert (report.lost_events, dict(report.repairs), report.truncated) == (0, {}, False)
    assert (busy.wall_ns, busy.union_busy_ns, busy.sum_dur_ns) == (gpu["span_ns"], gpu["union_ns"], gpu["sum_ns"])
    got = {s.stream: (s.events, s.sum_dur_ns, s.busy_ns) for s in busy.streams}
    assert got == {str(s["stream"]): (s["events"], s["sum_ns"], s["union_ns"]) for s in want["streams"]}
    assert busy.sum_busy_ns == sum(s["union_ns"] for s in want["streams"])
    check_depth(trace, gpu)
    check_rows(trace, want)


def check_depth(trace: Trace, gpu: dict[str, Any]) -> None:
    from dsv4lab.timeline.busy import lanes

    merged = [lane.busy for lane in lanes(trace)]
    depth = depth_time(np.concatenate([m.start for m in merged]), np.concatenate([m.end for m in merged]))
    assert sum(ns for level, ns in depth.items() if level >= 2) == gpu["two_or_more_ns"]
    assert max(depth) == gpu["most_at_once"]


def check_rows(trace: Trace, want: dict[str, Any]) -> None:
    kinds = {"kernel": Kind.KERNEL, "gpu_memcpy": Kind.MEMCPY, "gpu_memset": Kind.MEMSET}
    assert {k: n for k, kind in kinds.items() if (n := int((trace.kind == kind).sum()))} == want["kinds"]
    assert trace.report is not None
    assert trace.report.findings.get("rows without a launch", 0) == want["rows_without_launch"]
    assert trace.report.findings.get("cpu rows with a stream", 0) == want["cpu_rows_with_stream_arg"]
    assert trace.meta["devices"] == [str(d) for d in want["devices"]]
    groups = np.unique(trace.correlation[trace.busy_mask], return_counts=True)[1]
    assert int(groups.max()) == want["largest_correlation_group"]
    host = [trace.names[i] for i in trace.name[trace.kind == Kind.HOST]]
    assert sum("GraphLaunch" in name for name in host) == want["graph_launches"]
    on_gpu = (trace.kind == Kind.ANNOTATION) & (trace.stream != -1)
    notes = [trace.names[i] for i in trace.name[(trace.kind == Kind.ANNOTATION) & ~on_gpu]]
    assert len({n for n in notes if re.fullmatch(r"ProfilerStep#\d+", n)}) == want["profiler_steps"]


def test_old_rocm_streams_are_listed_as_queues_and_it_says_so() -> None:
    busy = load_trace(ROOT / "traces/rocm_mi300x_sglang_decode_hipgraph.pt.trace.json.gz").stream_busy()
    assert {q.queue: q.busy_ns for q in busy.queues} == {s.stream: s.busy_ns for s in busy.streams}
    assert any("hardware queue as 'stream'" in warning for warning in busy.warnings)


def test_a_cuda_trace_names_no_queues() -> None:
    busy = load_trace(ROOT / "traces/cuda_5streams_128ranks_rank0.pt.trace.json.gz").stream_busy()
    assert busy.queues == ()
    assert {s.queue for s in busy.streams} == {None}
    assert busy.warnings == ()


def test_a_truncated_file_keeps_every_complete_event(tmp_path: Path) -> None:
    whole = gzip.decompress((ROOT / "traces/rocm_mi300x_sglang_decode_hipgraph.pt.trace.json.gz").read_bytes())
    events = json.loads(whole)["traceEvents"]
    for cut in (len(whole) // 2, len(whole) // 2 + 71, len(whole) - 40):
        path = tmp_path / f"cut{cut}.json"
        path.write_bytes(whole[:cut])
        report = load_trace(path).report
        assert report is not None
        assert report.truncated
        complete = whole[:cut].count(b'}, {"ph"') + whole[:cut].count(b'}, {"name"')
        assert complete <= report.events <= min(complete + 1, len(events))
        assert report.lost_events == 0


def test_a_truncated_gzip_keeps_every_complete_event(tmp_path: Path) -> None:
    packed = (ROOT / "traces/cuda_5streams_128ranks_rank0.pt.trace.json.gz").read_bytes()
    path = tmp_path / "cut.json.gz"
    path.write_bytes(packed[: len(packed) * 2 // 3])
    trace = load_trace(path)
    assert trace.report is not None
    assert trace.report.truncated
    assert trace.report.events > 2000
    assert any("truncated" in warning and "cut.json.gz" in warning for warning in trace.warnings)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty file"),
        (b"hello, this is no trace at all\n", "not a trace that dsv4lab reads"),
        (b'{"schemaVersion": 1, "distributedInfo": {', "no traceEvents array"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kern', "truncated before the first complete event"),
        (b"\x1f\x8b\x08\x00garbage that is no deflate stream", "damaged from its start"),
    ],
)
def test_a_hopeless_file_is_one_clear_error(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=says) as caught:
        load_trace(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.json: .*[Nn]o such file"):
        load_trace(tmp_path / "nowhere.json")


def test_times_are_decimal_text_never_floats(tmp_path: Path) -> None:
    base = 1_795_979_313_826_630
    rows = ", ".join(
        f'{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": {base + i}.{i:03d}, "dur": 0.00{i}, '
        f'"args": {{"stream": 7}}}}'
        for i in range(1, 9)
    )
    path = tmp_path / "epoch.json"
    path.write_text(f'{{"traceEvents": [{rows}]}}')
    trace = load_trace(path)
    assert trace.start_ns.tolist() == [(base + i) * 1000 + i for i in range(1, 9)]
    assert trace.dur_ns.tolist() == list(range(1, 9))
