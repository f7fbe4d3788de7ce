"""rocprofv3, rocpd, Nsight Systems and directories of ranks."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4lab.errors import TraceError
from dsv4lab.timeline.timeline import Kind
from dsv4lab.trace.api import load_trace
from dsv4lab.trace.collectives import arrival_skew, is_collective
from tools.gen_trace import Generator

ROOT = Path(__file__).resolve().parents[2]
WANT: dict[str, dict[str, Any]] = json.loads((ROOT / "tests/golden/trace_expected.json").read_text())
CSV = "rocm_rocprofv3_4queues_kernel_trace.csv"
ROCPD = "rocm_rocpd_schema_sample.db"
JSON = "rocm_mi350x_rocprofv3_5queues.results.json.gz"


def figures(entries: list[dict[str, Any]], key: str) -> dict[str, tuple[int, int, int]]:
    return {str(e[key]): (e["events"], e["sum_ns"], e["union_ns"]) for e in entries}


def test_rocprof_csv_has_queues_and_says_that_it_has_no_streams() -> None:
    busy = load_trace(ROOT / "traces" / CSV).stream_busy()
    gpu = WANT[CSV]["gpu"]
    assert (busy.wall_ns, busy.union_busy_ns, busy.sum_dur_ns) == (gpu["span_ns"], gpu["union_ns"], gpu["sum_ns"])
    assert {q.queue: (q.events, q.sum_dur_ns, q.busy_ns) for q in busy.queues} == figures(WANT[CSV]["queues"], "queue")
    assert busy.streams == ()
    assert any("no streams" in warning for warning in busy.warnings)


def test_rocprof_csv_reads_the_files_beside_it_and_skips_broken_rows(tmp_path: Path) -> None:
    (tmp_path / "1_kernel_trace.csv").write_text(
        '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
        '"Start_Timestamp","End_Timestamp"\n'
        '"KERNEL_DISPATCH","Agent 4",1,2,9,1,7,"gemm, ""big""",11,1000,2000\n'
        '"KERNEL_DISPATCH","Agent 4",1,2,9,2,7,"gemm",12,abc,2000\n"KERNEL_DISPATCH","Agent 4",1\n'
    )
    (tmp_path / "1_memory_copy_trace.csv").write_text(
        '"Kind","Direction","Stream_Id","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp",'
        '"End_Timestamp"\n"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",2,"Agent 0","Agent 4",13,1500,1700\n'
    )
    (tmp_path / "1_hip_api_trace.csv").write_text(
        '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
        '"HIP_RUNTIME_API","hipLaunchKernel",1,9,11,400,500\n'
    )
    trace = load_trace(tmp_path / "1_kernel_trace.csv")
    assert trace.report is not None
    assert (trace.report.lost_events, trace.report.rows) == (2, 2)
    assert trace.kind.tolist() == [Kind.KERNEL, Kind.MEMCPY, Kind.HOST]
    assert trace.names[trace.name[0]] == 'gemm, "big"'
    assert trace.queued_ns.tolist() == [400, -1, -1]
    assert trace.streams == ("2",)
    assert trace.meta["devices"] == ["4"]


def test_rocpd() -> None:
    trace = load_trace(ROOT / "traces" / ROCPD)
    busy, gpu = trace.stream_busy(), WANT[ROCPD]["gpu"]
    assert (busy.wall_ns, busy.union_busy_ns, busy.sum_dur_ns) == (gpu["span_ns"], gpu["union_ns"], gpu["sum_ns"])
    assert {s.stream: (s.events, s.sum_dur_ns, s.busy_ns) for s in busy.streams} == figures(
        WANT[ROCPD]["streams"], "stream"
    )
    assert (trace.kind == Kind.KERNEL).sum() == WANT[ROCPD]["kernels"]
    assert (trace.kind == Kind.MEMCPY).sum() == WANT[ROCPD]["copies"]


def test_rocprof_json(sample_traces: Path) -> None:
    want = json.loads((sample_traces / "expected.json").read_text())[JSON]
    trace = load_trace(sample_traces / JSON)
    busy, gpu = trace.stream_busy(), want["gpu"]
    assert (busy.wall_ns, busy.union_busy_ns, busy.sum_dur_ns) == (gpu["span_ns"], gpu["union_ns"], gpu["sum_ns"])
    assert {q.queue: (q.events, q.sum_dur_ns, q.busy_ns) for q in busy.queues} == figures(want["queues"], "queue")
    streams = {s.stream: (s.events, s.sum_dur_ns, s.busy_ns) for s in busy.streams}
    assert len(streams) == want["streams_total"]
    assert figures(want["streams_top"], "stream").items() <= streams.items()
    assert next(s for s in busy.streams if s.stream == "5").queue == "18,19"


