"""What ranks say to each other beside tensors: a leader's commands, and what comes back. Tagged msgpack structs.

A leader tells its followers everything that changes a pool or runs a program, in order, so that all ranks of an
attention group do the same; decisions (sampled tokens, drafts) are the leader's alone.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from dsv4lab.engine.step import Mode
from dsv4lab.errors import EngineError
from dsv4lab.kv.metadata import BatchItem
from dsv4lab.overlap.run_record import RunRecord
from dsv4lab.spec.draft import Anchor
from dsv4lab.timeline.program import StreamProgram


class ToRank(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Anything that a rank is told."""


class Join(ToRank, frozen=True):
    """First message: be ``rank`` of a run of ``config``; the ranks meet at ``store``, a file."""

    config: dict[str, Any]
    rank: int
    store: str


class Forward(ToRank, frozen=True):
    """Run the model over ``items``; answered by :class:`Times`."""

    number: int
    items: list[BatchItem]
    mode: Mode
    all_rows: bool
    wide_items: int


class Idle(ToRank, frozen=True):
    """Take part in the peers' forward without tokens; answered by :class:`Times` if there was one."""

    number: int


class Rows(msgspec.Struct, frozen=True, array_like=True):
    """Committed tokens of one request; their hidden rows are those from ``row`` on of the last forward."""

    slot: int
    pages: tuple[int, ...]
    start: int
    following: tuple[int, ...]
    row: int


class Observe(ToRank, frozen=True):
    """The drafter takes over committed tokens, of a forward of ``tokens`` tokens."""

    tokens: int
    committed: list[Rows]


class Propose(ToRank, frozen=True):
    """The drafter drafts from ``anchors``; a :class:`Chosen` follows for every place.

    With ``greedy`` nothing follows: every rank takes the likeliest tokens, of logits that are the same on all.
    """

    anchors: list[Anchor]
    greedy: bool = False


class Chosen(ToRank, frozen=True):
    """Tokens that the leader chose, one per anchor."""

    tokens: list[int]


class ResetSlot(ToRank, frozen=True):
    """See :meth:`dsv4lab.kv.pool.KvPool.reset_slot`."""

    slot: int


class Release(ToRank, frozen=True):
    """See :meth:`dsv4lab.kv.pool.KvPool.release`."""

    slot: int | None
    pages: list[int]


class Forget(ToRank, frozen=True):
    """See :meth:`dsv4lab.kv.pool.KvPool.forget_rejected`."""

    slot: int
    committed: int
    written: int


class Save(ToRank, frozen=True):
    """Keep a snapshot of the slot under this number; nobody goes on from those in ``dropped`` any more."""

    number: int
    slot: int
    length: int
    dropped: list[int]


class Restore(ToRank, frozen=True):
    """Put snapshot ``number`` into a slot that was just cleared; see :class:`dsv4lab.engine.step.Resume`."""

    number: int
    slot: int
    pages: tuple[int, ...]
    length: int
    following: int


class Profile(ToRank, frozen=True):
    """Record through torch's profiler from the next forward on, into the file ``path``."""

    path: str


class EndProfile(ToRank, frozen=True):
    """Record no longer; answered by :class:`Profiled` when the file is there."""


class UsePlan(ToRank, frozen=True):
    """Use this plan from the next forward on."""

    plan: dict[str, Any]


class UseStreams(ToRank, frozen=True):
    """Replace what programs run on."""

    kind: str
    hw_queues: int
    policy: str
    intra_op_threads: int


class Handle(ToRank, frozen=True):
    """To the leader of another group: carry out this command of the client, in its wire form."""

    command: bytes


class Tick(ToRank, frozen=True):
    """To the leader of another group: run one forward, or take part in the others'; answered by :class:`Ticked`."""


class Stop(ToRank, frozen=True):
    """Finish and exit."""


class FromRank(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Anything that a rank says."""


class Joined(FromRank, frozen=True):
    """The rank takes commands."""


class Times(FromRank, frozen=True):
    """When the ops of forward ``number`` ran on this rank: int64 columns, see :class:`RunRecord`."""

    number: int
    queue_of: dict[str, int]
    columns: list[bytes]


class Said(FromRank, frozen=True):
    """What the leader of another group tells the client."""

    message: bytes


class Ticked(FromRank, frozen=True):
    """A :class:`Tick` is done; ``idle``: the group has no work left."""

    idle: bool


class Profiled(FromRank, frozen=True):
    """A profile has been written; ``problem`` says why not, if not."""

    problem: str = ""


class RankFailed(FromRank, frozen=True):
    """The rank ends with this error. ``secondary``: it missed the others, which may be the effect of another's end."""

    text: str
    secondary: bool


Command = (
    Join | Forward | Idle | Observe | Propose | Chosen | ResetSlot | Release | Forget | Save | Restore | Profile
    | EndProfile | UsePlan | UseStreams | Handle | Tick | Stop
)  # fmt: skip
Answer = Joined | Times | Said | Ticked | Profiled | RankFailed

_encoder = msgspec.msgpack.Encoder()
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: ToRank | FromRank) -> bytes:
    """``message`` as msgpack."""
    return _encoder.encode(message)


def decode_command(payload: bytes) -> Command:
    """A message to a rank. Raises :class:`EngineError` if it is not one."""
    try:
        return _commands.decode(payload)
    except msgspec.MsgspecError as error:
        raise EngineError(f"malformed message to a rank: {error}") from error


def decode_answer(payload: bytes) -> Answer:
    """A message of a rank. Raises :class:`EngineError` if it is not one."""
    try:
        return _answers.decode(payload)
    except msgspec.MsgspecError as error:
        raise EngineError(f"malformed message of a rank: {error}") from error


def times_of(number: int, record: RunRecord) -> Times:
    """``record`` without its program, which the leader has too."""
    columns = (record.queued_ns, record.head_ns, record.start_ns, record.end_ns)
    return Times(number, dict(record.queue_of), [np.ascontiguousarray(c, "<i8").tobytes() for c in columns])


def record_of(times: Times, program: StreamProgram) -> RunRecord:
    """The inverse of :func:`times_of`."""
    queued, head, start, end = (np.frombuffer(c, "<i8").astype(np.int64) for c in times.columns)
    return RunRecord(program, times.queue_of, queued, head, start, end)
