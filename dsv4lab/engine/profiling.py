"""Recording forwards through the client: ops as the engine times them, or kernels as torch's profiler sees them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from dsv4lab.engine import messages as m
from dsv4lab.engine.link import Link
from dsv4lab.engine.load import check_room
from dsv4lab.engine.payloads import unpack_timeline
from dsv4lab.engine.prompts import positive, synthetic
from dsv4lab.engine.results import Profile, Recording
from dsv4lab.engine.torch_recording import EXPORT_S
from dsv4lab.errors import EngineError, UsageError
from dsv4lab.timeline.timeline import Timeline

if TYPE_CHECKING:
    from dsv4lab.config.engine import EngineConfig
    from dsv4lab.engine.client import EngineClient

T = TypeVar("T")

CaptureKind = Literal["torch", "ops"]

MAX_STEPS = 4096
MAX_TORCH_STEPS = 256
LEAD = 5
"""Forwards of the same shape that run unprofiled before a profile of an own load."""
WORKER = "dsv4lab"


@dataclass(frozen=True, slots=True)
class How:
    """``torch``: through torch's profiler; ``directory``: where a file is to be kept, if anywhere."""

    torch: bool
    directory: Path | None = None
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: EngineConfig, capture: CaptureKind | None, directory: str | Path | None = None) -> How:
        """``capture`` as asked for; by default torch's on GPUs, with one attention group.

        Raises :class:`UsageError` for what is neither, and for torch's with several groups.
        """
        if capture is not None and capture not in get_args(CaptureKind):
            raise UsageError(f"capture is {capture!r}: it takes torch or ops")
        where = None if directory is None else Path(directory).expanduser()
        groups = config.dp_size
        if capture == "torch" and groups > 1:
            raise UsageError(f"capture='torch' records one group, here are {groups}: capture='ops' records all")
        gpu = config.device != "cpu"
        if capture is None and gpu and groups > 1:
            return cls(
                False, where, (f"{groups} groups: every forward is one row; torch's profiler records one group",)
            )
        return cls(gpu if capture is None else capture == "torch", where)

    @contextmanager
    def raw(self) -> Iterator[str]:
        """A path that torch may write to, gone at the end; empty if it is not asked."""
        if not self.torch:
            yield ""
            return
        with tempfile.TemporaryDirectory(prefix="dsv4lab-") as folder:
            yield str(Path(folder) / "raw.pt.trace.json")


OPS = How(torch=False)


def record(
    link: Link,
    run: Callable[[], T],
    steps: int | None = None,
    decoding: int = 0,
    how: How = OPS,
) -> tuple[T, m.Recorded, Recording]:
    """What ``run()`` gave, and the first ``steps`` forwards meanwhile, from a decode of ``decoding`` requests on."""
    most = steps or (MAX_TORCH_STEPS if how.torch else MAX_STEPS)
    with how.raw() as raw:
        pending = link.begin(lambda call: m.Record(call, most, decoding, torch=raw, lead=LEAD if raw else 0))
        patience = EXPORT_S if raw else link.patience.call_s
        try:
            result = run()
        finally:
            link.begin(m.EndRecord).wait(m.Done, patience)
        recorded = pending.wait(m.Recorded, patience)
        return result, recorded, recording_of(recorded, how)


def record_next(link: Link, steps: int, timeout_s: float, how: How) -> Profile | None:
    """The next ``steps`` forwards, fewer if the engine runs out of work; None if there were none."""
    with how.raw() as raw:
        pending = link.begin(lambda call: m.Record(call, steps, until_idle=True, torch=raw))
        recorded = pending.wait(m.Recorded, timeout_s)
        return profile_of(recorded, recording_of(recorded, how)) if recorded.program is not None else None


def own_load_profile(
    client: EngineClient, link: Link, steps: int, concurrency: int, prompt_tokens: int, timeout_s: float, how: How = OPS
) -> Profile:
    """``steps`` decode forwards of ``concurrency`` synthetic requests that live little longer than that."""
    prefills = -(-concurrency * positive(prompt_tokens, "prompt_tokens") // client.config.chunked_prefill_size)
    new = steps + prefills + 1 + (LEAD if how.torch else 0)  # those prefilled first decode while the others are
    check_room(client.limits, concurrency, prompt_tokens + new)
    rows = synthetic(client.limits.vocab_size, concurrency, prompt_tokens, 0)
    run = partial(client.generate, rows, max_new_tokens=new, timeout_s=timeout_s)
    _, recorded, recording = record(link, run, steps, concurrency, how)
    if recorded.program is None:
        raise EngineError(f"no decode forward of {concurrency} requests came about")
    return profile_of(recorded, recording)


def profile_of(recorded: m.Recorded, recording: Recording) -> Profile:
    """``recording`` with the program of the last forward, in full where torch's profiler saw it, and the steps."""
    program = recorded.program
    assert program is not None
    if (captured := recorded.captured) is not None and captured.runs:
        last = captured.runs[-1].step
        ran = [captured.programs[run.program] for run in captured.runs if run.step == last]
        program = max(ran, key=lambda one: len(one.ops))  # a drafter's are shorter
    return Profile(
        recording.timeline,
        recording.path,
        recording.cost,
        recording.warnings,
        program=program,
        steps=recorded.steps,
    )


def recording_of(recorded: m.Recorded, how: How) -> Recording:
    """The forwards on a timeline, and in a file if one is to be kept.

    Raises :class:`dsv4lab.errors.TraceError` if torch's profiler saw no kernel, or the file cannot be written.
    """
    own = unpack_timeline(recorded.timeline)
    if recorded.captured is not None and recorded.captured.runs:
        return _captured(recorded.captured, own.meta, how)
    timeline = replace(own, warnings=(*own.warnings, *how.warnings))
    path = None
    if how.directory is not None:
        from dsv4lab.trace.export import export_run

        path = export_run(timeline, how.directory, WORKER)
    return Recording(timeline, path, None, how.warnings)


def _captured(captured: m.Captured, meta: Mapping[str, Any], how: How) -> Recording:
    """Every rank's capture, named, in a file of its own; several ranks on one timeline."""
    from dsv4lab.trace.export import SUFFIX
    from dsv4lab.trace.load import load_any
    from dsv4lab.trace.named import write_named

    cost = captured.cost
    raw = {0: captured.path, **captured.ranks}
    folder, stamp = how.directory or Path(captured.path).parent, time.time_ns()
    said = {key: meta[key] for key in ("manifest", "step_modes") if key in meta}
    warnings = []
    if cost is None:
        warnings.append("no step of the profiled shape ran without the profiler: what it changed is not known")
    elif cost.changed:
        warnings.append(cost.text)
    told = None if cost is None else cost.to_json()
    paths: list[Path] = []
    problems: list[str] = []
    for rank, file in raw.items():
        name = WORKER if len(raw) == 1 else f"{WORKER}-rank{rank:03}"
        paths.append(folder / f"{name}.{stamp}{SUFFIX}.gz")
        found = write_named(
            Path(file),
            paths[-1],
            captured.programs,
            captured.runs,
            said,
            platform=captured.platform,
            cost=told,
            warnings=warnings,
            rank=rank,
        )
        problems += found.problems
    said_all = (*dict.fromkeys(problems), *warnings)
    timeline: Timeline = load_any(paths, cache=False)[0]
    timeline = replace(timeline, meta={**timeline.meta, **meta}, warnings=(*timeline.warnings, *said_all))
    kept = (paths[0] if len(paths) == 1 else folder) if how.directory is not None else None
    return Recording(timeline, kept, cost, said_all)