def test_rocprof_json_with_launches_marks_and_copies(tmp_path: Path) -> None:
    def record(start: int, end: int, correlation: int, **more: Any) -> dict[str, Any]:
        kind = {"size": 100, "kind": more.pop("kind", 0)}
        return {
            **kind,
            "correlation_id": {"internal": correlation},
            "start_timestamp": start,
            "end_timestamp": end,
            **more,
        }

    info = {"agent_id": {"handle": 70}, "queue_id": {"handle": 3}, "kernel_id": 2}
    tool = {
        "agents": [
            {"id": {"handle": 10}, "type": 1},
            {"id": {"handle": 70}, "type": 2, "product_name": "AMD Instinct"},
        ],
        "kernel_symbols": [{"kernel_id": 2, "formatted_kernel_name": "gemm<float>"}],
        "strings": {
            "buffer_records": [
                {"kind": "HIP", "operations": ["hipLaunchKernel"]},
                {"kind": "COPY", "operations": ["H2D"]},
            ],
            "marker_api": [{"key": 9, "value": "decode[bs=4]"}],
        },
        "buffer_records": {
            "kernel_dispatch": [record(100, 200, 5, dispatch_info=info, stream_id={"handle": 1})],
            "memory_copy": [
                record(150, 260, 6, kind=1, operation=0, dst_agent_id={"handle": 70}, stream_id={"handle": 1})
            ],
            "hip_api": [record(40, 50, 5, kind=0, operation=0), record(60, 61, 99, kind=0, operation=0)],
            "marker_api": [record(30, 300, 9)],
        },
    }
    path = tmp_path / "1_results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [tool]}))
    trace = load_trace(path)
    assert [trace.names[i] for i in trace.name] == ["gemm<float>", "H2D", "hipLaunchKernel", "decode[bs=4]"]
    assert trace.queued_ns.tolist()[:2] == [40, -1]
    assert trace.meta["gpus"] == ["AMD Instinct"]
    assert trace.stream_busy().union_busy_ns == 160
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [tool]})[:-30])
    cut = load_trace(path)
    assert cut.report is not None
    assert (len(cut), cut.report.truncated, cut.report.rows) == (3, True, 2)
    path.write_text('{"rocprofiler-sdk-tool": [{"agents": [')
    with pytest.raises(TraceError, match="damaged rocprofv3 JSON, no record to be had"):
        load_trace(path)


def nsys_file(path: Path) -> None:
    database = sqlite3.connect(path)
    database.executescript(
        """
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
        CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
          correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
          correlationId INTEGER, globalPid INTEGER, copyKind INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, nameId INTEGER, correlationId INTEGER,
          globalTid INTEGER);
        CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER);
        INSERT INTO StringIds VALUES (1, 'gemm_kernel'), (2, 'cudaLaunchKernel_v7000');
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200');
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 200, 0, 7, 5, 16777216, 1, 1);
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (150, 250, 0, 8, 5, 33554432, 1, 1);
        INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (300, 340, 0, 7, 6, 16777216, 1);
        INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (20, 30, 2, 5, 16777217), (40, 50, 2, 5, 33554433);
        INSERT INTO NVTX_EVENTS VALUES (10, 400, 59, 'ProfilerStep#1', NULL), (11, NULL, 34, 'mark', NULL);
        """
    )
    database.commit()
    database.close()


def test_nsight_systems_keeps_processes_apart(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    nsys_file(path)
    trace = load_trace(path)
    assert trace.report is not None
    assert trace.report.format == "nsys sqlite"
    assert trace.streams == ("7", "8")
    assert trace.queued_ns.tolist()[:2] == [20, 40]
    assert [trace.names[i] for i in trace.name] == [
        "gemm_kernel",
        "gemm_kernel",
        "Memcpy HtoD",
        "cudaLaunchKernel_v7000",
        "cudaLaunchKernel_v7000",
        "ProfilerStep#1",
    ]
    assert trace.stream_busy().union_busy_ns == 190


def test_a_database_with_a_damaged_page_gives_the_rows_around_it(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    nsys_file(path)
    database = sqlite3.connect(path)
    columns = len(database.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)").fetchall())
    rows = [(10**6 + 100 * n, 10**6 + 100 * n + 50, *([0] * (columns - 2))) for n in range(6000)]
    marks = ", ".join("?" * columns)
    database.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", rows)
    database.commit()
    size = database.execute("PRAGMA page_size").fetchone()[0]
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.close()
    whole = load_trace(path)
    data = bytearray(path.read_bytes())
    middle = pages // 2 * size
    data[middle : middle + size] = bytes(size)
    path.write_bytes(bytes(data))
    trace = load_trace(path)
    assert trace.report is not None
    assert trace.report.repairs == {"table with damaged pages": 1}
    assert 0 < trace.report.lost_events < 500
    assert whole.report is not None
    assert trace.report.rows + trace.report.lost_events == whole.report.rows
    assert any("could not be read" in warning for warning in trace.warnings)


def test_some_other_database_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE people (name TEXT)")
    database.commit()
    database.close()
    with pytest.raises(TraceError, match=r"x\.db: an SQLite file, but neither rocpd nor .*people"):
        load_trace(path)


def write_rank(path: Path, rank: int, shift_us: int, *, base_ns: int = 0) -> None:
    """Ten collectives that end together; rank 1 enters each 7 us late; a clock ``shift_us`` ahead."""
    rows = []
    for at in range(10):
        late = 7 if rank else 0
        start, end = 1000 * at + late, 1000 * at + 100
        rows.append(("ncclDevKernel_AllReduce_Sum_bf16", start + shift_us, end - start, 3))
        rows.append(("gemm", 1000 * at + 200 + shift_us, 50, 7))
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": n,
            "pid": 0,
            "tid": s,
            "ts": t,
            "dur": d,
            "args": {"stream": s, "device": 0},
        }
        for n, t, d, s in rows
    ]
    info = {"distributedInfo": {"rank": rank, "world_size": 2}, "baseTimeNanoseconds": base_ns}
    path.write_bytes(gzip.compress(json.dumps({**info, "traceEvents": events}).encode()))


