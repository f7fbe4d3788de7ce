"""What servers of tests share. They run as scripts, ``python wrong_server.py PORT``, and import it as a neighbour."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

POLL_S = 0.002
SOCKETS = Path("/proc/net/tcp")


class PlainHandler(BaseHTTPRequestHandler):
    """Answers in JSON and events of streams; it keeps quiet."""

    def asked(self) -> Any:
        """The body of the request; an empty object where there is none."""
        return json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")

    def answer(self, status: int, data: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())

    def event(self, data: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")

    def until_read(self) -> None:
        """Wait until the client has taken all that was sent, or is gone: what comes next comes apart from it."""
        while _unread(client=self.client_address[1], server=self.server.server_address[1]):
            time.sleep(POLL_S)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve(port: int, handler: type[PlainHandler]) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    server.serve_forever()


def _unread(client: int, server: int) -> int:
    """Bytes on their way to the client, or there and not read; 0 where the connection is no more."""
    found = 0
    for line in SOCKETS.read_text("utf-8").splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        ends = (int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16))
        sending, received = (int(size, 16) for size in queues.split(":"))
        found += {(server, client): sending, (client, server): received}.get(ends, 0)
    return found
