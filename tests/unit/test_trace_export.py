"""What is written reads back to the same columns, here and in the tools people have."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.errors import TraceError
from dsv4lab.timeline.timeline import COLUMNS, Kind, Timeline
from dsv4lab.trace.api import load_trace
from dsv4lab.trace.export import export_kineto, export_run, safe_file_part

ROOT = Path(__file__).resolve().parents[2]


def cpu_run(rows: int = 40) -> Timeline:
    """A CPU-device run: three streams on two queues, barriers, three steps."""
    start = np.arange(rows, dtype=np.int64) * 1_300 + 1_795_979_313_826_630_896
    at = np.arange(rows)
    return Timeline.build(
        start_ns=start,
        dur_ns=900 + at,
        queued_ns=start - 500,
        stream=at % 3,
        queue=at % 2,
        name=at % 4,
        kind=np.where(at % 10 == 9, int(Kind.WAIT), int(Kind.KERNEL)),
        correlation=at,
        step=at * 3 // rows,
        layer=np.where(at % 4 == 0, -1, at % 5),
        names=["compressor.gemm", 'odd "name"\n\\ \x1b[31m', "ünïcode ✓", "head"],
        streams=["main", "side0", "side1"],
        queues=["0", "1"],
        main_stream="main",
        meta={"platform": "cpu", "step_modes": {"0": "prefill", "1": "decode", "2": "decode"}},
    )


def same(a: Timeline, b: Timeline) -> None:
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(a, column), getattr(b, column), err_msg=column)
    assert (a.names, a.streams, a.queues, a.main_stream) == (b.names, b.streams, b.queues, b.main_stream)


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_cpu_run_reads_back_unchanged(tmp_path: Path, suffix: str) -> None:
    line = cpu_run()
    back = load_trace(export_kineto(line, tmp_path / f"run{suffix}"))
    same(line, back)
    assert back.stream_busy() == line.stream_busy()
    assert back.report is not None
    assert back.report.exporter == "dsv4lab"
    assert back.steps().column("mode") == ["prefill", "decode", "decode"]


@given(
    st.lists(
        st.tuples(
            st.integers(-(10**18), 10**18),
            st.integers(0, 10**12),
            st.integers(-1, 2),
            st.integers(-1, 1),
            st.integers(0, 3),
            st.sampled_from(list(Kind)),
            st.integers(-1, 2**62),
            st.integers(-1, 99),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_any_timeline_reads_back_unchanged(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    start, dur, stream, queue, name, kind, correlation, step = zip(*rows, strict=True)
    line = Timeline.build(
        start_ns=start,
        dur_ns=dur,
        stream=stream,
        queue=queue,
        name=name,
        kind=[int(k) for k in kind],
        correlation=correlation,
        step=step,
        names=["a", "b/c", "ProfilerStep#3", ""],
        streams=["main", "7", "x y"],
        queues=["0", "hsa 1"],
        meta={"platform": "cpu"},
    )
    same(line, load_trace(export_kineto(line, tmp_path_factory.mktemp("any") / "run.json")))


@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "traces").glob("*.pt.trace.json.gz")))
def test_a_real_trace_reads_back_unchanged(tmp_path: Path, name: str) -> None:
    line = load_trace(ROOT / "traces" / name)
    same(line, load_trace(export_kineto(line, tmp_path / "again.json.gz")))


def test_the_file_is_plain_chrome_json_with_a_track_for_every_stream_and_queue(tmp_path: Path) -> None:
    path = export_kineto(cpu_run(), tmp_path / "run.json.gz")
    data = json.loads(gzip.decompress(path.read_bytes()))
    tracks = {e["args"]["name"] for e in data["traceEvents"] if e["name"] == "thread_name"}
    assert tracks == {"stream main", "stream side0", "stream side1", "queue 0", "queue 1"}
    by_category: dict[str, int] = {}
    for event in data["traceEvents"]:
        if event["ph"] == "X":
            by_category[event["cat"]] = by_category.get(event["cat"], 0) + 1
    assert by_category["kernel"] == by_category["hw_queue"] == 36
    assert {e["ph"] for e in data["traceEvents"]} == {"M", "X", "C"}


def test_a_run_folder_has_the_name_that_tensorboard_looks_for(tmp_path: Path) -> None:
    path = export_run(cpu_run(), tmp_path / "run", worker="../host\n1", time_ns=17)
    assert path.name == "_host_1.17.pt.trace.json.gz"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("text", "part"), [("", "unnamed"), ("..", "unnamed"), ("a/b\\c", "a_b_c"), ("ok-1.2", "ok-1.2")]
)
def test_names_become_harmless_file_parts(text: str, part: str) -> None:
    assert safe_file_part(text) == part


def test_a_folder_that_cannot_be_made_is_a_trace_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot be written"):
        export_kineto(cpu_run(), tmp_path / "file" / "run.json")


def tensorboard_profile(path: Path, scratch: Path) -> Any:
    data = pytest.importorskip("torch_tb_profiler.profiler.data", reason="torch-tb-profiler is not installed")
    logging.getLogger("tensorboard").setLevel(logging.CRITICAL)
    return data.RunProfileData.parse("worker", None, str(path), str(scratch))


def test_tensorboard_s_plugin_counts_what_we_count(tmp_path: Path) -> None:
    line = cpu_run()
    profile = tensorboard_profile(export_run(line, tmp_path), tmp_path)
    assert profile.has_kernel
    assert profile.steps_names == ["0", "1", "2"]
    kernels = profile.kernel_stat
    assert kernels["count"].sum() == int((line.kind == Kind.KERNEL).sum())
    assert round(kernels["sum"].sum() * 1000) == int(line.dur_ns[line.busy_mask].sum())


@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "traces").glob("*.pt.trace.json.gz")))
def test_tensorboard_s_plugin_sees_the_same_gpu_in_a_real_trace_and_in_our_copy(tmp_path: Path, name: str) -> None:
    ours = export_kineto(load_trace(ROOT / "traces" / name), tmp_path / "again.pt.trace.json.gz")
    first, second = (tensorboard_profile(p, tmp_path) for p in (ROOT / "traces" / name, ours))
    assert first.kernel_stat["count"].sum() == second.kernel_stat["count"].sum()
    assert first.kernel_stat["sum"].sum() == pytest.approx(second.kernel_stat["sum"].sum(), rel=1e-9)
    if first.steps_names != ["0"]:
        assert first.steps_names == second.steps_names
        assert first.gpu_metrics_parser.gpu_utilization == pytest.approx(second.gpu_metrics_parser.gpu_utilization)


@pytest.mark.parametrize("name", ["own", *sorted(p.name for p in (ROOT / "traces").glob("rocm*.pt.trace.json.gz"))])
def test_torch_s_own_validator_has_no_complaint(tmp_path: Path, name: str) -> None:
    validator = pytest.importorskip("torch.profiler._trace_validator", reason="this torch has no trace validator")
    line = cpu_run() if name == "own" else load_trace(ROOT / "traces" / name)
    good, complaints = validator.validate_trace(str(export_kineto(line, tmp_path / "run.json.gz")))
    assert good, complaints
