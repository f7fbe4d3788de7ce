"""What client and worker say to each other: tagged msgpack structs, checked against their types on arrival.

A :class:`Call` is answered by exactly one :class:`Reply` with the same number; everything else goes one way.
"""

from __future__ import annotations

import traceback
from typing import Any, TypeVar

import msgspec

from dsv4lab.config.model import ModelConfig
from dsv4lab.engine.logprobs import TokenLogprobs
from dsv4lab.engine.payloads import WireTimeline
from dsv4lab.engine.request import FinishReason, Limits, RequestSpec
from dsv4lab.engine.results import ProfilingCost
from dsv4lab.engine.step import Mode
from dsv4lab.errors import EngineError, LabError
from dsv4lab.timeline.program import StreamProgram
from dsv4lab.timeline.records import Manifest, PoolSnapshot, QueryReads, StepRecord
from dsv4lab.trace.marks import CapturedRun


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Anything on the wire."""


class Call(Message, frozen=True):
    """A command that wants an answer."""

    call: int


class Reply(Message, frozen=True):
    """The answer to the call of that number."""

    call: int


class Start(Message, frozen=True):
    """First message to a worker, ``EngineConfig.to_json()``; it answers ``Booting``, and ``Ready`` or ``Failed``."""

    config: dict[str, Any]


class Submit(Message, frozen=True):
    """Run these requests; ends come as :class:`Progress`."""

    requests: list[RequestSpec]


class Abort(Message, frozen=True):
    """End this request, if it is still there."""

    request_id: int


class Watch(Message, frozen=True):
    """Send :class:`Steps` from now on, or no longer."""

    on: bool


class Shutdown(Message, frozen=True):
    """Finish the forward in flight, tell its tokens, and exit."""


class SetPlan(Call, frozen=True):
    """Use this plan (``OverlapPlan.to_json()``) from the next forward on."""

    plan: dict[str, Any]


class SetPolicy(Call, frozen=True):
    """Map streams to hardware queues by this policy from the next forward on."""

    policy: str


class Record(Call, frozen=True):
    """Record the next ``steps`` forwards and answer with :class:`Recorded`.

    ``decoding`` above 0 waits for the first decode forward of that many requests. ``until_idle`` answers early, with
    what there is (perhaps nothing), once the engine has no work. With ``torch``, a path, torch's profiler records too,
    and writes there; of forwards that ``decoding`` waits for, ``lead`` come before it starts.
    """

    steps: int
    decoding: int = 0
    until_idle: bool = False
    torch: str = ""
    lead: int = 0


class EndRecord(Call, frozen=True):
    """Answer the open :class:`Record` now with what there is; answered by :class:`Done` itself."""


class GetStatus(Call, frozen=True):
    """Answered by :class:`Info`."""


class GetOps(Call, frozen=True):
    """Answered by :class:`Info` with the list of ops under ``ops``."""


class GetSnapshot(Call, frozen=True):
    """Answered by :class:`Snapshot`."""


class GetReads(Call, frozen=True):
    """Answered by :class:`Reads`. ``position`` None: of the last token in the request's next forward."""

    request_id: int
    position: int | None
    layer: int


class GetProgram(Call, frozen=True):
    """Answered by :class:`Program`. Without a ``plan`` (``OverlapPlan.to_json()``) it is under the one in force."""

    mode: Mode
    tokens: int
    plan: dict[str, Any] | None = None


class Done(Reply, frozen=True):
    """It is done."""


class Failed(Reply, frozen=True):
    """The call (or, numbered 0, the start or the connection) failed with this :class:`LabError`."""

    kind: str
    text: str

    def error(self) -> LabError:
        """The error as it was raised in the worker."""
        return lab_error(self.kind, self.text)


class Info(Reply, frozen=True):
    """Plain data."""

    value: dict[str, Any]


class Snapshot(Reply, frozen=True):
    """See :class:`GetSnapshot`."""

    snapshot: PoolSnapshot


