"""A server of the user while it lives: waited for, asked, loaded, profiled, stopped; and what went wrong, by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import aiohttp

from dsv4lab.errors import EngineError, LabError, TimeoutExceededError, TraceError, UnavailableError, WorkerDiedError
from dsv4lab.load.client import Endpoint, discover, open_session, run_load, warm_up
from dsv4lab.load.outputs import Output, greedy_outputs
from dsv4lab.load.process import ServerProcess, ServerSpec
from dsv4lab.load.report import LoadReport, RequestRecord, summarise
from dsv4lab.load.spec import LoadSpec, Prompt
from dsv4lab.timeline.records import BusySummary
from dsv4lab.trace.api import load_trace

_TRACE_WAIT_S = 300.0
_POLL_S = 0.1


class Outcome(StrEnum):
    """How a trial ended; only ``OK`` has figures to compare."""

    OK = "ok"
    DIED_AT_START = "died_at_start"
    START_TIMED_OUT = "start_timed_out"
    CRASHED = "crashed"
    HUNG = "hung"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Profile:
    """A recording: the trace that was read (of several ranks the first), its busy table, and all files that came."""

    trace: Path
    busy: BusySummary
    files: tuple[Path, ...]


class LiveServer:
    """One life of a server, from :meth:`launch` to :meth:`stop`. All calls but these two need :meth:`ready` before.

    ``endpoint`` and ``vocab_size`` are what it told of itself; ``ready_s`` is None until it was healthy.
    """

    def __init__(self, process: ServerProcess, asked: Endpoint) -> None:
        self.process = process
        self.endpoint = asked
        self.vocab_size: int | None = None
        self.ready_s: float | None = None

    @classmethod
    def launch(cls, spec: ServerSpec, log: Path, *, body: Mapping[str, Any], silence_s: float) -> Self:
        """Start it. Raises :class:`UnavailableError` if there is no such program."""
        process = ServerProcess.start(spec, log)
        return cls(process, Endpoint(process.url, api_key=spec.api_key, silence_s=silence_s, body=dict(body)))

    async def ready(self) -> None:
        """Wait until it is healthy and has told its model. Raises :class:`LabError`; :meth:`verdict` names it."""
        self.ready_s = await self.process.ready()
        self.endpoint, self.vocab_size = await discover(self.endpoint)

    async def outputs(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[Output]:
        """Greedy answers, one after the other. Raises :class:`EngineError`."""
        return await greedy_outputs(self.endpoint, prompts, max_new_tokens)

    async def warm_up(self, load: LoadSpec, prompts: Sequence[Prompt], requests: int) -> None:
        """Requests that do not count. Raises :class:`EngineError` if one fails."""
        await warm_up(self.endpoint, load, prompts, requests)

    async def load(
        self, load: LoadSpec, prompts: Sequence[Prompt], gpus: int = 1
    ) -> tuple[list[RequestRecord], LoadReport]:
        """Run the load; failures are in the records, and :func:`check_complete` raises for them."""
        records = await run_load(self.endpoint, load, prompts)
        return records, summarise(records, gpus)

    async def profile(self, load: LoadSpec, prompts: Sequence[Prompt], requests: int) -> Profile:
        """Record so many requests of their own through the profile endpoints, and load the trace.

        The server has both endpoints and a ``profile_dir``. Raises :class:`EngineError` for a refusal,
        :class:`UnavailableError` or :class:`TraceError` for a trace that does not come or cannot be read.
        """
        spec = self.process.spec
        assert spec.start_profile is not None
        assert spec.stop_profile is not None
        assert spec.profile_dir is not None
        before = _traces(spec.profile_dir)
        async with open_session(replace(self.endpoint, silence_s=max(self.endpoint.silence_s, 600.0))) as session:
            await self._post(session, spec.start_profile)
            await self.warm_up(load, prompts, requests)
            await self._post(session, spec.stop_profile)
        return await read_new_trace(spec.profile_dir, before)

    def verdict(self, error: LabError) -> tuple[Outcome, str]:
        """What ``error`` makes of the trial, and why, with the log's last lines where the process has ended."""
        if self.ready_s is None:
            died = isinstance(error, WorkerDiedError)
            return (Outcome.DIED_AT_START if died else Outcome.START_TIMED_OUT), str(error)
        if self._dead_soon():
            return Outcome.CRASHED, f"{error} ({self.process.epitaph()})"
        return (Outcome.HUNG if isinstance(error, TimeoutExceededError) else Outcome.FAILED), str(error)

    def stop(self) -> str:
        """End the whole process group; how it went."""
        return self.process.stop()

    async def _post(self, session: aiohttp.ClientSession, path: str) -> None:
        url = self.process.url + path
        try:
            async with session.post(url, headers=self.endpoint.headers) as response:
                text = await response.text(errors="replace")
                if response.status != 200:
                    raise EngineError(f"{url}: status {response.status}: {text[:300]}")
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{url}: {str(error) or type(error).__name__}") from None

    def _dead_soon(self, patience_s: float = 1.0) -> bool:
        """Whether the process has ended; one whose connections broke may need a moment for it."""
        deadline = time.monotonic() + patience_s
        while self.process.exit_code is None and time.monotonic() < deadline:
            time.sleep(_POLL_S / 2)
        return self.process.exit_code is not None


def check_complete(records: Sequence[RequestRecord], report: LoadReport) -> None:
    """Raise :class:`TimeoutExceededError` if requests hung, :class:`EngineError` if any failed."""
    if hung := [r for r in records if r.hung]:
        raise TimeoutExceededError(f"{len(hung)} of {len(records)} requests hung: {hung[0].error}")
    if report.failed:
        raise EngineError(f"{report.failed} of {len(records)} requests failed: {report.errors[0]}")


async def read_new_trace(directory: Path, before: set[Path]) -> Profile:
    """Wait for new traces that no longer grow. One that is not written to its end reads as cut off, and again later."""
    deadline = time.monotonic() + _TRACE_WAIT_S
    sizes: dict[Path, int] = {}
    while time.monotonic() < deadline:
        now = {path: path.stat().st_size for path in sorted(_traces(directory) - before)}
        if now and now == sizes and (found := _whole(next(iter(now)), tuple(now))) is not None:
            return found
        sizes = now
        await asyncio.sleep(_POLL_S)
    if not sizes:
        raise UnavailableError(f"no trace appeared in {directory} within {_TRACE_WAIT_S:g} s")
    raise TraceError(f"{next(iter(sizes))}: still incomplete after {_TRACE_WAIT_S:g} s")


def _whole(path: Path, files: tuple[Path, ...]) -> Profile | None:
    try:
        trace = load_trace(path, cache=False)
    except TraceError:
        return None
    if trace.report is not None and trace.report.truncated:
        return None
    return Profile(path, trace.stream_busy(), files)


def _traces(directory: Path) -> set[Path]:
    return {path for pattern in ("*.json.gz", "*.json") for path in directory.rglob(pattern)}
