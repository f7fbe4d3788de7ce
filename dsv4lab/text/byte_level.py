"""The alphabet of byte-level BPE: a printable character for each byte (GPT-2's ``bytes_to_unicode``)."""

from __future__ import annotations

_PRINTED = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))
_OTHERS = tuple(byte for byte in range(256) if byte not in _PRINTED)

LETTERS = {byte: chr(byte) for byte in _PRINTED} | {byte: chr(256 + at) for at, byte in enumerate(_OTHERS)}
"""The letter of each byte."""

BYTES = {letter: byte for byte, letter in LETTERS.items()}
"""The byte of each letter."""


def token_bytes(token: str) -> bytes:
    """What a token stands for: its letters' bytes, or, where one is no letter of the alphabet, its own UTF-8."""
    try:
        return bytes(BYTES[letter] for letter in token)
    except KeyError:
        return token.encode("utf-8", "replace")
