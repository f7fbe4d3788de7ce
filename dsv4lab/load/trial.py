"""One trial of a user's server: launched, compared, loaded, profiled, stopped. A configuration in, a record out."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dsv4lab.errors import LabError, UsageError
from dsv4lab.load.live import LiveServer, Outcome, check_complete
from dsv4lab.load.outputs import Output
from dsv4lab.load.process import ServerSpec
from dsv4lab.load.report import LoadReport, RequestRecord
from dsv4lab.load.spec import LoadSpec, Prompt, prompts_of

__all__ = ["Outcome", "TrialRecord", "TrialSpec", "run_trial"]


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
        if self.profile_requests and not self.server.has_profiles:
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
    server = LiveServer.launch(spec.server, log, body=spec.body, silence_s=spec.silence_s)
    record = TrialRecord(Outcome.OK)
    try:
        asyncio.run(_carry_out(spec, server, record))
    except UsageError:
        raise
    except LabError as error:
        record.outcome, record.why = server.verdict(error)
    finally:
        record.ready_s = server.ready_s
        record.stopped = server.stop()
        record.exit_code = server.process.exit_code
    return record


async def _carry_out(spec: TrialSpec, server: LiveServer, record: TrialRecord) -> None:
    await server.ready()
    record.model = server.endpoint.model
    prompts = prompts_of(spec.load, spec.prompts, spec.vocab_size or server.vocab_size)
    record.outputs = await server.outputs(prompts[: spec.gate_prompts], spec.gate_tokens)
    await server.warm_up(spec.load, prompts, spec.warmup)
    record.requests, record.report = await server.load(spec.load, prompts, spec.gpus)
    check_complete(record.requests, record.report)
    if spec.profile_requests:
        profile = await server.profile(spec.load, prompts, spec.profile_requests)
        record.trace, record.busy = str(profile.trace), profile.busy.to_json()
