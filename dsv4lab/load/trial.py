"""One trial of a user's server: launched, compared, loaded, profiled, stopped. A configuration in, a record out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import aiohttp

from dsv4lab.errors import EngineError, LabError, TimeoutExceededError, UnavailableError, UsageError, WorkerDiedError
from dsv4lab.load.client import Endpoint, discover, open_session, run_load, warm_up
from dsv4lab.load.outputs import Output, greedy_outputs
from dsv4lab.load.process import ServerProcess, ServerSpec
from dsv4lab.load.report import LoadReport, RequestRecord, summarise
from dsv4lab.load.spec import LoadSpec, Prompt
from dsv4lab.trace.api import load_trace

_TRACE_WAIT_S = 60.0
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
class TrialSpec:
    """What to do with a server. ``prompts`` None are random tokens, of the vocabulary that it tells or ``vocab_size``.

    The first ``gate_prompts`` prompts are answered greedily, ``gate_tokens`` tokens each, before the load: for
    comparison with other arms. ``profile_requests`` above 0 records so many requests of their own after it.
    """

    server: ServerSpec
    load: LoadSpec
    prompts: tuple[Prompt, ...] | None = None
    vocab_size: int | None = None
    warmup: int = 1
    gate_prompts: int = 2
    gate_tokens: int = 16
    profile_requests: int = 0
    gpus: int = 1
    silence_s: float = 120.0
    body: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        s = self.server
        if self.profile_requests and None in (s.start_profile, s.stop_profile, s.profile_dir):
            raise UsageError("profile_requests: they need start_profile, stop_profile and profile_dir")


@dataclass(slots=True)
class TrialRecord:
    """What came of it. ``why`` tells what went wrong; ``busy`` is the busy table of the trace (``trace summary``)."""

    outcome: Outcome
    why: str | None = None
    model: str | None = None
    ready_s: float | None = None
    outputs: list[Output] = field(default_factory=list)
    report: LoadReport | None = None
    requests: list[RequestRecord] = field(default_factory=list)
    trace: str | None = None
    busy: dict[str, Any] | None = None
    stopped: str | None = None
    exit_code: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def run_trial(spec: TrialSpec, log: Path) -> TrialRecord:
    """Carry the trial out; the server's output goes to ``log``. No process is left when this returns or raises.

    A server that does not start, crashes, hangs or answers nonsense is an outcome. Raises :class:`UsageError` and
    :class:`UnavailableError` for what no server is to blame for: no such program, no vocabulary to draw prompts from.
    """
    server = ServerProcess.start(spec.server, log)
    record = TrialRecord(Outcome.OK)
    try:
        asyncio.run(_carry_out(spec, server, record))
    except UsageError:
        raise
    except LabError as error:
        record.why = str(error)
        record.outcome = _outcome_of(error, server, record)
    finally:
        record.stopped = server.stop()
        record.exit_code = server.exit_code
    return record


async def _carry_out(spec: TrialSpec, server: ServerProcess, record: TrialRecord) -> None:
    record.ready_s = await server.ready()
    asked = Endpoint(server.url, api_key=spec.server.api_key, silence_s=spec.silence_s, body=spec.body)
    endpoint, vocab_size = await discover(asked)
    record.model = endpoint.model
    prompts = _prompts(spec, vocab_size)
    record.outputs = await greedy_outputs(endpoint, prompts[: spec.gate_prompts], spec.gate_tokens)
    await warm_up(endpoint, spec.load, prompts, spec.warmup)
    record.requests = await run_load(endpoint, spec.load, prompts)
    record.report = summarise(record.requests, spec.gpus)
    hung = [r for r in record.requests if r.hung]
    if hung:
        raise TimeoutExceededError(f"{len(hung)} of {len(record.requests)} requests hung: {hung[0].error}")
    if record.report.failed:
        why = record.report.errors[0]
        raise EngineError(f"{record.report.failed} of {len(record.requests)} requests failed: {why}")
    if spec.profile_requests:
        await _profile(spec, server.url, endpoint, prompts, record)


def _outcome_of(error: LabError, server: ServerProcess, record: TrialRecord) -> Outcome:
    if isinstance(error, WorkerDiedError) and record.ready_s is None:
        return Outcome.DIED_AT_START
    if record.ready_s is None:
        return Outcome.START_TIMED_OUT
    if _dead_soon(server):
        record.why = f"{error} ({server.epitaph()})"
        return Outcome.CRASHED
    return Outcome.HUNG if isinstance(error, TimeoutExceededError) else Outcome.FAILED


def _dead_soon(server: ServerProcess, patience_s: float = 1.0) -> bool:
    """Whether the process has ended; one whose connections broke may need a moment for it."""
    deadline = time.monotonic() + patience_s
    while server.exit_code is None and time.monotonic() < deadline:
        time.sleep(_POLL_S / 2)
    return server.exit_code is not None


def _prompts(spec: TrialSpec, vocab_size: int | None) -> list[Prompt]:
    if spec.prompts is not None:
        return spec.load.cycled(spec.prompts)
    size = spec.vocab_size or vocab_size
    if size is None:
        raise UsageError("vocab_size: this server does not tell it, so give it, or prompts")
    return spec.load.prompts(size)


async def _profile(
    spec: TrialSpec, url: str, endpoint: Endpoint, prompts: Sequence[Prompt], record: TrialRecord
) -> None:
    """Record requests of their own through the profile endpoints, and load the trace."""
    server = spec.server
    assert server.start_profile is not None
    assert server.stop_profile is not None
    assert server.profile_dir is not None
    before = _traces(server.profile_dir)
    async with open_session(endpoint) as session:
        await _post(session, url + server.start_profile, endpoint)
        await warm_up(endpoint, spec.load, prompts, spec.profile_requests)
        await _post(session, url + server.stop_profile, endpoint)
    deadline = time.monotonic() + _TRACE_WAIT_S
    while not (new := _traces(server.profile_dir) - before):
        if time.monotonic() > deadline:
            raise UnavailableError(f"no trace appeared in {server.profile_dir} within {_TRACE_WAIT_S:g} s")
        await asyncio.sleep(_POLL_S)
    path = max(new)
    record.trace = str(path)
    record.busy = load_trace(path).stream_busy().to_json()


async def _post(session: aiohttp.ClientSession, url: str, endpoint: Endpoint) -> None:
    try:
        async with session.post(url, headers=endpoint.headers) as response:
            text = await response.text(errors="replace")
            if response.status != 200:
                raise EngineError(f"{url}: status {response.status}: {text[:300]}")
    except (aiohttp.ClientError, OSError) as error:
        raise EngineError(f"{url}: {str(error) or type(error).__name__}") from None


def _traces(directory: Path) -> set[Path]:
    """Complete traces: torch's profiler and ours give a file its final name when all of it is there."""
    return {path for pattern in ("*.json.gz", "*.json") for path in directory.rglob(pattern)}
