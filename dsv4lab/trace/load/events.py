"""Trace events as msgspec reads them: only what the timeline needs, numbers and names kept as text."""

from __future__ import annotations

from typing import Any

import msgspec

RAW_NONE = msgspec.Raw(b"")
IdValue = int | str | float | None


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that place it: ids are opaque keys."""

    stream: IdValue = None
    hsa_queue: IdValue = None
    queue: IdValue = None
    device: IdValue = None
    correlation: IdValue = None
    external: IdValue = msgspec.field(default=None, name="External id")
    queued_ns: IdValue = None
    step: IdValue = None
    layer: IdValue = None
    op: IdValue = None
    rank: IdValue = None
    derived: IdValue = None
    at: IdValue = None


class Event(msgspec.Struct, gc=False):
    """One element of ``traceEvents``. ``args`` stays as text unless the event is of interest."""

    ph: str | None = None
    cat: str | None = None
    name: msgspec.Raw = RAW_NONE
    ts: msgspec.Raw = RAW_NONE
    dur: msgspec.Raw = RAW_NONE
    args: Args | None = None


DECODE_EVENTS = msgspec.json.Decoder(list[Event]).decode
DECODE_EVENT = msgspec.json.Decoder(Event).decode
ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def as_id(value: Any) -> IdValue:
    """``value`` if it can be an id, else ``None``."""
    return value if isinstance(value, int | str | float) else None


def from_untyped(text: bytes) -> Event:
    """An event whose fields have unexpected types: read without types, keep what fits.

    Raises one of ``ERRORS`` if ``text`` is no JSON object.
    """
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])

    def plain(key: str) -> Any:
        return msgspec.json.decode(fields[key]) if key in fields else None

    ph, cat, args = plain("ph"), plain("cat"), plain("args")
    kept = Args(**{k: as_id(args.get(n)) for k, n in _ARG_NAMES}) if isinstance(args, dict) else None
    raw = {key: fields.get(key, RAW_NONE) for key in ("name", "ts", "dur")}
    return Event(ph if isinstance(ph, str) else None, cat if isinstance(cat, str) else None, args=kept, **raw)


_ARG_NAMES = tuple((f.name, f.encode_name) for f in msgspec.structs.fields(Args))
