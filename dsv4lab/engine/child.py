"""A process of ours behind a socket: spawned, never forked from our state, with its last words kept."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from queue import SimpleQueue

from dsv4lab.engine.wire import Channel
from dsv4lab.env import child_environ

SEND_LIMIT_S = 30
_TAIL_LINES = 200
_TOLD_LINES = 8
_LINE_CHARS = 500


RANK_MODULE = "dsv4lab.engine.rank"


def start_ranks(count: int) -> list[ChildProcess]:
    """Processes that become ranks once they are told which: they load torch meanwhile, as their leader does."""
    return [ChildProcess(RANK_MODULE, {}) for _ in range(count)]


class Line:
    """A connection to another process: frames, sent by a thread of its own."""

    def __init__(self, sock: socket.socket) -> None:
        self._channel = Channel(sock)
        self._channel.limit_send(SEND_LIMIT_S)
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        threading.Thread(target=self._write, name="dsv4lab-writer", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether the other process may still be there, as far as is known here."""
        return False

    def send_bytes(self, payload: bytes) -> None:
        """Send one frame, without waiting; if that fails, the connection ends.

        A thread of its own writes: a Ctrl-C in the caller cannot cut a frame in two.
        """
        self._outbox.put(payload)

    def receive_bytes(self) -> bytes | None:
        """The next frame, None at the end. Raises ``EngineError`` on a malformed one."""
        return self._channel.receive()

    def end(self, patience_s: float) -> None:
        """End the connection."""
        self._outbox.put(None)
        self._channel.end()

    def release(self) -> None:
        """Give the socket back, once nobody receives any more."""
        self._channel.close()

    def epitaph(self) -> str:
        """How the other process ended."""
        return "its connection is gone; whatever started it tells more"

    def _write(self) -> None:
        try:
            while (payload := self._outbox.get()) is not None:
                self._channel.send(payload)
        except OSError:
            self._channel.end()


class ChildProcess(Line):
    """``python -m module --fd N arguments``. ``environ`` changes the environment that it inherits; None: unset."""

    def __init__(self, module: str, environ: Mapping[str, str | None], arguments: Sequence[str] = ()) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", module, "--fd", str(theirs.fileno()), *arguments]
            self._process = subprocess.Popen(
                command,
                env=child_environ(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                process_group=0,  # Ctrl-C is for the client, which then ends or aborts what it started
            )
        super().__init__(ours)
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._drain = threading.Thread(target=self._read_output, name="dsv4lab-child-output", daemon=True)
        self._drain.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def end(self, patience_s: float) -> None:
        """End the connection and see the process off: it has ``patience_s`` seconds, then it is killed."""
        super().end(patience_s)
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._drain.join(patience_s)

    def epitaph(self) -> str:
        """How the process ended, and the last lines that it wrote."""
        lines = list(self._tail)[-_TOLD_LINES:]
        told = "".join(f"\n  {line}" for line in lines)
        return f"{_ending(self._process.poll())}" + (f"; its last lines were:{told}" if told else "; it wrote nothing")

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._tail.append(line.decode(errors="replace").rstrip()[:_LINE_CHARS])


def _ending(code: int | None) -> str:
    if code is None:
        return "still running"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"killed by signal {-code}"
