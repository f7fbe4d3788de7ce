"""The worker as a process, with typed messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsv4lab.engine.child import ChildProcess
from dsv4lab.engine.messages import FromWorker, Message, decode_from_worker, encode


class WorkerProcess(ChildProcess):
    """One worker. ``environ`` changes the environment that it inherits; None removes a variable."""

    def __init__(self, environ: Mapping[str, str | None], arguments: Sequence[str] = ()) -> None:
        super().__init__("dsv4lab.engine.worker", environ, arguments)

    def send(self, message: Message) -> None:
        """Send to the worker, without waiting."""
        self.send_bytes(encode(message))

    def receive(self) -> FromWorker | None:
        """The next message, None at the end. Raises ``EngineError`` on a malformed one."""
        payload = self.receive_bytes()
        return None if payload is None else decode_from_worker(payload)
