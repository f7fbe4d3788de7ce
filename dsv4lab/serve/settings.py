"""What a server is told besides its engine."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from dsv4lab.errors import UsageError


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Checked when made; raises :class:`UsageError`. ``port`` 0 takes a free one.

    ``max_queue`` choices wait beside those that run; with more the answer is 429. A stream whose client takes nothing
    for ``write_timeout_s`` is cut. At the end requests in flight have ``drain_s``. A worker that dies is replaced, but
    not more often than ``max_restarts`` times an hour: the next death ends the server.
    """

    model_name: str
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    max_body_bytes: int = 8 << 20
    max_prompt_tokens: int | None = None
    max_queue: int = 256
    read_timeout_s: float = 30.0
    write_timeout_s: float = 60.0
    drain_s: float = 30.0
    max_restarts: int = 3
    profile_dir: Path = Path("traces/serve")

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UsageError(f"port is {self.port}: it takes a number from 0 (any free one) to 65535")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable() and self.api_key):
            raise UsageError("api_key: it takes printable ASCII characters, at least one")
        if self.api_key is None and not is_loopback(self.host):
            raise UsageError(f"host is {self.host!r}, which other machines reach: give an API key too")
        for name, low in (("max_body_bytes", 1024), ("max_queue", 0), ("max_restarts", 0)):
            if getattr(self, name) < low:
                raise UsageError(f"{name} is {getattr(self, name)}: it takes an integer, {low} or more")
        for name in ("read_timeout_s", "write_timeout_s", "drain_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name} is {getattr(self, name)}: it takes seconds, more than 0")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``, as far as its text tells."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
