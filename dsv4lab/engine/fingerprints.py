"""A number per new token that tells whether the logits it was chosen from are the same, bit for bit."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4lab.engine.step import Chunk


def fingerprint(row: NDArray[np.float32]) -> int:
    """64 bits that depend on every bit of ``row``."""
    return int.from_bytes(hashlib.blake2b(np.ascontiguousarray(row).data, digest_size=8).digest(), "little")


class Fingerprints:
    """Fingerprints of the requests that ask for them, from their first token until they end."""

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}

    def note(self, chunk: Chunk, row: NDArray[Any]) -> None:
        """``row`` are the float32 logits that the next token of the chunk's request is chosen from."""
        if chunk.spec.fingerprints:
            self._rows.setdefault(chunk.spec.request_id, []).append(fingerprint(row))

    def take(self, request_id: int) -> tuple[int, ...]:
        """What was noted of a request, which is forgotten."""
        return tuple(self._rows.pop(request_id, ()))
