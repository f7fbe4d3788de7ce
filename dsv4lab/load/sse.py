"""Server-sent events out of bytes that come in pieces of any size."""

from __future__ import annotations

from dsv4lab.errors import EngineError

MAX_EVENT_BYTES = 16 << 20


class EventReader:
    """Feed it bytes; it gives the data of each complete event. Comments and other fields are passed over."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """What ``piece`` completes. Raises :class:`EngineError` on an event that does not end."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) + sum(map(len, self._data)) > MAX_EVENT_BYTES:
            raise EngineError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
