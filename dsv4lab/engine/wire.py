"""Frames over a socket: four bytes of little-endian length, then that many bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from dsv4lab.errors import EngineError

MAX_FRAME = 1 << 30
_HEADER = struct.Struct("<I")
_READ = 1 << 20


class Channel:
    """One end of the connection. Any thread may send; one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()

    def limit_send(self, seconds: float) -> None:
        """From now on a send that the other end does not take within ``seconds`` raises ``OSError``."""
        whole, micros = divmod(round(seconds * 1e6), 1_000_000)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", whole, micros))

    def send(self, payload: bytes) -> None:
        """Send one frame. After an ``OSError`` the connection is of no further use."""
        if len(payload) > MAX_FRAME:
            raise EngineError(f"message of {len(payload)} bytes: a frame takes at most {MAX_FRAME}")
        with self._sending:
            self._sock.sendall(_HEADER.pack(len(payload)) + payload)

    def receive(self) -> bytes | None:
        """The next frame, or None when the other end closed between frames.

        Raises :class:`EngineError` if the frame is too long or the connection ends inside it.
        """
        header = self._read(_HEADER.size)
        if not header:
            return None
        if len(header) == _HEADER.size:
            (size,) = _HEADER.unpack(header)
            if size > MAX_FRAME:
                raise EngineError(f"malformed message: {size} bytes announced, a frame takes at most {MAX_FRAME}")
            payload = self._read(size)
            if len(payload) == size:
                return payload
        raise EngineError("malformed message: the connection ended inside a frame")

    def end(self) -> None:
        """End the connection in both directions, from any thread; a blocked receive returns."""
        with contextlib.suppress(OSError):  # the other end was faster
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the socket back. Nobody may be receiving."""
        self.end()
        self._sock.close()

    def _read(self, size: int) -> bytes:
        """``size`` bytes, or fewer if the connection ends first."""
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._sock.recv(min(size - len(parts), _READ))
            except OSError:  # reset by a dying peer, or closed by us: the end either way
                break
            if not part:
                break
            parts += part
        return bytes(parts)
