"""Random damage: bytes flipped, cut and spliced. An error or a salvage of whole events, never a hang or a crash."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path

import pytest

from dsv4lab.errors import TraceError
from dsv4lab.trace.api import load_trace
from dsv4lab.trace.export import export_kineto
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


def sources() -> list[tuple[str, bytes]]:
    buffer = io.BytesIO()
    Generator(platform="rocm", frames=1).write(buffer, steps=2, layers=3)
    plain = buffer.getvalue()
    return [
        ("json", plain),
        ("json.gz", gzip.compress(plain, 1, mtime=0)),
        ("csv", (ROOT / "traces/rocm_rocprofv3_4queues_kernel_trace.csv").read_bytes()),
        ("db", (ROOT / "traces/rocm_rocpd_schema_sample.db").read_bytes()),
    ]


def hurt_and_load(folder: Path, rounds: int, seed: int) -> tuple[int, int]:
    """How many damaged files were refused and how many were salvaged."""
    rng = random.Random(seed)
    refused = salvaged = 0
    said: list[str] = []
    whole = sources()
    for at in range(rounds):
        suffix, data = whole[(0, 0, 0, 1, 1, 2, 3)[at % 7]]
        path = folder / f"t{at}.{suffix}"
        path.write_bytes(damaged(data, rng))
        try:
            trace = load_trace(path)
        except TraceError as error:
            refused += 1
            said.append(str(error))
        else:
            salvaged += 1
            trace.check()
            busy = trace.stream_busy()
            assert 0 <= busy.union_busy_ns <= busy.sum_busy_ns <= busy.sum_dur_ns
            assert busy.union_busy_ns <= busy.wall_ns
        path.unlink()
    assert all("\n" not in text and str(folder) in text for text in said)
    return refused, salvaged


def test_five_hundred_damaged_files(tmp_path: Path) -> None:
    refused, salvaged = hurt_and_load(tmp_path, 500, seed=7)
    assert refused + salvaged == 500
    assert salvaged > 200


@pytest.mark.slow
def test_five_thousand_damaged_files(tmp_path: Path) -> None:
    refused, salvaged = hurt_and_load(tmp_path, 5000, seed=70)
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
    report = load_trace(path).report
    assert report is not None
    assert (report.rows, report.truncated) == (2, False)
    assert report.events + report.lost_events == 3
