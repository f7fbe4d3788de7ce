"""What a bench of overlap found, as it is kept in its file; what follows from it is computed (``reading``)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dsv4lab.errors import UsageError
from dsv4lab.overlap.plan import OFF
from dsv4lab.tuning.overlap.arms import SERIAL
from dsv4lab.tuning.overlap.settings import Settings

KIND, SCHEMA = "dsv4lab overlap bench", 1


@dataclass(frozen=True, slots=True)
class PlanTimes:
    """One plan at one level. ``rounds_us``: microseconds of a step, of several in a row, by round. ``single_us``: of a
    step alone, with the host's launch. ``lanes``: those that a CUDA graph's replay has. ``serial``: the serial program
    of the same ops, or nearly. ``side_us``: of the ops that the plan moves off main, in order, alone on one stream;
    None where it moves none.
    """

    plan: str
    rounds_us: tuple[float, ...]
    single_us: float
    streams: int
    lanes: int
    serial: str
    side_us: float | None = None


@dataclass(frozen=True, slots=True)
class Bytes:
    """What a step has to read at least once: weights (of the experts those that random routing is expected to hit),
    and the rows and index keys of the requests' contexts.
    """

    weights: int
    kv: int


@dataclass(frozen=True, slots=True)
class Level:
    """One concurrency level: ``plans`` took turns; ``auto`` is what plan ``auto`` took, None where it was not asked.
    ``clocks``: what nvidia-smi told of clocks, power and temperature right after.
    """

    concurrency: int
    plans: tuple[PlanTimes, ...]
    bytes: Bytes
    auto: str | None = None
    clocks: str | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether every plan gave the bits of the serial program; ``verdicts`` by what was compared."""

    green: bool
    verdicts: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Replays:
    """Replays of one plan, and how many gave the logits of the first, bit for bit."""

    plan: str
    concurrency: int
    replays: int
    identical: int


@dataclass(frozen=True, slots=True)
class LaneBusy:
    """A stream of a profile, in nanoseconds. ``hidden_ns``: busy time that main's covers."""

    name: str
    role: str
    busy_ns: int
    hidden_ns: int
    slices: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Steps of a plan under the profiler; ``trace`` names the file beside the record, if it was kept; ``notes`` say
    what the streams are, where they are not the plan's, or which kernels have no op.
    """

    plan: str
    concurrency: int
    steps: int
    wall_ns: int
    sum_busy_ns: int
    union_busy_ns: int
    streams: tuple[LaneBusy, ...]
    trace: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OverlapRecord:
    """A bench, finished or on its way. ``device``: what it ran on, as it is shown; ``bytes_per_us``: what a copy on it
    reaches, None where it was not measured; ``left_out``: what was not measured, and why. ``carveouts``: percent of an
    SM's memory that kernels asked to have as shared memory, which their traces do not tell: by name and the bytes of it
    that a program has (records of before: by name).
    """

    settings: Settings
    device: str
    machine: Mapping[str, Any]
    gate: Gate | None = None
    bytes_per_us: float | None = None
    levels: tuple[Level, ...] = ()
    replays: Replays | None = None
    profiles: tuple[Profile, ...] = ()
    left_out: tuple[str, ...] = field(default=())
    carveouts: Mapping[str, Any] = field(default_factory=dict)

    def with_level(self, level: Level) -> OverlapRecord:
        """The record with one more level."""
        return replace(self, levels=(*self.levels, level))

    def with_profile(self, profile: Profile) -> OverlapRecord:
        """The record with one more profile."""
        return replace(self, profiles=(*self.profiles, profile))

    def without(self, what: str) -> OverlapRecord:
        """The record, telling that ``what`` was left out."""
        return replace(self, left_out=(*self.left_out, what))

    def to_json(self) -> dict[str, Any]:
        """Plain data; see :func:`record_from_json`."""
        return {"kind": KIND, "schema": SCHEMA, **asdict(self)}


def record_from_json(data: Any, source: str) -> OverlapRecord:
    """Inverse of :meth:`OverlapRecord.to_json`. Raises :class:`UsageError` naming ``source`` and what is wrong."""
    import msgspec

    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise UsageError(f"{source}: this is no record of dsv4lab bench overlap")
    if data.get("schema") != SCHEMA:
        raise UsageError(f"{source}: schema is {data.get('schema')!r}: this version reads {SCHEMA}")
    try:
        record = msgspec.convert(data, OverlapRecord)
        for level in record.levels:
            _check_level(level)
    except (msgspec.ValidationError, UsageError) as error:
        raise UsageError(f"{source}: {error}") from None
    return record


def _check_level(level: Level) -> None:
    """Raise :class:`UsageError` unless all that is read out of ``level`` is there."""
    where = f"level {level.concurrency}"
    names = [times.plan for times in level.plans]
    rounds = {len(times.rounds_us) for times in level.plans}
    if level.concurrency < 1 or len(set(names)) != len(names) or OFF.name not in names:
        raise UsageError(f"{where}: it takes different plans, {OFF.name} among them")
    if len(rounds) != 1 or 0 in rounds:
        raise UsageError(f"{where}: plans take the same number of rounds, 1 or more")
    for times in level.plans:
        if not all(math.isfinite(us) and us > 0 for us in times.rounds_us):
            raise UsageError(f"{where}: plan {times.plan}: times are above 0")
        if times.serial not in names or times.serial not in SERIAL:
            raise UsageError(f"{where}: plan {times.plan}: serial is {times.serial!r}, which was not measured")


def load_record(path: Path) -> OverlapRecord:
    """The record in a file. Raises :class:`UsageError` for a file that is none."""
    try:
        return record_from_json(json.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"{path}: this is not JSON ({error})") from error
