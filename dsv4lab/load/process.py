"""A server of the user as a process group: started from a command template, waited for, stopped, never left behind."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import string
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import aiohttp

from dsv4lab.env import child_environ
from dsv4lab.errors import TimeoutExceededError, UnavailableError, UsageError, WorkerDiedError
from dsv4lab.load import keeper

_POLL_S = 0.1
_TAIL_BYTES = 4096
_TAIL_LINES = 8
_PLACEHOLDERS = frozenset({"host", "port", "flags"})


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """How a server is launched, and where it answers. Checked when made; raises :class:`UsageError`.

    ``command`` is split as a shell does, and run without one. ``{host}`` and ``{port}`` are filled in; ``{flags}``
    stands for ``flags``, which otherwise come last. ``env`` changes the environment (None: unset). ``port`` 0 takes a
    free one. Profile endpoints that are None are not there; ``profile_dir`` is where their traces appear.
    """

    command: str
    flags: tuple[str, ...] = ()
    env: Mapping[str, str | None] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 0
    health: str = "/health"
    start_s: float = 600.0
    stop_s: float = 30.0
    start_profile: str | None = "/start_profile"
    stop_profile: str | None = "/stop_profile"
    profile_dir: Path | None = None
    api_key: str | None = None

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.command)
            names = {name for word in words for _, name, _, _ in string.Formatter().parse(word) if name is not None}
        except ValueError as error:
            raise UsageError(f"command {self.command!r}: {error}") from None
        if not words:
            raise UsageError("command is empty: it takes a program and its arguments")
        if unknown := sorted(names - _PLACEHOLDERS):
            raise UsageError(f"command: {{{unknown[0]}}} is unknown; it takes {{host}}, {{port}} and {{flags}}")
        for name in ("start_s", "stop_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name} is {getattr(self, name)}: it takes seconds, more than 0")

    @property
    def has_profiles(self) -> bool:
        """Whether recordings can be asked for and read."""
        return None not in (self.start_profile, self.stop_profile, self.profile_dir)

    def words(self, port: int) -> list[str]:
        """The command line for ``port``."""
        out: list[str] = []
        for word in shlex.split(self.command):
            if word == "{flags}":
                out += self.flags
            else:
                out.append(word.format(host=self.host, port=port, flags=shlex.join(self.flags)))
        return out if "{flags}" in self.command else [*out, *self.flags]


class ServerProcess:
    """One server, from :meth:`start` to :meth:`stop`. All that it and its children write goes to ``log``.

    If this process is killed, its keeper (a process of its own, :mod:`dsv4lab.load.keeper`) ends the server.
    """

    def __init__(self, spec: ServerSpec, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.spec = spec
        self.url = f"http://{spec.host}:{port}"
        self.log = log
        self._process = process
        command = [sys.executable, "-SE", keeper.__file__, str(process.pid), str(spec.stop_s)]
        quiet = subprocess.DEVNULL
        self._keeper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
        )

    @classmethod
    def start(cls, spec: ServerSpec, log: Path) -> Self:
        """Launch it in a session of its own. Raises :class:`UnavailableError` if there is no such program."""
        port = spec.port or _free_port(spec.host)
        words = spec.words(port)
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("ab") as file:
                process = subprocess.Popen(
                    words,
                    env=child_environ(spec.env),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise UnavailableError(f"{words[0]}: {error.strerror or error}") from None
        return cls(spec, process, port, log)

    @property
    def pid(self) -> int:
        """Of the leader, and the number of its group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.poll()

    async def ready(self) -> float:
        """Wait until it is healthy; the seconds that took.

        Raises :class:`WorkerDiedError` if it ends before, :class:`TimeoutExceededError` after ``start_s``.
        """
        begun = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=10.0)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while time.monotonic() - begun < self.spec.start_s:
                if self.exit_code is not None:
                    raise WorkerDiedError(f"the server ended at its start, {self.epitaph()}")
                with suppress(aiohttp.ClientError, OSError):  # not yet; TimeoutError is one of them
                    async with session.get(self.url + self.spec.health) as response:
                        if response.status == 200:
                            return time.monotonic() - begun
                await asyncio.sleep(_POLL_S)
        raise TimeoutExceededError(f"the server was not healthy within {self.spec.start_s:g} s; {self.epitaph()}")

    def stop(self) -> str:
        """End the whole group: asked, then killed after ``stop_s``.

        How it went: ``ended`` by itself, ``stopped`` when asked, ``killed``.
        """
        how = "ended" if self.exit_code is not None else "stopped"
        if how == "stopped":
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(self.spec.stop_s)
            except subprocess.TimeoutExpired:
                how = "killed"
        self._signal(signal.SIGKILL)  # children that outlive their parent
        self._process.wait()
        if self._keeper.poll() is None:
            self._keeper.communicate(b".")
        return how

    def epitaph(self) -> str:
        """How it stands with the process, and the last lines of the log."""
        code = self.exit_code
        state = "still running" if code is None else f"exit code {code}" if code >= 0 else f"signal {-code}"
        tail = self.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").splitlines()[-_TAIL_LINES:]
        return state + ("; it wrote nothing" if not tail else "; its last lines were:\n  " + "\n  ".join(tail))

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # nobody of the group is left
            os.killpg(self._process.pid, number)


def _free_port(host: str) -> int:
    with socket.socket() as sock:
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
        return port
