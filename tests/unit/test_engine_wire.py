"""Frames, messages and timelines: what arrives is what was sent, and anything else is one clear error."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dsv4lab.config.presets import PRESETS
from dsv4lab.engine import messages as m
from dsv4lab.engine.payloads import pack_timeline, unpack_timeline
from dsv4lab.engine.request import FinishReason, Limits, RequestSpec, SamplingParams
from dsv4lab.engine.wire import MAX_FRAME, Channel
from dsv4lab.errors import CheckpointError, EngineError, LabError, PlanError
from dsv4lab.timeline.program import ProgramOp, StreamProgram
from dsv4lab.timeline.records import Manifest, PoolRequest, PoolSnapshot, QueryReads, StepRecord
from dsv4lab.timeline.timeline import COLUMNS, Timeline

TIMELINE = Timeline.build(
    start_ns=[10, 2**40],
    dur_ns=[5, 7],
    stream=[0, 1],
    name=[1, 0],
    names=("a", "b"),
    streams=("main", "side0"),
    queue=[0, 1],
    queues=("q0", "q1"),
    layer=[-1, 3],
    main_stream="main",
    meta={"manifest": {"preset": "tiny", "seed": 0}},
    warnings=("careful",),
)
OPS = (ProgramOp(0, "a", -1, "main", (), (), (), ("x",)), ProgramOp(1, "b", 2, "side0", (0,), (0,), ("x",), ()))
PROGRAM = StreamProgram(OPS, ("main", "side0"), "hip", "decode", 3)
STEP = StepRecord(4, "decode", 3, 3, 1, 2, "hip", 4, {"main": 2, "side0": 1}, 1, 60)
SNAPSHOT = PoolSnapshot(5, 3, 128, 128, 4, 256, 64, 4, (0, 4, 128), (PoolRequest(1, 1, 300, (1, 2)),), (3,), (2,))
MANIFEST = Manifest(
    "0.1", "3.12", "2.13", "linux", "a cpu", 2, "cpu", "tiny", 0, {"plan": "off"}, "2026-01-01T00:00:00"
)
SPEC = RequestSpec(7, (1, 2), 5, SamplingParams(temperature=0.5, seed=9, stop_token_ids=(3,)), 9, (4,))

COMMANDS: list[m.Message] = [
    m.Start({"model": "tiny", "plan": {"name": "x", "rules": []}}),
    m.Submit([SPEC]),
    m.Abort(7),
    m.Watch(True),
    m.Shutdown(),
    m.SetPlan(1, {"name": "off", "rules": []}),
    m.SetPolicy(2, "refcount"),
    m.Record(3, 20, 4, True),
    m.EndRecord(4),
    m.GetStatus(5),
    m.GetOps(6),
    m.GetSnapshot(7),
    m.GetReads(8, 1, None, 3),
    m.GetProgram(9, "prefill", 64),
]
ANSWERS: list[m.Message] = [
    m.Done(1),
    m.Failed(2, "PlanError", "no such plan"),
    m.Info(3, {"a": [1, None, {"b": 2.5}]}),
    m.Snapshot(4, SNAPSHOT),
    m.Reads(5, QueryReads(1, 9, 2, 4, (1, 2), (900,))),
    m.Program(6, PROGRAM),
    m.Booting("loading torch"),
    m.Ready(Limits(1, 2, 3, 4, 5), PRESETS["demo"], MANIFEST),
    m.Progress(
        10**15,
        [(1, 2), (3, 4)],
        [m.Finished(1, FinishReason.STOP), m.Finished(2, FinishReason.ERROR, "PoolError", "full")],
    ),
]


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    yield channel, theirs
    channel.close()
    theirs.close()


@pytest.mark.parametrize("message", COMMANDS, ids=lambda x: type(x).__name__)
def test_commands_arrive_as_they_were(message: m.Message) -> None:
    assert m.decode_command(m.encode(message)) == message


@pytest.mark.parametrize("message", ANSWERS, ids=lambda x: type(x).__name__)
def test_answers_and_events_arrive_as_they_were(message: m.Message) -> None:
    assert m.decode_from_worker(m.encode(message)) == message


def test_every_message_is_tested() -> None:
    covered = {type(message) for message in [*COMMANDS, *ANSWERS]} | {m.Recorded, m.Steps}
    leaves, pending = set(), [m.Message]
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        leaves |= set() if cls.__subclasses__() else {cls}
    assert covered == leaves


def test_a_recording_arrives_as_it_was() -> None:
    sent = m.Recorded(1, pack_timeline(TIMELINE), PROGRAM, (STEP,))
    got = m.decode_from_worker(m.encode(sent))
    assert isinstance(got, m.Recorded)
    assert (got.program, got.steps) == (PROGRAM, (STEP,))
    back = unpack_timeline(got.timeline)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(back, name), getattr(TIMELINE, name))
        assert getattr(back, name).dtype == getattr(TIMELINE, name).dtype
    for name in ("names", "streams", "queues", "main_stream", "meta", "warnings"):
        assert getattr(back, name) == getattr(TIMELINE, name)


def test_columns_are_raw_little_endian() -> None:
    wire = pack_timeline(TIMELINE)
    assert wire.columns["start_ns"] == struct.pack("<qq", 10, 2**40)
    assert wire.columns["layer"] == struct.pack("<ii", -1, 3)


@pytest.mark.parametrize("damage", ["missing", "short", "odd", "range"])
def test_a_damaged_timeline_is_refused(damage: str) -> None:
    columns = dict(pack_timeline(TIMELINE).columns)
    if damage == "missing":
        del columns["layer"]
    else:
        columns["name"] = {"short": b"\0" * 4, "odd": b"\0" * 7, "range": b"\x09" * 8}[damage]
    wire = msgspec.structs.replace(pack_timeline(TIMELINE), columns=columns)
    with pytest.raises(EngineError, match="malformed message: timeline"):
        unpack_timeline(wire)


def test_an_empty_timeline_is_a_timeline() -> None:
    empty = TIMELINE.select(np.zeros(2, bool))
    assert len(unpack_timeline(pack_timeline(empty))) == 0


@given(st.binary(max_size=200))
@example(b"")
@example(b"\x91" * 5000)
def test_bytes_that_are_no_message_are_one_line(payload: bytes) -> None:
    for decode in (m.decode_command, m.decode_from_worker):
        with pytest.raises(EngineError) as caught:
            decode(payload)
        assert str(caught.value).startswith("malformed message: ")
        assert "\n" not in str(caught.value)


@given(st.data())
def test_a_damaged_message_is_read_or_refused_but_never_breaks(data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(COMMANDS))
    payload = bytearray(m.encode(message))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with suppress(EngineError):
        assert isinstance(m.decode_command(bytes(payload)), m.Message)


def test_a_command_is_no_answer_and_the_other_way_round() -> None:
    with pytest.raises(EngineError, match="malformed message"):
        m.decode_command(m.encode(m.Done(1)))
    with pytest.raises(EngineError, match="malformed message"):
        m.decode_from_worker(m.encode(m.Shutdown()))


def test_errors_come_back_as_what_they_were() -> None:
    assert type(m.failure(1, PlanError("x")).error()) is PlanError
    assert type(m.lab_error("CheckpointError", "x")) is CheckpointError
    assert type(m.lab_error("LabError", "x")) is LabError
    unknown = m.lab_error("SomethingElse", "x")
    assert (type(unknown), str(unknown)) == (EngineError, "SomethingElse: x")


def test_an_error_of_ours_keeps_its_traceback_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    failed = m.failure(1, KeyError("x"))
    assert (failed.kind, failed.text) == ("EngineError", "KeyError: 'x'")
    assert "KeyError: 'x'" in capsys.readouterr().err


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_frames_arrive_whole_and_in_order(frames: list[bytes]) -> None:
    ours, theirs = socket.socketpair()
    sender, receiver = Channel(ours), Channel(theirs)
    for frame in frames:
        sender.send(frame)
    sender.close()
    assert [receiver.receive() for _ in frames] == frames
    assert receiver.receive() is None
    receiver.close()


@pytest.mark.parametrize("sent", [b"\x05", b"\x05\0\0\0", b"\x05\0\0\0abc"])
def test_a_connection_that_ends_inside_a_frame_is_an_error(pair: tuple[Channel, socket.socket], sent: bytes) -> None:
    channel, other = pair
    other.sendall(sent)
    other.shutdown(socket.SHUT_WR)
    with pytest.raises(EngineError, match="ended inside a frame"):
        channel.receive()


def test_a_frame_that_is_too_long_is_refused_before_it_is_read(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    other.sendall(struct.pack("<I", MAX_FRAME + 1))
    with pytest.raises(EngineError, match=f"{MAX_FRAME + 1} bytes announced"):
        channel.receive()


def test_ending_a_channel_wakes_its_reader_and_refuses_senders(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    channel.end()
    assert channel.receive() is None
    with pytest.raises(OSError, match="pipe"):
        channel.send(b"x")
    assert other.recv(1) == b""


def test_a_send_that_nobody_takes_ends(pair: tuple[Channel, socket.socket]) -> None:
    channel, _ = pair
    channel.limit_send(0.05)
    with pytest.raises(OSError, match="temporarily unavailable"):
        channel.send(bytes(1 << 24))


def test_step_records_keep_their_maps() -> None:
    sent = m.Steps((STEP, replace(STEP, step=5)), pack_timeline(TIMELINE))
    got = m.decode_from_worker(m.encode(sent))
    assert isinstance(got, m.Steps)
    assert got.records[1].busy_ns == {"main": 2, "side0": 1}