class Reads(Reply, frozen=True):
    """See :class:`GetReads`."""

    reads: QueryReads


class Program(Reply, frozen=True):
    """See :class:`GetProgram`."""

    program: StreamProgram


class Captured(msgspec.Struct, frozen=True):
    """What torch's profiler wrote to ``path``; see :class:`dsv4lab.trace.capture.TorchCapture`."""

    path: str
    platform: str
    programs: tuple[StreamProgram, ...]
    runs: tuple[CapturedRun, ...]
    cost: ProfilingCost | None
    ranks: dict[int, str] = {}
    """Files of the other ranks, which ran the same."""


class Recorded(Reply, frozen=True):
    """Forwards on one timeline; ``program`` is that of the last one, None if there were none."""

    timeline: WireTimeline
    program: StreamProgram | None
    steps: tuple[StepRecord, ...]
    captured: Captured | None = None


class Booting(Message, frozen=True):
    """The worker has come this far in its start."""

    stage: str


class Ready(Message, frozen=True):
    """The worker takes commands."""

    limits: Limits
    model: ModelConfig
    manifest: Manifest


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """The end of a request; ``kind`` and ``text`` name the error when ``reason`` is ``error``.

    ``fingerprints`` has one of the logits behind each token of this life, if they were asked for.
    """

    request_id: int
    reason: FinishReason
    kind: str = ""
    text: str = ""
    fingerprints: tuple[int, ...] = ()


class Progress(Message, frozen=True):
    """What one forward meant for the requests: at ``time_ns``, request ``tokens[i][0]`` got ``tokens[i][1]``.

    ``logprobs`` has places ``i`` and their log-probabilities, of requests that ask for them.
    """

    time_ns: int
    tokens: list[tuple[int, int]]
    finished: list[Finished]
    logprobs: tuple[tuple[int, TokenLogprobs], ...] = ()


class Steps(Message, frozen=True):
    """Forwards since the last such message, and the last of them as a timeline."""

    records: tuple[StepRecord, ...]
    recent: WireTimeline


Command = (
    Start
    | Submit
    | Abort
    | Watch
    | Shutdown
    | SetPlan
    | SetPolicy
    | Record
    | EndRecord
    | GetStatus
    | GetOps
    | GetSnapshot
    | GetReads
    | GetProgram
)
Answer = Done | Failed | Info | Snapshot | Reads | Program | Recorded
Event = Booting | Ready | Progress | Steps
FromWorker = Answer | Event

M = TypeVar("M")

_encoder = msgspec.msgpack.Encoder()
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def encode(message: Message) -> bytes:
    """``message`` as msgpack."""
    return _encoder.encode(message)


def decode_command(payload: bytes) -> Command:
    """A message to the worker. Raises :class:`EngineError` if it is not one."""
    return _decode(_commands, payload)


def decode_from_worker(payload: bytes) -> FromWorker:
    """A message of the worker. Raises :class:`EngineError` if it is not one."""
    return _decode(_from_worker, payload)


def failure(call: int, error: Exception) -> Failed:
    """``error`` as the answer to ``call``; the traceback of one that is no :class:`LabError` goes to stderr."""
    if isinstance(error, LabError):
        return Failed(call, type(error).__name__, str(error))
    traceback.print_exception(error)
    return Failed(call, EngineError.__name__, f"{type(error).__name__}: {error}")


def lab_error(kind: str, text: str) -> LabError:
    """The error class named ``kind``, or :class:`EngineError`, with ``text``."""
    pending = [LabError]
    while pending:
        cls = pending.pop()
        if cls.__name__ == kind:
            return cls(text)
        pending += cls.__subclasses__()
    return EngineError(f"{kind}: {text}")


def _decode(decoder: msgspec.msgpack.Decoder[M], payload: bytes) -> M:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, LabError, ValueError, RecursionError) as error:
        raise EngineError(f"malformed message: {' '.join(str(error).split())}") from error
