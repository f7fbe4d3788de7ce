"""A server in this process over a given client, and plain HTTP clients for its tests."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dsv4lab.engine.client import EngineClient
from dsv4lab.serve.run import Running, start
from dsv4lab.serve.settings import ServeSettings

WAIT_S = 120.0
T = TypeVar("T")


@dataclass
class Answer:
    """A response that has been read whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return found

    @property
    def events(self) -> list[Any]:
        """The chunks of a stream; the end mark is the last."""
        lines = [line for line in self.body.split(b"\n\n") if line]
        assert all(line.startswith(b"data: ") for line in lines)
        return [line if line == b"data: [DONE]" else json.loads(line[6:]) for line in lines]


@dataclass
class Site:
    """The server's address, and what runs behind it."""

    running: Running
    client: EngineClient
    loop: asyncio.AbstractEventLoop
    lines: list[str] = field(default_factory=list)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.running.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def ask(
        self, path: str, data: Any = None, *, method: str | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """One request, ``data`` as JSON (bytes as they are), and its whole answer."""
        body = data if data is None or isinstance(data, bytes) else json.dumps(data).encode()
        kind = {"Content-Type": "application/json"} if data is not None else {}
        connection = http.client.HTTPConnection(*self.address, timeout=WAIT_S)
        try:
            connection.request("GET" if data is None else "POST", path, body, {**kind, **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers), response.read())
        finally:
            connection.close()

    def open(self, data: Any, path: str = "/v1/completions", receive_buffer: int | None = None) -> socket.socket:
        """A request on a raw socket; nothing is read."""
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(WAIT_S)
        sock.connect(self.address)
        body = json.dumps(data).encode()
        head = (
            "Host: x",
            "Connection: close",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "",
            "",
        )
        sock.sendall(f"POST {path} HTTP/1.1\r\n".encode() + "\r\n".join(head).encode() + body)
        return sock

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait, on the server's loop, for a condition of the server; the test's time limit is the only one."""

        async def wait() -> None:
            while not holds():
                await asyncio.sleep(0.005)

        self.run(wait())

    def until_empty(self) -> None:
        """Wait until nothing of any request is left: no choice in flight, all slots and pages free."""
        self.until(lambda: self.running.desk.in_flight == 0)
        limits = self.client.limits
        while True:
            status = self.client.status()
            if status["running"] == status["waiting"] == 0:
                break
        assert status["free_slots"] == limits.max_requests
        assert status["free_pages"] == limits.pool_tokens // limits.page_size

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """``work`` on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_S)


@contextmanager
def site(client: EngineClient, **settings: Any) -> Iterator[Site]:
    """A server over ``client`` on a loop of its own thread; the client stays open."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    lines: list[str] = []
    chosen = ServeSettings(**{"model_name": "tiny", "port": 0, "drain_s": 5.0, **settings})
    running = asyncio.run_coroutine_threadsafe(start(client, chosen, lines.append), loop).result(WAIT_S)
    try:
        yield Site(running, client, loop, lines)
    finally:
        asyncio.run_coroutine_threadsafe(running.close(), loop).result(WAIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()
