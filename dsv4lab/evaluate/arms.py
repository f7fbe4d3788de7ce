"""The two things that are compared: servers that run, or servers that are started for it, one after the other."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4lab.errors import UnavailableError, UsageError, WorkerDiedError
from dsv4lab.load.client import Endpoint, discover
from dsv4lab.load.process import ServerProcess, ServerSpec

NAMES = ("A", "B")

_POLL_S = 0.1
_PATIENCE = 50


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """An arm: the base ``url`` of a server that runs, or the ``server`` to start. Raises :class:`UsageError`.

    ``model`` None is the first that the server lists.
    """

    name: str
    url: str | None = None
    server: ServerSpec | None = None
    model: str | None = None
    api_key: str | None = None

    def __post_init__(self) -> None:
        if (self.url is None) == (self.server is None):
            raise UsageError(f"arm {self.name}: it takes the URL of a server, or a command that starts one")

    @property
    def label(self) -> str:
        """What tells it from the other: URL, or flags and environment; and the model where one was asked for."""
        own = [self.url] if self.url is not None else []
        if self.server is not None:
            changed = [name if value is None else f"{name}={value}" for name, value in self.server.env.items()]
            own = [shlex.join(self.server.flags), *changed]
        said = ", ".join(text for text in [*own, self.model] if text)
        return said or "as it is"

    def to_json(self) -> dict[str, Any]:
        """What a session has to be resumed with; no key."""
        server = None
        if self.server is not None:
            server = {"command": self.server.command, "flags": list(self.server.flags), "env": dict(self.server.env)}
        return {"name": self.name, "url": self.url, "server": server, "model": self.model}


@asynccontextmanager
async def serving(arm: ArmSpec, log: Path, silence_s: float) -> AsyncIterator[Endpoint]:
    """The arm's endpoint while the block runs; a server that was started for it is stopped, whatever happens.

    Raises :class:`dsv4lab.errors.LabError` if it does not start or tells no model, and :class:`WorkerDiedError` at the
    end of the block if it answers no more.
    """
    if arm.server is None:
        yield (await discover(Endpoint(arm.url or "", arm.model, arm.api_key, silence_s=silence_s)))[0]
        return
    process = ServerProcess.start(arm.server, log)
    try:
        await process.ready()
        asked = Endpoint(process.url, arm.model, arm.server.api_key, silence_s=silence_s)
        yield (await discover(asked))[0]
        await _see_alive(arm, process, asked)
    finally:
        process.stop()


async def _see_alive(arm: ArmSpec, process: ServerProcess, asked: Endpoint) -> None:
    """Raise :class:`WorkerDiedError` if the server is gone: what it did not answer says nothing about the arm then."""
    try:
        await discover(asked)
    except UnavailableError:
        for _ in range(_PATIENCE):  # a process whose sockets are closed may need a moment to end
            if process.exit_code is None:
                await asyncio.sleep(_POLL_S)
        raise WorkerDiedError(f"arm {arm.name}: the server answers no more, {process.epitaph()}") from None
