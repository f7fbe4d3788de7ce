"""Random damage: bytes flipped, cut and spliced. An error or a salvage of whole events, never a hang or a crash."""

from __future__ import annotations

import gzip
import io
import json
import random
import tempfile
import tracemalloc
from pathlib import Path

import pytest

from dsv4lab.errors import TraceError
from dsv4lab.trace.api import Trace, load_trace
from dsv4lab.trace.export import export_kineto
from dsv4lab.trace.load import kineto
from dsv4lab.trace.pftrace import export_pftrace
from tools.gen_trace import Generator

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("flip", "cut", "drop", "splice", "zero")


def damaged(data: bytes, rng: random.Random) -> bytes:
    """``data`` with one to four wounds."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        kind, at = rng.choice(KINDS), rng.randrange(max(len(out), 1))
        length = min(rng.choice((1, 7, 100, 5000)), max(len(out) - at, 0))
        if kind == "flip":
            for spot in range(at, at + min(length, 20)):
                out[spot] = rng.randrange(256)
        elif kind == "cut":
            del out[at:]
        elif kind == "drop":
            del out[at : at + length]
        elif kind == "splice":
            other = rng.randrange(max(len(out), 1))
            out[at:at] = out[other : other + length]
        else:
            out[at : at + length] = bytes(length)
    return bytes(out)


def rocprof_json(rows: int) -> bytes:
    """A rocprofv3 file in the layout of the real ones: names first, records last."""
    kernels = [
        {"size": 184, "kind": 11, "operation": 2, "thread_id": 908, "correlation_id": {"internal": n, "external": 0}}
        | {"start_timestamp": 1000 * n, "end_timestamp": 1000 * n + 700, "stream_id": {"handle": n % 3}}
        | {"dispatch_info": {"size": 72, "agent_id": {"handle": 7}, "queue_id": {"handle": n % 2}, "kernel_id": n % 5}}
        for n in range(1, rows + 1)
    ]
    calls = [
        {"size": 100, "kind": 1, "operation": 0, "correlation_id": {"internal": n, "external": 0}}
        | {"start_timestamp": 1000 * n - 300, "end_timestamp": 1000 * n - 200}
        for n in range(1, rows + 1)
    ]
    tool = {
        "metadata": {"pid": 9, "command": ["python", "a[1].py"]},
        "agents": [
            {"size": 312, "id": {"handle": 7}, "type": 2, "caches": [{"size": 1, "level": 2}], "name": "gfx950"}
        ],
        "strings": {"buffer_records": [{"kind": "N", "operations": []}, {"kind": "HIP", "operations": ["hipLaunch"]}]},
        "kernel_symbols": [{"size": 9, "kernel_id": n, "kernel_name": f'void k{n}<"a", [1]>(int)'} for n in range(5)],
        "buffer_records": {"kernel_dispatch": kernels, "hip_api": calls, "hsa_api": [], "memory_copy": []},
    }
    return json.dumps({"rocprofiler-sdk-tool": [tool]}, separators=(",", ":")).encode()


def sources() -> list[tuple[str, bytes]]:
    buffer = io.BytesIO()
    Generator(platform="rocm", frames=1).write(buffer, steps=2, layers=3)
    plain = buffer.getvalue()
    with tempfile.TemporaryDirectory() as folder:
        line = load_trace(ROOT / "traces/rocm_rocpd_schema_sample.db")
        perfetto = export_pftrace(line, Path(folder) / "t.pftrace").read_bytes()
    return [
        ("json", plain),
        ("json.gz", gzip.compress(plain, 1, mtime=0)),
        ("csv", (ROOT / "traces/rocm_rocprofv3_4queues_kernel_trace.csv").read_bytes()),
        ("db", (ROOT / "traces/rocm_rocpd_schema_sample.db").read_bytes()),
        ("results.json", rocprof_json(150)),
        ("pftrace", perfetto),
    ]


def loaded(path: Path) -> Trace | TraceError:
    """What loading gives."""
    try:
        return load_trace(path, cache=False)
    except TraceError as error:
        return error


def peak_of(path: Path, limit: int = 0) -> int:
    """The most bytes that loading holds at one time; read again if above ``limit``: the first may import something."""
    tracemalloc.start()
    try:
        for _ in range(2):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            loaded(path)
            peak = tracemalloc.get_traced_memory()[1] - before
            if peak <= limit:
                break
    finally:
        tracemalloc.stop()
    return peak


def hurt_and_load(folder: Path, rounds: int, seed: int, weigh_every: int) -> tuple[int, int]:
    """How many damaged files were refused and how many salvaged.

    None that is weighed takes more than twice the memory of whole files, which is that of one chunk at this size.
    """
    rng = random.Random(seed)
    refused = salvaged = 0
    whole, limit = sources(), 0
    for suffix, data in whole:
        (folder / f"whole.{suffix}").write_bytes(data)
        limit = max(limit, 2 * peak_of(folder / f"whole.{suffix}"))
    for at in range(rounds):
        suffix, data = whole[(0, 0, 0, 1, 1, 2, 3, 4, 4, 5)[at % 10]]
        path = folder / f"t{at}.{suffix}"
        path.write_bytes(damaged(data, rng))
        found = loaded(path)
        if at % weigh_every == 0:
            assert peak_of(path, limit) <= limit
        path.unlink()
        if isinstance(found, TraceError):
            refused += 1
            assert "\n" not in str(found)
            assert str(path) in str(found)
            continue
        salvaged += 1
        found.check()
        busy = found.stream_busy()
        assert 0 <= busy.union_busy_ns <= busy.sum_busy_ns <= busy.sum_dur_ns
        assert busy.union_busy_ns <= busy.wall_ns
    return refused, salvaged


def test_five_hundred_damaged_files(tmp_path: Path) -> None:
    refused, salvaged = hurt_and_load(tmp_path, 500, seed=7, weigh_every=5)
    assert refused + salvaged == 500
    assert salvaged > 200


def test_damage_all_over_a_large_file_takes_no_more_than_twice_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto, "read_ahead", iter)  # how far a thread is ahead would be chance
    buffer, path, rng = io.BytesIO(), tmp_path / "t.json", random.Random(11)
    Generator(platform="cuda", frames=1).write(buffer, megabytes=5)
    plain = buffer.getvalue()
    path.write_bytes(plain)
    events = load_trace(path, cache=False).report.events  # type: ignore[union-attr]
    whole = peak_of(path)
    hurt = bytearray(plain)
    wounds = sorted(rng.sample(range(1000, len(plain) - 1000), 60))
    for at in wounds:
        hurt[at] = rng.choice(b'"{}[],:\\x\x00\xff')
    path.write_bytes(bytes(hurt))
    assert peak_of(path, 2 * whole) <= 2 * whole
    report = load_trace(path, cache=False).report
    assert report is not None
    assert report.events + report.lost_events >= events - 2 * len(wounds)
    assert report.events >= events - 3 * len(wounds)


@pytest.mark.slow
def test_five_thousand_damaged_files(tmp_path: Path) -> None:
    refused, salvaged = hurt_and_load(tmp_path, 5000, seed=70, weigh_every=1)
    assert refused + salvaged == 5000


def test_a_flipped_byte_costs_at_most_its_own_event(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Generator(platform="cuda", frames=1).write(buffer)
    plain = buffer.getvalue()
    path = tmp_path / "t.json"
    path.write_bytes(plain)
    whole = load_trace(path)
    assert whole.report is not None
    rng = random.Random(3)
    body = plain.index(b'"traceEvents"') + 40
    for _ in range(120):
        at = rng.randrange(body, len(plain) - 200)
        hurt = bytearray(plain)
        hurt[at] = rng.choice(b'"{}[],:\\x\x00\xff')
        path.write_bytes(bytes(hurt))
        report = load_trace(path).report
        assert report is not None
        assert report.events + report.lost_events >= whole.report.events - 2
        assert report.rows >= whole.report.rows - 2


def test_a_flipped_byte_in_rocprofv3_json_costs_at_most_its_own_record(tmp_path: Path) -> None:
    plain, path = rocprof_json(150), tmp_path / "1_results.json"
    rng = random.Random(5)
    begin = plain.index(b'"kernel_dispatch":[') + 20
    end = plain.index(b',"hsa_api"')
    for _ in range(150):
        at = rng.randrange(begin, end)
        hurt = bytearray(plain)
        hurt[at] = rng.choice(b'"{}[],:\\x\x00\xff')
        path.write_bytes(bytes(hurt))
        trace = load_trace(path)
        assert trace.report is not None
        assert len(trace) >= 298 - (plain[at] in b'[]"') * 2, (at, plain[at - 20 : at + 20], hurt[at : at + 1])
        assert not trace.report.truncated


def test_a_cut_rocprofv3_json_gives_every_record_before_the_cut(tmp_path: Path) -> None:
    plain, path = rocprof_json(150), tmp_path / "1_results.json"
    place = plain.index(b'"internal":90,') + 40
    path.write_bytes(plain[:place])
    trace = load_trace(path)
    assert trace.report is not None
    assert (len(trace), trace.report.truncated, trace.report.lost_events) == (89, True, 0)
    assert 0 < trace.report.lost_bytes < 200
    path = path.with_suffix(".json.gz")
    path.write_bytes(gzip.compress(plain, 1, mtime=0)[:-900])
    trace = load_trace(path)
    assert trace.report is not None
    assert trace.report.truncated
    assert 150 <= len(trace) < 300


def test_a_name_with_a_lone_surrogate_escape_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    row = '{"ph": "X", "cat": "kernel", "name": "k%s", "pid": 0, "tid": 0, "ts": %d, "dur": 2, "args": {"stream": 1}}'
    path.write_text('{"traceEvents": [' + row % ("\\ud800x", 1) + "," + row % ("", 9) + "]}")
    trace = load_trace(path)
    assert trace.report is not None
    assert (trace.report.rows, trace.report.lost_events) == (2, 0)


def test_deep_nesting_is_no_stack_overflow(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    place = '"pid": 0, "tid": 0, "ts": 1, "dur": 2'
    row = '{"ph": "X", "cat": "kernel", "name": "k", ' + place + ', "args": {"stream": 1, "x": %s}}'
    path.write_text('{"traceEvents": [' + row % ("[" * 100_000 + "]" * 100_000) + "," + row % "0" + "]}")
    trace = load_trace(path)
    assert trace.report is not None
    assert trace.report.rows >= 1


@pytest.mark.parametrize(
    "header",
    [
        {"dsv4lab": {"names": [1], "streams": {}, "queues": None}},
        {"dsv4lab": {"names": [], "streams": [], "queues": [], "main_stream": 7, "devices": "abc", "step_modes": [1]}},
        {"dsv4lab": {"names": ["k"], "streams": ["s"], "queues": ["q"], "platform": {"a": 1}}},
        {"dsv4lab": 5, "deviceProperties": [1, {"name": None}, None], "distributedInfo": [1]},
        {"distributedInfo": {"rank": -5, "world_size": "x"}, "baseTimeNanoseconds": 1e30},
        {"distributedInfo": {"rank": 10**15}, "deviceProperties": {"a": 1}, "schemaVersion": "x" * 1000},
        {"deviceProperties": [{"name": "\x1b[31m<script>", "warpSize": "64"}]},
    ],
)
def test_a_header_of_odd_types_is_no_crash(tmp_path: Path, header: dict[str, object]) -> None:
    path = tmp_path / "t.pt.trace.json"
    args = {"stream": 0, "hsa_queue": 9, "op": 5, "step": 2**40, "layer": -7, "rank": "x", "at": 3, "queued_ns": 1.5}
    rows = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": 1, "dur": 2, "args": args},
        {"ph": "X", "cat": "kernel", "name": 5, "pid": 0, "tid": 0, "ts": 4, "dur": 2, "args": {"stream": True}},
        {"ph": "X", "cat": "kernel", "name": None, "pid": 0, "tid": 0, "ts": 8, "dur": 2, "args": [1]},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#" + "9" * 30, "ts": 0, "dur": 20, "args": {}},
    ]
    path.write_text(json.dumps({**header, "traceEvents": rows}))
    trace = load_trace(path)
    trace.check()
    assert trace.report is not None
    assert (trace.report.rows, trace.report.lost_events) == (3, 0)
    assert trace.stream_busy().union_busy_ns == 6000
    for table in (trace.steps(), trace.ops(), trace.ops("layer"), trace.categories(), trace.idle(), trace.graphs()):
        table.to_json()
    assert trace.compare(trace).a.wall_ns == 9000
    assert load_trace(export_kineto(trace, tmp_path / "again.json")).stream_busy().union_busy_ns == 6000


def test_rows_without_any_start_time_are_lost_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    row = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": %s, "dur": 2, "args": {"stream": 1}}'
    path.write_text('{"traceEvents": [' + row % "null" + "," + row % '"soon"' + "]}")
    report = load_trace(path).report
    assert report is not None
    assert (report.events, report.rows, report.lost_events) == (2, 0, 2)


def test_a_damaged_header_gives_the_keys_that_still_read(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    row = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": 1, "dur": 2, "args": {"stream": 1}}'
    head = (
        '{"schemaVersion": 1, "broken": , "distributedInfo": {"rank": 3, "world_size": 8}, "hip_runtime_version": 7, '
    )
    path.write_text(head + '"traceEvents": [' + row + "]}")
    trace = load_trace(path)
    assert trace.report is not None
    assert trace.report.repairs == {"damaged header": 1}
    assert (trace.meta["rank"], trace.meta["world_size"], trace.meta["platform"]) == (3, 8, "rocm")


@pytest.mark.parametrize(
    "inside",
    ['"name":"' * 30_000, ':"' * 100_000, '"name":"' + "\\" * 200_001 + '"', '"name":"' + "x" * (9 << 20) + '"'],
    ids=["names", "quotes", "backslashes", "one long string"],
)
def test_repairs_take_one_pass_over_an_event(tmp_path: Path, inside: str) -> None:
    path = tmp_path / "t.json"
    row = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":0,"ts":%d,"dur":1,"args":{"stream":1}}'
    path.write_text('{"traceEvents":[' + row % 1 + ',{"ph":"X",' + inside + "}," + row % 5 + "]}")
    report = load_trace(path, cache=False).report
    assert report is not None
    assert (report.rows, report.truncated) == (2, False)
    assert report.events + report.lost_events == 3