def test_a_directory_of_ranks_is_one_timeline_on_one_clock(tmp_path: Path) -> None:
    for rank in (0, 1):
        folder = tmp_path / f"rank_{rank}"
        folder.mkdir()
        write_rank(folder / f"w{rank}.1.pt.trace.json.gz", rank, 1500 * rank)
    (tmp_path / "rank_1" / "w1.1.pt.trace.json").write_text("{")
    trace = load_trace(tmp_path)
    assert trace.streams == ("rank0/3", "rank0/7", "rank1/3", "rank1/7")
    assert trace.meta["clocks"]["1"] == {
        "offset_ns": 1_500_000,
        "residual_ns": 0,
        "matches": 10,
        "subtracted_ns": 1_500_000,
    }
    assert any("left beside its .gz" in warning for warning in trace.warnings)
    skews = arrival_skew(trace)
    assert [(a.skew_ns, a.last_rank, a.ranks) for a in skews] == [(7_000, 1, 2)] * 10
    raw = load_trace(tmp_path, align=False)
    assert raw.meta["clocks"]["1"]["subtracted_ns"] == 0
    assert raw.stream_busy().wall_ns == trace.stream_busy().wall_ns + 1_500_000
    assert trace.stream_busy("7").main_busy_ns == 2 * 10 * 50_000


def test_files_that_count_from_different_times_meet_at_the_epoch(tmp_path: Path) -> None:
    write_rank(tmp_path / "a.pt.trace.json.gz", 0, 0, base_ns=1_775_078_550_000_000_000)
    write_rank(tmp_path / "b.pt.trace.json.gz", 1, 0, base_ns=1_775_078_549_000_000_000)
    trace = load_trace(f"{tmp_path}/*.json.gz")
    assert trace.meta["clocks"]["1"]["subtracted_ns"] == -1_000_000_000
    assert int(trace.start_ns.min()) == 1_775_078_550_000_000_000


def test_ranks_that_share_too_few_collectives_keep_their_clocks_and_say_so(tmp_path: Path) -> None:
    for rank in (0, 1):
        buffer = io.BytesIO()
        Generator(platform="cuda", rank=rank).write(buffer, steps=1, layers=2)
        (tmp_path / f"r{rank}.pt.trace.json").write_bytes(buffer.getvalue())
    trace = load_trace(tmp_path)
    assert any("too few shared collectives" in warning for warning in trace.warnings)
    assert set(trace.rank.tolist()) == {0, 1}


def test_recorded_ranks_agree_within_their_spread_and_are_not_moved(tmp_path: Path) -> None:
    for name in WANT:
        if "128ranks" in name:
            shutil.copy(ROOT / "traces" / name, tmp_path)
    trace = load_trace(tmp_path)
    assert trace.meta["clocks"]["1"]["subtracted_ns"] == 0
    assert trace.report is not None
    assert trace.report.rows == sum(WANT[n]["gpu"]["events"] for n in WANT if "128ranks" in n)
    assert np.unique(trace.rank).tolist() == [0, 1]


def test_an_empty_folder_and_a_glob_without_match_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trace file in this directory"):
        load_trace(tmp_path)
    with pytest.raises(TraceError, match="no file matches"):
        load_trace(f"{tmp_path}/*.json")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)", True),
        ("void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>(aiter::RankData*)", True),
        ("rcclGenericKernel", True),
        ("void at::native::reduce_kernel<512, 1, ReduceOp>", False),
        ("gemm_bf16", False),
    ],
)
def test_collectives_are_told_by_name(name: str, is_one: bool) -> None:
    assert is_collective(name) is is_one
