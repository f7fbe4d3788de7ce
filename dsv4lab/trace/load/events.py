"""Trace events as msgspec reads them: only what the timeline needs, numbers kept as text."""

from __future__ import annotations

from typing import Any

import msgspec

from dsv4lab.timeline.timeline import Kind

RAW_NONE = msgspec.Raw(b"")
IdValue = int | str | float | None
ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

KINDS: dict[str, Kind] = {
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "Memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "Memset": Kind.MEMSET,
    "cuda_sync": Kind.WAIT,
    "cuda_runtime": Kind.HOST,
    "cuda_driver": Kind.HOST,
    "Runtime": Kind.HOST,
    "user_annotation": Kind.ANNOTATION,
    "gpu_user_annotation": Kind.ANNOTATION,
}
"""Categories that become rows."""
CPU_OPS = ("cpu_op", "Operator", "operator")
OP, SKIP = len(Kind), len(Kind) + 1
"""Codes beside those of :class:`Kind`: an operator (gives launches their names) and whatever is only counted."""
CODES: dict[str | None, int] = {**{cat: int(kind) for cat, kind in KINDS.items()}, **dict.fromkeys(CPU_OPS, OP)}
_SKIPPED = (
    "python_function",
    "ac2g",
    "async_cpu_to_gpu",
    "fwdbwd",
    "forward_backward",
    "Trace",
    "hw_queue",
    "overhead",
)
_MOST_TAGS = 100
_TRIES = 4


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that place it: ids are opaque keys."""

    stream: IdValue = None
    hsa_queue: IdValue = None
    queue: IdValue = None
    device: IdValue = None
    correlation: IdValue = None
    external: IdValue = msgspec.field(default=None, name="External id")


class OwnArgs(Args, gc=False):
    """What our exporter adds."""

    queued_ns: IdValue = None
    step: IdValue = None
    layer: IdValue = None
    op: IdValue = None
    rank: IdValue = None
    at: IdValue = None
    derived: IdValue = None


class Event(msgspec.Struct, gc=False):
    """One element of ``traceEvents``, of any category."""

    ph: str | None = None
    cat: str | None = None
    name: str = ""
    ts: msgspec.Raw = RAW_NONE
    dur: msgspec.Raw = RAW_NONE
    args: OwnArgs | None = None


class _Row(msgspec.Struct, gc=False):
    ph: str | None = None
    name: str = ""
    ts: msgspec.Raw = RAW_NONE
    dur: msgspec.Raw = RAW_NONE
    args: Args | None = None


class _OwnRow(msgspec.Struct, gc=False):
    ph: str | None = None
    name: str = ""
    ts: msgspec.Raw = RAW_NONE
    dur: msgspec.Raw = RAW_NONE
    args: OwnArgs | None = None


class _Operator(msgspec.Struct, gc=False):
    ph: str | None = None
    name: str = ""
    args: Args | None = None


class _Skipped(msgspec.Struct, gc=False):
    pass


_decode_events = msgspec.json.Decoder(list[Event]).decode
_decode_event = msgspec.json.Decoder(Event).decode


class EventDecoder:
    """Decodes lists of events, by category where it can: events that are only counted then cost next to nothing.

    Categories are learnt from the file. ``own`` tells that the file is one of ours and its extra arguments matter.
    """

    def __init__(self, *, own: bool = False) -> None:
        self._row: type[msgspec.Struct] = _OwnRow if own else _Row
        self._known = {*CODES, *_SKIPPED}
        self._tries = _TRIES
        self.codes: dict[type, int] = {}
        self._decode = self._build()

    def _build(self) -> Any:
        types: list[Any] = []
        self.codes = {}
        for tag in sorted(t for t in self._known if t is not None):
            code = CODES.get(tag, SKIP)
            base = _Skipped if code == SKIP else _Operator if code == OP else self._row
            made = msgspec.defstruct(f"Tagged{len(types)}", [], bases=(base,), tag_field="cat", tag=tag, gc=False)
            self.codes[made] = code
            types.append(made)
        union: Any = types[0]
        for other in types[1:]:
            union = union | other
        return msgspec.json.Decoder(list[union]).decode

    def decode(self, text: bytes) -> tuple[list[Any], bytes]:
        """The events of the JSON array ``text`` and a code for each (a :class:`Kind`, ``OP`` or ``SKIP``).

        Raises one of ``ERRORS`` if the text does not parse.
        """
        if self._tries:
            try:
                events = self._decode(text)
            except ERRORS:
                pass
            else:
                return events, bytes(map(self.codes.__getitem__, map(type, events)))
        plain = _decode_events(text)
        self._learn({event.cat for event in plain})
        return plain, plain_codes(plain)

    def _learn(self, found: set[str | None]) -> None:
        new = found - self._known - {None}
        if new and len(self._known) + len(new) <= _MOST_TAGS:
            self._known |= new
            self._decode = self._build()
        elif self._tries and None not in found - {None}:
            self._tries -= 1


def plain_codes(events: list[Event]) -> bytes:
    """The codes of untagged events."""
    return bytes(CODES.get(event.cat, SKIP) for event in events)


def decode_plain(text: bytes) -> list[Event]:
    """The events of the JSON array ``text``, untagged. Raises one of ``ERRORS``."""
    return _decode_events(text)


def read_one(text: bytes) -> Event | None:
    """One event, typed if possible, else untyped; ``None`` if ``text`` is not one JSON object."""
    try:
        return _decode_event(text)
    except ERRORS:
        pass
    try:
        return _from_untyped(text)
    except ERRORS:
        return None


def _from_untyped(text: bytes) -> Event:
    """An event whose fields have unexpected types: read without types, keep what fits."""
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])

    def plain(key: str) -> Any:
        return msgspec.json.decode(fields[key]) if key in fields else None

    ph, cat, name, args = plain("ph"), plain("cat"), plain("name"), plain("args")
    kept = OwnArgs(**{k: _as_id(args.get(n)) for k, n in _ARG_NAMES}) if isinstance(args, dict) else None
    return Event(
        ph=ph if isinstance(ph, str) else None,
        cat=cat if isinstance(cat, str) else None,
        name=name if isinstance(name, str) else "" if name is None else str(name),
        ts=fields.get("ts", RAW_NONE),
        dur=fields.get("dur", RAW_NONE),
        args=kept,
    )


def _as_id(value: Any) -> IdValue:
    return value if isinstance(value, int | str | float) else None


_ARG_NAMES = tuple((f.name, f.encode_name) for f in msgspec.structs.fields(OwnArgs))
