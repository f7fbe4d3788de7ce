"""Protocol-buffer messages as bytes: the few forms that Perfetto's format needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIGN, _WRAP = 1 << 63, 1 << 64


def varint(value: int) -> bytes:
    """``value`` in seven bits a byte; negative numbers as 64 bits."""
    value &= _WRAP - 1
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A field that is an integer."""
    return varint(field << 3 | VARINT) + varint(value)


def block(field: int, data: bytes) -> bytes:
    """A field that is a message or bytes."""
    return varint(field << 3 | BYTES) + varint(len(data)) + data


def text(field: int, value: str) -> bytes:
    """A field that is text."""
    return block(field, value.encode("utf-8", "replace"))


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at ``at`` and where it ends. Raises ``ValueError`` if it is cut off or longer than 64 bits."""
    value = shift = 0
    try:
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (_WRAP - 1), at
            shift += 7
            if shift > 63:
                raise ValueError("a number longer than 64 bits")
    except IndexError:
        raise ValueError("a number is cut off") from None


def signed(value: int) -> int:
    """A 64-bit number as the signed one that it stands for."""
    return value - _WRAP if value >= _SIGN else value


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """``(field number, value)`` of every field of a message, values as ``int`` or ``bytes``.

    Raises ``ValueError`` if it is not one.
    """
    at, end = 0, len(data)
    while at < end:
        key = data[at]
        at += 1
        if key >= 0x80:
            key, at = read_varint(data, at - 1)
        kind = key & 7
        if kind == BYTES:
            size, at = read_varint(data, at)
            if at + size > end:
                raise ValueError("a field is cut off")
            yield key >> 3, data[at : at + size]
            at += size
        elif kind == VARINT:
            value, at = read_varint(data, at)
            yield key >> 3, value
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
            if at + size > end:
                raise ValueError("a field is cut off")
            yield key >> 3, int.from_bytes(data[at : at + size], "little")
            at += size
        else:
            raise ValueError(f"a field of wire type {kind}")
