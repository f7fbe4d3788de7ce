"""Perfetto traces: ours read back, rocprofv3's as its SDK writes them, losses counted, damage survived."""

from __future__ import annotations

import contextlib
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.errors import TraceError
from dsv4lab.timeline.timeline import COLUMNS, Kind, Timeline
from dsv4lab.trace.api import load_trace
from dsv4lab.trace.load.pftrace import SMOOTHED
from dsv4lab.trace.pftrace import export_pftrace
from dsv4lab.trace.wire import block, fields, number, signed, text, varint

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = 1, 2
CLEARED, NEEDS_STATE = 1, 2


def same(a: Timeline, b: Timeline) -> None:
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(a, column), getattr(b, column), err_msg=column)
    assert (a.names, a.streams, a.queues, a.main_stream) == (b.names, b.streams, b.queues, b.main_stream)


@given(
    st.lists(
        st.tuples(
            st.integers(-(10**18), 10**18),
            st.integers(0, 10**12),
            st.integers(-1, 2),
            st.integers(-1, 1),
            st.integers(-1, 3),
            st.sampled_from(list(Kind)),
            st.integers(-1, 2**62),
            st.integers(-1, 99),
        ),
        max_size=20,
    )
)
def test_any_timeline_reads_back_unchanged(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    start, dur, stream, queue, name, kind, correlation, step = zip(*rows, strict=True) if rows else [()] * 8
    line = Timeline.build(
        start_ns=start,
        dur_ns=dur,
        stream=stream,
        queue=queue,
        name=name,
        kind=[int(k) for k in kind],
        correlation=correlation,
        queued_ns=correlation,
        step=step,
        names=["a", "b/c\n\x1b[31m", "ünïcode ✓", ""],
        streams=["main", "7", "x y"],
        queues=["0", "hsa 1"],
        main_stream="7",
        meta={"platform": "cpu", "devices": ["0"]},
    )
    back = load_trace(export_pftrace(line, tmp_path_factory.mktemp("any") / "run.pftrace"))
    same(line, back)
    assert back.meta["devices"] == ["0"]


@pytest.mark.parametrize(
    "name", [p.name for p in sorted((ROOT / "traces").glob("*")) if p.suffix in (".gz", ".csv", ".db")]
)
def test_a_real_trace_reads_back_unchanged(tmp_path: Path, name: str) -> None:
    line = load_trace(ROOT / "traces" / name)
    back = load_trace(export_pftrace(line, tmp_path / "again.pftrace"))
    same(line, back)
    assert back.stream_busy().streams == line.stream_busy().streams
    assert back.stream_busy().queues == line.stream_busy().queues


def packet(*parts: bytes, sequence: int = 7) -> bytes:
    return block(1, b"".join(parts) + number(10, sequence))


def interned(table: int, names: dict[int, str]) -> bytes:
    return b"".join(block(table, number(1, iid) + text(2, name)) for iid, name in names.items())


def event(kind: int, track: int, category: int = 0, name: int = 0, **notes: int) -> bytes:
    keys = {"corr_id": 1, "queue": 2, "begin_ns": 3}
    parts = [number(9, kind), number(11, track)]
    parts += [number(3, category)] * bool(category) + [number(10, name)] * bool(name)
    parts += [block(4, number(1, keys[key]) + number(3, value)) for key, value in notes.items()]
    return block(11, b"".join(parts))


TRACKS = {
    1: "THREAD 1 (908)",
    2: "COMPUTE AGENT [4] STREAM [1] (GPU)",
    3: "COMPUTE AGENT [4] STREAM [2] (GPU)",
    4: "COPY to AGENT [4] STREAM [1] (GPU)",
    5: "COPY to AGENT [0] STREAM [1] (CPU)",
}
STATE = (
    interned(1, {1: "kernel_dispatch", 2: "memory_copy", 3: "hip_api", 4: "marker_api"})
    + interned(2, {1: "gemm(float*)", 2: "MEMORY_COPY_HOST_TO_DEVICE", 3: "hipLaunchKernel", 4: "decode[bs=4]"})
    + interned(3, {1: "corr_id", 2: "queue", 3: "begin_ns"})
)


def rocprof_packets(base: int = 1_000_000) -> list[bytes]:
    """What Perfetto's SDK writes for rocprofv3: a clock of the sequence that counts on, names interned once."""
    clocks = block(1, number(1, 6) + number(2, base)) + block(1, number(1, 64) + number(2, base) + number(3, 1))
    out = [packet(block(60, number(1, uuid) + text(2, name)), sequence=1) for uuid, name in TRACKS.items()]
    out.append(packet(number(13, CLEARED), block(59, number(58, 64)), block(6, clocks), block(12, STATE)))
    slices = (
        (base + 50, base + 60, 1, 3, 3, {"corr_id": 5}),
        (base + 100, base + 200, 2, 1, 1, {"corr_id": 5, "queue": 11, "begin_ns": base + 100}),
        (base + 150, base + 260, 3, 1, 1, {"corr_id": 6, "queue": 12}),
        (base + 300, base + 340, 4, 2, 2, {"corr_id": 7}),
        (base + 345, base + 350, 5, 2, 2, {"corr_id": 8}),
        (base + 40, base + 400, 1, 4, 4, {"corr_id": 9}),
    )
    now = base
    for begin, end, track, category, name, notes in slices:
        for time, inside in ((begin, event(BEGIN, track, category, name, **notes)), (end, event(END, track))):
            if time >= now:
                out.append(packet(number(8, time - now), inside, number(13, NEEDS_STATE)))
                now = time
            else:
                out.append(packet(number(8, time), number(58, 6), inside, number(13, NEEDS_STATE)))
    return out


def check_rocprof(path: Path) -> None:
    trace = load_trace(path)
    busy = trace.stream_busy()
    assert trace.report is not None
    assert (trace.report.exporter, trace.report.events, trace.report.lost_events) == ("rocprofv3", 6, 0)
    assert [trace.names[i] for i in trace.name] == [
        "gemm(float*)",
        "gemm(float*)",
        *["MEMORY_COPY_HOST_TO_DEVICE"] * 2,
        "hipLaunchKernel",
        "decode[bs=4]",
    ]
    base = int(trace.start_ns[0]) - 100
    assert (trace.start_ns - base).tolist() == [100, 150, 300, 345, 50, 40]
    assert trace.dur_ns.tolist() == [100, 110, 40, 5, 10, 360]
    assert trace.queued_ns[0] == base + 50
    assert {(q.queue, q.busy_ns) for q in busy.queues} == {("11", 100), ("12", 110)}
    assert {(s.stream, s.busy_ns) for s in busy.streams} == {("1", 145), ("2", 110)}
    assert trace.meta["platform"] == "rocm"
    assert any(SMOOTHED in warning for warning in trace.warnings)


def test_a_trace_as_rocprofv3_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "1_results.pftrace"
    path.write_bytes(b"".join(rocprof_packets(63_857_982_592_000)))
    check_rocprof(path)


def test_compressed_packets_are_read(tmp_path: Path) -> None:
    path = tmp_path / "1_results.pftrace"
    path.write_bytes(block(1, number(10, 3)) + block(1, block(50, zlib.compress(b"".join(rocprof_packets())))))
    check_rocprof(path)


def test_perfetto_s_own_library_agrees_on_the_fields(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    builder = pytest.importorskip("perfetto.trace_builder.proto_builder", reason="perfetto is not installed")
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as Message
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackDescriptor, TrackEvent

    build = builder.TraceProtoBuilder()
    for uuid, name in TRACKS.items():
        build.add_packet().track_descriptor.CopyFrom(TrackDescriptor(uuid=uuid, name=name))
    for at in range(20):
        for kind, time in ((TrackEvent.TYPE_SLICE_BEGIN, 100 * at), (TrackEvent.TYPE_SLICE_END, 100 * at + 60)):
            one = build.add_packet()
            one.timestamp, one.trusted_packet_sequence_id = time, 5
            one.track_event.type, one.track_event.track_uuid = kind, 2 + at % 2
            if kind == TrackEvent.TYPE_SLICE_BEGIN:
                one.track_event.name = f"k{at % 3}"
                one.track_event.categories.append("kernel_dispatch")
                note = one.track_event.debug_annotations.add()
                note.name, note.uint_value = "queue", at % 4
    path = tmp_path / "library.pftrace"
    path.write_bytes(build.serialize())
    trace = load_trace(path)
    assert trace.start_ns.tolist() == [100 * at for at in range(20)]
    assert (trace.dur_ns == 60).all()
    assert [trace.names[i] for i in trace.name] == [f"k{at % 3}" for at in range(20)]
    assert [trace.queues[i] for i in trace.queue] == [str(at % 4) for at in range(20)]
    ours = Message.FromString(export_pftrace(trace, tmp_path / "ours.pftrace").read_bytes())
    rows = [p for p in ours.packet if p.track_event.type == TrackEvent.TYPE_SLICE_BEGIN]
    assert len(rows) == 2 * len(trace)
    assert sorted(p.timestamp for p in rows if len(p.track_event.debug_annotations)) == trace.start_ns.tolist()


def test_packets_lost_while_recording_are_counted_and_what_hangs_on_them_is_left_out(tmp_path: Path) -> None:
    head, *rest = rocprof_packets()[5:]
    gone = packet(number(8, 5), event(BEGIN, 2, 1, 1, corr_id=5), number(13, NEEDS_STATE), number(42, 1))
    stats = block(1, block(35, block(1, number(18, 4) + number(19, 2))))
    path = tmp_path / "lost.pftrace"
    path.write_bytes(b"".join([*rocprof_packets()[:5], head, *rest[:4], gone, *rest[4:], stats]))
    report = load_trace(path).report
    assert report is not None
    assert report.rows == 1
    assert report.lost_events == 1 + len(rest[4:])
    assert report.findings["packets lost while recording"] == 1
    assert report.findings["chunks or packets lost while recording"] == 6


def test_a_slice_that_never_ends_is_lost_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "open.pftrace"
    path.write_bytes(b"".join(rocprof_packets()[:-1]))
    report = load_trace(path).report
    assert report is not None
    assert (report.lost_events, report.findings["slices without an end"]) == (1, 1)


def test_a_cut_file_gives_what_is_before_the_cut(tmp_path: Path) -> None:
    line = load_trace(ROOT / "traces/rocm_mi300x_sglang_decode_hipgraph.pt.trace.json.gz")
    path = export_pftrace(line, tmp_path / "cut.pftrace")
    path.write_bytes(path.read_bytes()[:-3])
    trace = load_trace(path)
    assert trace.report is not None
    assert trace.report.truncated
    assert trace.stream_busy().streams == line.stream_busy().streams


def test_another_program_s_trace_is_refused_with_a_pointer(tmp_path: Path) -> None:
    path = tmp_path / "android.pftrace"
    path.write_bytes(b"".join(packet(number(8, at), event(BEGIN, 1, 1, 1), sequence=2) for at in range(9)))
    with pytest.raises(TraceError, match=r"without slices of rocprofv3 .*json, csv and rocpd load too"):
        load_trace(path)


def test_random_damage_is_an_error_or_whole_slices(tmp_path: Path) -> None:
    rng, path, whole = random.Random(2), tmp_path / "t.pftrace", b"".join(rocprof_packets() * 12)
    kept = 0
    for _ in range(150):
        hurt = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(hurt))
            if rng.random() < 0.5:
                hurt[at] = rng.randrange(256)
            else:
                del hurt[at : at + rng.choice((1, 9, 400))]
        path.write_bytes(bytes(hurt))
        with contextlib.suppress(TraceError):
            trace = load_trace(path)
            trace.check()
            kept += len(trace)
    assert kept > 150 * 60 * 0.8


@given(st.integers(-(2**63), 2**63 - 1), st.text())
def test_numbers_and_text_survive_the_wire(value: int, name: str) -> None:
    (first, second) = fields(number(9, value) + text(300, name))
    assert (first[0], signed(first[1])) == (9, value)
    assert (second[0], second[1].decode()) == (300, name.encode("utf-8", "replace").decode())
    with pytest.raises(ValueError, match="cut off"):
        list(fields(varint(9 << 3 | 2) + varint(5) + b"abc"))
